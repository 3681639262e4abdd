/* Look-ups through the system's own getaddrinfo, watched; names that begin with "slow" are held
 * up until the gate opens, and then are not known. */
#include "resolve.h"

#include "check.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>

enum { MANY = 40 };

struct answer {
    struct mj__lookup *lookup;
    unsigned calls;
    char address[INET6_ADDRSTRLEN];
    uint16_t port;
    char reason[128];
    struct mj__lookup * not ; /* what its callback abandons */
};

static struct mj__loop *loop;
static struct mj__resolver *resolver;
static size_t answers;
static size_t threads_at_start;

/* ---- getaddrinfo, watched ---- */

static pthread_mutex_t gate_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t gate_moved = PTHREAD_COND_INITIALIZER;
static bool gate_open;
static unsigned held, most_held, passed;
static bool signals_blocked;

static int wait_at_gate(void) {
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    pthread_mutex_lock(&gate_lock);
    signals_blocked = sigismember(&mask, SIGINT) == 1 && sigismember(&mask, SIGUSR1) == 1;
    held++;
    most_held = held > most_held ? held : most_held;
    pthread_cond_broadcast(&gate_moved);
    while (!gate_open) {
        pthread_cond_wait(&gate_moved, &gate_lock);
    }
    held--;
    passed++;
    pthread_cond_broadcast(&gate_moved);
    pthread_mutex_unlock(&gate_lock);
    return EAI_NONAME;
}

int getaddrinfo(const char *host, const char *service, const struct addrinfo *hints,
                struct addrinfo **list) {
    if (strncmp(host, "slow", 4) == 0 && (hints->ai_flags & AI_NUMERICHOST) == 0) {
        return wait_at_gate();
    }
    int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    return real(host, service, hints, list);
}

static void gate_close(void) {
    pthread_mutex_lock(&gate_lock);
    gate_open = false;
    held = most_held = passed = 0;
    pthread_mutex_unlock(&gate_lock);
}

static void gate_wait(const unsigned *count, unsigned wanted) {
    pthread_mutex_lock(&gate_lock);
    while (*count < wanted) {
        pthread_cond_wait(&gate_moved, &gate_lock);
    }
    pthread_mutex_unlock(&gate_lock);
}

static void gate_let_pass(void) {
    pthread_mutex_lock(&gate_lock);
    gate_open = true;
    pthread_cond_broadcast(&gate_moved);
    pthread_mutex_unlock(&gate_lock);
}

/* ---- asking ---- */

static void open_both(void) {
    struct mj__error error;
    loop = mj__loop_open(&error);
    NEED(loop != NULL);
    resolver = mj__resolver_open(loop, &error);
    NEED(resolver != NULL);
    answers = 0;
}

static void close_both(void) {
    mj__resolver_close(resolver);
    mj__loop_close(loop);
}

static void keep(struct answer *answer, const struct addrinfo *first) {
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)(const void *)first->ai_addr;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)first->ai_addr;
    const void *address = &v4->sin_addr;
    answer->port = ntohs(v4->sin_port);
    if (first->ai_family == AF_INET6) {
        address = &v6->sin6_addr;
        answer->port = ntohs(v6->sin6_port);
    }
    inet_ntop(first->ai_family, address, answer->address, sizeof answer->address);
    CHECK(first->ai_socktype == SOCK_STREAM);
}

static void done(void *arg, struct addrinfo *list, const char *reason) {
    struct answer *answer = arg;
    answer->calls++;
    answers++;
    CHECK((list == NULL) == (reason != NULL));
    if (list != NULL) {
        keep(answer, list);
        freeaddrinfo(list);
    } else {
        snprintf(answer->reason, sizeof answer->reason, "%s", reason);
    }
    if (answer->not != NULL) {
        mj__resolve_abandon(answer->not );
    }
}

static void ask(struct answer *answer, const char *host) {
    struct mj__error error;
    answer->lookup = mj__resolve(resolver, host, 11211, done, answer, &error);
    NEED(answer->lookup != NULL);
}

static void turns_until(size_t count) {
    while (answers < count) {
        NEED(mj__loop_turn(loop, true) == 0);
    }
}

/* ---- the tests ---- */

static size_t threads(void) {
    DIR *tasks = opendir("/proc/self/task");
    NEED(tasks != NULL);
    size_t count = 0;
    for (struct dirent *task; (task = readdir(tasks)) != NULL;) {
        count += task->d_name[0] != '.';
    }
    closedir(tasks);
    return count;
}

static void addresses_need_one_turn(void) {
    static const struct {
        const char *host, *address;
    } literals[] = {
        {"127.0.0.1", "127.0.0.1"},
        {"::1", "::1"},
        {"fe80::1%lo", "fe80::1"},
        {"::ffff:192.0.2.7", "::ffff:192.0.2.7"},
    };
    enum { COUNT = sizeof literals / sizeof *literals };
    open_both();
    struct answer got[COUNT] = {0};
    for (size_t i = 0; i < COUNT; i++) {
        ask(&got[i], literals[i].host);
        CHECK(got[i].calls == 0);
    }
    size_t running = threads();
    NEED(mj__loop_turn(loop, true) == 0);
    for (size_t i = 0; i < COUNT; i++) {
        CHECK(got[i].calls == 1);
        CHECK(strcmp(got[i].address, literals[i].address) == 0);
        CHECK(got[i].port == 11211);
    }
    CHECK(threads() == running);
    close_both();
}

static void bad_addresses_say_why(void) {
    open_both();
    struct answer got[2] = {0};
    ask(&got[0], "fe80::1%nosuchzone");
    ask(&got[1], "::zz");
    NEED(mj__loop_turn(loop, true) == 0);
    CHECK(got[0].calls == 1 && strstr(got[0].reason, "zone") != NULL);
    CHECK(got[1].calls == 1 && strstr(got[1].reason, "not an IPv6 address") != NULL);
    close_both();
}

static void names_come_from_threads(void) {
    open_both();
    struct answer got[2] = {0};
    ask(&got[0], "localhost");
    ask(&got[1], "nosuch.invalid");
    turns_until(2);
    CHECK(got[0].calls == 1 && got[0].port == 11211);
    CHECK(strcmp(got[0].address, "127.0.0.1") == 0 || strcmp(got[0].address, "::1") == 0);
    CHECK(got[1].calls == 1 && got[1].reason[0] != '\0');
    close_both();
}

static void many_names_take_four_threads(void) {
    open_both();
    gate_close();
    struct answer got[MANY] = {0};
    for (size_t i = 0; i < MANY; i++) {
        ask(&got[i], "slow");
    }
    gate_wait(&held, 4);
    gate_let_pass();
    turns_until(MANY);
    CHECK(most_held == 4);
    CHECK(signals_blocked);
    for (size_t i = 0; i < MANY; i++) {
        CHECK(got[i].calls == 1);
        CHECK(got[i].reason[0] != '\0');
    }
    close_both();
}

static void addresses_pass_slow_names(void) {
    open_both();
    gate_close();
    struct answer got[MANY] = {0};
    for (size_t i = 0; i < MANY; i++) {
        ask(&got[i], "slow");
    }
    struct answer literal = {0};
    ask(&literal, "127.0.0.1");
    turns_until(1);
    CHECK(literal.calls == 1);

    /* Those that wait are dropped, those that run are left to end by themselves. */
    gate_wait(&held, 4);
    for (size_t i = 0; i < MANY; i++) {
        mj__resolve_abandon(got[i].lookup);
    }
    struct answer last = {0};
    ask(&last, "localhost");
    gate_let_pass();
    turns_until(2);
    gate_wait(&passed, 4);
    CHECK(last.calls == 1);
    for (size_t i = 0; i < MANY; i++) {
        CHECK(got[i].calls == 0);
    }
    close_both();
}

static void close_leaves_slow_names_behind(void) {
    open_both();
    gate_close();
    struct answer got[MANY] = {0};
    for (size_t i = 0; i < MANY; i++) {
        ask(&got[i], "slow");
    }
    gate_wait(&held, 4);
    mj__resolve_abandon(got[0].lookup);
    close_both();
    gate_let_pass();
    gate_wait(&passed, 4);
    CHECK(answers == 0);
}

static void abandoned_names_stay_silent(void) {
    open_both();
    for (size_t round = 0; round < 50; round++) {
        struct answer got[MANY] = {0};
        answers = 0;
        for (size_t i = 0; i < MANY; i++) {
            ask(&got[i], i % 5 == 1 ? "127.0.0.1" : "localhost");
        }
        if (round % 2 == 1) {
            turns_until(1);
        }
        size_t wanted = 0;
        for (size_t i = 0; i < MANY; i++) {
            if (i % 3 == 0 && got[i].calls == 0) {
                mj__resolve_abandon(got[i].lookup);
            } else {
                wanted++;
            }
        }
        turns_until(wanted);
        for (size_t i = 0; i < MANY; i++) {
            CHECK(got[i].calls <= 1);
        }
        CHECK(answers == wanted);
    }
    close_both();
}

static void a_callback_may_abandon_its_neighbour(void) {
    open_both();
    struct answer got[2] = {0};
    ask(&got[0], "127.0.0.1");
    ask(&got[1], "127.0.0.2");
    got[0].not = got[1].lookup;
    NEED(mj__loop_turn(loop, true) == 0);
    NEED(mj__loop_turn(loop, false) == 0);
    CHECK(got[0].calls == 1 && got[1].calls == 0);
    close_both();
}

static void close_races_with_threads(void) {
    for (size_t round = 0; round < 200; round++) {
        open_both();
        struct answer got[8] = {0};
        for (size_t i = 0; i < 8; i++) {
            ask(&got[i], i == 7 ? "127.0.0.1" : "localhost");
        }
        if (round % 4 == 0) {
            mj__resolve_abandon(got[round % 8].lookup);
            mj__resolve_abandon(got[7 - round % 8].lookup);
        }
        if (round % 3 == 0) {
            turns_until(1);
        }
        size_t called = answers;
        close_both();
        CHECK(answers == called);
    }
    /* What is left of them ends by itself; nothing may be leaked then. */
    struct mj__error error;
    loop = mj__loop_open(&error);
    NEED(loop != NULL);
    mj__time deadline = mj__clock() + 10 * MJ__SECOND;
    while (threads() > threads_at_start && mj__clock() < deadline) {
        NEED(mj__loop_turn(loop, false) == 0);
    }
    CHECK(threads() == threads_at_start);
    mj__loop_close(loop);
}

static int name_without_descriptor(void) {
    open_both();
    struct answer got = {0};
    struct mj__error error = {0};
    ask(&got, "127.0.0.1");
    int spare = dup(0);
    int status = mj__resolve(resolver, "localhost", 1, done, &got, &error) != NULL;
    status |= (error.kind != MJ__RESOLVE || error.phase != MJ__PHASE_RESOLVE) << 1;
    close(spare);
    turns_until(1);
    status |= (got.calls != 1) << 2;
    close_both();
    return status;
}

static void a_name_without_descriptor_is_an_error(void) {
    CHECK(check_with_descriptors(9, name_without_descriptor) == 0);
}

int main(void) {
    static const struct check checks[] = {
        {"addresses are answered in one turn, without a thread", addresses_need_one_turn},
        {"an address that is none says why", bad_addresses_say_why},
        {"names are answered, found or not", names_come_from_threads},
        {"any number of names takes at most 4 threads", many_names_take_four_threads},
        {"slow names hold up no address, and may be abandoned", addresses_pass_slow_names},
        {"close waits for no name", close_leaves_slow_names_behind},
        {"an abandoned look-up is never called back", abandoned_names_stay_silent},
        {"a callback may abandon its neighbour", a_callback_may_abandon_its_neighbour},
        {"a name without a descriptor is an error", a_name_without_descriptor_is_an_error},
        {"a resolver may close while its threads run", close_races_with_threads},
    };
    threads_at_start = threads();
    return check_all(checks, sizeof checks / sizeof *checks);
}
