#include "command.h"

#include <math.h>
#include <string.h>

enum {
    STORING = MJ__WITH_TTL | MJ__WITH_FLAGS | MJ__WITH_QUIET,
    STORED = MJ__CODE(MJ__HD) | MJ__CODE(MJ__NS),
    HIT = MJ__CODE(MJ__VA) | MJ__CODE(MJ__EN),
    COUNTED = MJ__CODE(MJ__VA) | MJ__CODE(MJ__NUMBER)
};

#define YES MJ__CODE(MJ__HD)
#define NO_ITEM MJ__CODE(MJ__NF)
#define KEY_VALUE (MJ__WITH_KEY | MJ__WITH_VALUE)

static const struct mj__command commands[MJ__COMMANDS] = {
    [MJ__GET] = {"get", "get", MJ__VERB_READ, 0, MJ__WITH_KEY, MJ__WITH_INTO, true, HIT,
                 MJ__CODE(MJ__VA)},
    [MJ__GAT] = {"gat", "gat", MJ__VERB_READ, 0, MJ__WITH_KEY | MJ__WITH_TTL, MJ__WITH_INTO,
                 true, HIT, MJ__CODE(MJ__VA)},
    [MJ__ITEM] = {"item", "gets", MJ__VERB_READ, 0, MJ__WITH_KEY, MJ__WITH_TOUCH, true, HIT,
                  MJ__CODE(MJ__VA)},
    [MJ__SET] = {"set", "set", MJ__VERB_STORE, 0, KEY_VALUE, STORING, true, STORED, YES},
    [MJ__ADD] = {"add", "add", MJ__VERB_STORE, 'E', KEY_VALUE, STORING, false, STORED, YES},
    [MJ__REPLACE] = {"replace", "replace", MJ__VERB_STORE, 'R', KEY_VALUE, STORING, false,
                     STORED, YES},
    [MJ__APPEND] = {"append", "append", MJ__VERB_STORE, 'A', KEY_VALUE, STORING, false, STORED,
                    YES},
    [MJ__PREPEND] = {"prepend", "prepend", MJ__VERB_STORE, 'P', KEY_VALUE, STORING, false,
                     STORED, YES},
    [MJ__CAS] = {"cas", "cas", MJ__VERB_STORE, 0, KEY_VALUE | MJ__WITH_CAS, STORING, false,
                 STORED | MJ__CODE(MJ__EX) | NO_ITEM, YES},
    [MJ__DELETE] = {"delete", "delete", MJ__VERB_REMOVE, 0, MJ__WITH_KEY, MJ__WITH_QUIET, true,
                    YES | NO_ITEM, YES},
    [MJ__TOUCH] = {"touch", "touch", MJ__VERB_TOUCH, 0, MJ__WITH_KEY | MJ__WITH_TTL, 0, true,
                   YES | NO_ITEM | MJ__CODE(MJ__EN), YES},
    [MJ__INCR] = {"incr", "incr", MJ__VERB_COUNT, 'I', MJ__WITH_KEY | MJ__WITH_DELTA,
                  MJ__WITH_INITIAL | MJ__WITH_TTL | MJ__WITH_QUIET, false, COUNTED | NO_ITEM,
                  COUNTED},
    [MJ__DECR] = {"decr", "decr", MJ__VERB_COUNT, 'D', MJ__WITH_KEY | MJ__WITH_DELTA,
                  MJ__WITH_INITIAL | MJ__WITH_TTL | MJ__WITH_QUIET, false, COUNTED | NO_ITEM,
                  COUNTED},
    [MJ__META_COMMAND] = {"meta", NULL, MJ__VERB_META, 0, MJ__WITH_KEY, 0, false,
                          MJ__CODE(MJ__HD) | MJ__CODE(MJ__VA) | MJ__CODE(MJ__EN) |
                              MJ__CODE(MJ__NF) | MJ__CODE(MJ__NS) | MJ__CODE(MJ__EX),
                          0},
    [MJ__GET_MANY] = {"get_many", "get", MJ__VERB_MANY, 0, 0, 0, true, HIT, MJ__CODE(MJ__VA)},
    [MJ__NOOP] = {"noop", "version", MJ__VERB_PLAIN, 0, 0, 0, true,
                  MJ__CODE(MJ__MN) | MJ__CODE(MJ__VERSION_LINE),
                  MJ__CODE(MJ__MN) | MJ__CODE(MJ__VERSION_LINE)},
    [MJ__VERSION] = {"version", "version", MJ__VERB_PLAIN, 0, 0, 0, true,
                     MJ__CODE(MJ__VERSION_LINE), MJ__CODE(MJ__VERSION_LINE)},
    [MJ__STATS] = {"stats", "stats", MJ__VERB_PLAIN, 0, 0, 0, true,
                   MJ__CODE(MJ__STAT) | MJ__CODE(MJ__EN) | MJ__CODE(MJ__RESET_LINE) |
                       MJ__CODE(MJ__HD),
                   MJ__CODE(MJ__STAT)},
    [MJ__FLUSH_ALL] = {"flush_all", "flush_all", MJ__VERB_PLAIN, 0, MJ__WITH_TTL, 0, false, YES,
                       YES},
    [MJ__LOGIN] = {"login", "set", MJ__VERB_STORE, 0, KEY_VALUE, 0, true, STORED, YES},
};

const struct mj__command *mj__command(enum mj__command_id id) {
    return &commands[id];
}

/* Blanks, control bytes and DEL are 0 to 32 and 127; everything above is a key's own business. */
static bool plain_byte(unsigned char byte) {
    return byte > 0x20 && byte != 0x7f;
}

/* Eight bytes at once: true when none is below 0x21 or 0x7f. Bytes above 127 pass, as they must. */
static bool plain_word(uint64_t word) {
    const uint64_t ones = UINT64_C(0x0101010101010101), high = ones * 0x80;
    uint64_t below = (word - ones * 0x21) & ~word; /* high bit: byte < 0x21 */
    uint64_t del = word ^ (ones * 0x7f);
    uint64_t is_del = (del - ones) & ~del; /* high bit: byte == 0x7f */
    return ((below | is_del) & high) == 0;
}

bool mj__key_plain(const char *key, size_t size) {
    size_t at = 0;
    for (; at + 8 <= size; at += 8) {
        uint64_t word;
        memcpy(&word, key + at, 8);
        if (!plain_word(word)) {
            break; /* the byte loop decides: a borrow may have marked a good byte */
        }
    }
    for (; at < size; at++) {
        if (!plain_byte((unsigned char)key[at])) {
            return false;
        }
    }
    return size >= 1 && size <= MJ__KEY_MAX;
}

int mj__key_check(const char *key, size_t size, bool binary, bool *encoded,
                  struct mj__error *error) {
    *encoded = false;
    if (mj__key_plain(key, size)) {
        return 0;
    }
    if (size == 0) {
        return mj__fail(error, MJ__BAD_KEY, "a key is empty; a key has 1 to %d bytes",
                        MJ__KEY_MAX);
    }
    if (binary) {
        if (size <= MJ__BINARY_KEY_MAX) {
            *encoded = true;
            return 0;
        }
        return mj__fail(error, MJ__BAD_KEY,
                        "a binary key has %zu bytes; at most %d fit once it is base64-encoded",
                        size, MJ__BINARY_KEY_MAX);
    }
    if (size > MJ__KEY_MAX) {
        return mj__fail(error, MJ__BAD_KEY, "a key has %zu bytes; the protocol allows %d", size,
                        MJ__KEY_MAX);
    }
    size_t at = 0;
    while (plain_byte((unsigned char)key[at])) {
        at++;
    }
    return mj__fail(
        error, MJ__BAD_KEY,
        "a key has the byte 0x%02x at position %zu; blanks and control bytes are not "
        "allowed (binary_keys=true encodes them)",
        (unsigned char)key[at], at + 1);
}

int mj__exptime(double seconds, int64_t unix_now, int64_t *exptime, struct mj__error *error) {
    const double relative_max = 30.0 * 24 * 60 * 60;
    const double moment_max = 2147483647.0;
    if (isnan(seconds) || isinf(seconds)) {
        return mj__fail(error, MJ__BAD_VALUE, "ttl is %s; it is a number of seconds",
                        isnan(seconds) ? "not a number" : "infinite (0 never expires)");
    }
    if (seconds < 0) {
        *exptime = -1;
        return 0;
    }
    double whole = ceil(seconds);
    if (whole <= relative_max) {
        *exptime = (int64_t)whole;
        return 0;
    }
    if (whole + (double)unix_now > moment_max) {
        return mj__fail(
            error, MJ__BAD_VALUE,
            "ttl is %.0f s and would end after 2^31 - 1, where servers wrap it around "
            "(0 never expires)",
            seconds);
    }
    *exptime = unix_now + (int64_t)whole;
    return 0;
}
