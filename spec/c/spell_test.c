/* Which of the known names was meant. */
#include "spell.h"

#include "check.h"

#include <stdbool.h>

static const char *const names[] = {"timeout", "stall_timeout", "weight", "tcp_nodelay",
                                    "verify",  "verify_mode",   "get"};

enum { NAMES = sizeof names / sizeof names[0] };

static bool meant(const char *word, const char *name) {
    const char *found = mj__nearest(word, strlen(word), names, NAMES);
    return name ? found && strcmp(found, name) == 0 : found == NULL;
}

static void one_edit_is_a_slip(void) {
    CHECK(meant("timeot", "timeout"));
    CHECK(meant("timeoutt", "timeout"));
    CHECK(meant("timaout", "timeout"));
    CHECK(meant("tiemout", "timeout"));
    CHECK(meant("gte", "get"));
    CHECK(meant("gt", "get"));
}

static void limit_grows_with_the_word(void) {
    CHECK(meant("wieht", NULL));
    CHECK(meant("wieghtt", "weight"));
    CHECK(meant("tpc_ndoelya", "tcp_nodelay"));
    CHECK(meant("tpc_ndoelyas", NULL));
    CHECK(meant("wat", NULL));
}

static void capitals_are_small_letters(void) {
    CHECK(meant("TCP_NODELAY", "tcp_nodelay"));
    CHECK(meant("Tcp_NoDlay", "tcp_nodelay"));
}

static void nearest_wins_and_first_of_equals(void) {
    CHECK(meant("verify_mod", "verify_mode"));
    CHECK(meant("verif", "verify"));
    static const char *const pair[] = {"aax", "aay"};
    CHECK(mj__nearest("aaz", 3, pair, 2) == pair[0]);
}

static void part_of_one_name_means_it(void) {
    CHECK(meant("nodelay", "tcp_nodelay"));
    CHECK(meant("NODE", "tcp_nodelay"));
    CHECK(meant("ode", NULL));
    CHECK(meant("erif", NULL));
}

static void noise_means_nothing(void) {
    char noise[200];
    memset(noise, 'g', sizeof noise);
    for (size_t size = 3; size <= sizeof noise; size++) {
        CHECK(mj__nearest(noise, size, names, NAMES) == NULL);
    }
    CHECK(meant("", NULL));
    CHECK(mj__nearest("get", 3, names, 0) == NULL);
    CHECK(mj__nearest("getXXXX", 3, names, NAMES) == names[NAMES - 1]);
}

int main(void) {
    static const struct check checks[] = {
        {"one edit or one swap of neighbours is a slip", one_edit_is_a_slip},
        {"longer words may have more slips, up to three", limit_grows_with_the_word},
        {"capitals count as small letters", capitals_are_small_letters},
        {"the nearest wins, the first of equals", nearest_wins_and_first_of_equals},
        {"four bytes or more of only one name mean it", part_of_one_name_means_it},
        {"an empty word, noise and no names mean nothing", noise_means_nothing},
    };
    return check_all(checks, sizeof checks / sizeof *checks);
}
