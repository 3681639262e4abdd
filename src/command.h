/* command.h: the one table of every verb: what it takes, what it carries, what each reply means.
 *
 * The encoders, the connection and the Lua side all read it, so that a command is defined once. */
#ifndef MJ_COMMAND_H
#define MJ_COMMAND_H

#include "error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum mj__command_id {
    MJ__GET,
    MJ__GAT,
    MJ__ITEM,
    MJ__SET,
    MJ__ADD,
    MJ__REPLACE,
    MJ__APPEND,
    MJ__PREPEND,
    MJ__CAS,
    MJ__DELETE,
    MJ__TOUCH,
    MJ__INCR,
    MJ__DECR,
    MJ__META_COMMAND,
    MJ__GET_MANY,
    MJ__NOOP,
    MJ__VERSION,
    MJ__STATS,
    MJ__FLUSH_ALL,
    MJ__LOGIN,
    MJ__COMMANDS
};

/* The shape of the request, which is what an encoder switches on. */
enum mj__verb {
    MJ__VERB_READ,
    MJ__VERB_STORE,
    MJ__VERB_REMOVE,
    MJ__VERB_TOUCH,
    MJ__VERB_COUNT,
    MJ__VERB_META,
    MJ__VERB_MANY,
    MJ__VERB_PLAIN
};

/* What a server can say, one vocabulary for both protocols: STORED, DELETED, TOUCHED and OK are HD,
 * VALUE is VA, END is EN, NOT_FOUND NF, NOT_STORED NS, EXISTS EX. */
enum mj__code {
    MJ__HD,
    MJ__VA,
    MJ__EN,
    MJ__NF,
    MJ__NS,
    MJ__EX,
    MJ__MN,
    MJ__ME,
    MJ__NUMBER,       /* a line of digits */
    MJ__VERSION_LINE, /* VERSION text */
    MJ__STAT,         /* STAT name value */
    MJ__RESET_LINE,
    MJ__SAYS_ERROR, /* ERROR, CLIENT_ERROR and SERVER_ERROR: acceptable to every command */
    MJ__SAYS_CLIENT_ERROR,
    MJ__SAYS_SERVER_ERROR
};

#define MJ__CODE(code) (1u << (code))

/* What a call may carry beside its key; also the bits of `mj__call.given`. */
enum mj__argument {
    MJ__WITH_KEY = 1 << 0,
    MJ__WITH_VALUE = 1 << 1,
    MJ__WITH_TTL = 1 << 2,
    MJ__WITH_FLAGS = 1 << 3,
    MJ__WITH_CAS = 1 << 4,
    MJ__WITH_DELTA = 1 << 5,
    MJ__WITH_INITIAL = 1 << 6,
    MJ__WITH_QUIET = 1 << 7,
    MJ__WITH_TOUCH = 1 << 8, /* item: { touch = ttl } */
    MJ__WITH_INTO = 1 << 9,  /* get: { into = buf } */
};

struct mj__command {
    const char *name;  /* as scripts and errors call it */
    const char *ascii; /* the classic protocol's word */
    enum mj__verb verb;
    char mode;        /* of a meta ms or ma; 0: the default */
    uint16_t takes;   /* arguments in order of the call */
    uint16_t options; /* what its options table may hold */
    bool idempotent;  /* may be repeated though it may have happened */
    uint16_t answers; /* codes that are an answer, over either protocol */
    uint16_t yes;     /* those of them that mean yes; the rest is the server's no */
};

/* By id; constant. */
const struct mj__command *mj__command(enum mj__command_id id);

enum { MJ__KEY_MAX = 250, MJ__BINARY_KEY_MAX = 186 };

/* One call, ready to be put on the wire. Everything is borrowed for the length of a submit. */
struct mj__call {
    enum mj__command_id id;
    uint16_t given; /* bits of enum mj__argument: which of the fields below count */
    const char *key;
    size_t key_size;
    bool key_encoded; /* it is not plain, and goes base64-encoded over meta */
    const char *value;
    size_t value_size;
    int64_t ttl; /* as the protocol wants it: see mj__exptime */
    uint32_t flags;
    uint64_t cas, delta, initial;
    const char *text; /* meta: its flags, separated by blanks; stats: the section; get_many: the
                         keys, separated by blanks */
    size_t text_size;
    char meta[2]; /* meta: "mg", "ms", ... */
};

/* A key that may go on the wire as it is. */
bool mj__key_plain(const char *key, size_t size);
/* 0; or -1 with bad_key, whose text says what is wrong with it. With `binary` any 1 to 186 bytes
 * are a key, and longer ones while they are plain; *encoded: it is not plain. */
int mj__key_check(const char *key, size_t size, bool binary, bool *encoded,
                  struct mj__error *error);

/* Seconds from now to what the protocol wants: 0 never; up to 30 days relative; more as a moment
 * (`unix_now` + seconds); negative: -1. Fractions are rounded up. -1: *error is bad_value (not a
 * number, or a moment past 2^31 - 1). */
int mj__exptime(double seconds, int64_t unix_now, int64_t *exptime, struct mj__error *error);

#endif
