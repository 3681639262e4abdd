/* wire.h: the text of the wire: calls to bytes, bytes to replies.
 *
 * Pure: no sockets, no clock, no Lua, no libevent, no allocation. Encoders write into the caller's
 * buffer; parsers read one line at a time and point into the caller's bytes, so that a parse does
 * not depend on where the bytes were cut. */
#ifndef MJ_WIRE_H
#define MJ_WIRE_H

#include "command.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    MJ__LINE_MAX = 8192, /* a reply line of more bytes than this is malformed */
    MJ__OPAQUE_SIZE = 4, /* our own opaque tokens: 4 letters of 64 */
    /* Room an encoded line may need beside its key and its text. */
    MJ__LINE_ROOM = 192 + 4 * ((MJ__KEY_MAX + 2) / 3)
};

/* One reply line. Pointers go into the parsed bytes. */
struct mj__reply {
    enum mj__code code;
    bool has_value; /* a block of value_size bytes and CRLF follows the line */
    uint8_t marks;  /* W, X, Z and b, as enum mj__mark */
    bool has_cas;
    uint64_t value_size;
    const char *key; /* the key of VALUE or ME, the name of a STAT, or what a k flag echoed */
    size_t key_size;
    const char *opaque; /* the token of an O flag; NULL: none */
    size_t opaque_size;
    const char *text; /* meta: all flags; a classic word (STORED, END): itself; STAT: its value;
                         VERSION: its text; NUMBER: the digits;
                         an error: the server's words */
    size_t text_size;
    uint32_t flags; /* of a classic VALUE */
    uint64_t cas;   /* of a classic VALUE with has_cas */
};

enum mj__mark { MJ__WON = 1, MJ__STALE = 2, MJ__TAKEN = 4, MJ__KEY_ENCODED = 8 };

/* True for a stub that a lease left: it looks like a value of length 0, and is a miss. */
static inline bool mj__reply_is_stub(const struct mj__reply *reply) {
    return reply->code == MJ__VA && reply->value_size == 0 &&
           (reply->marks & (MJ__WON | MJ__TAKEN)) && !(reply->marks & MJ__STALE);
}

/* Parses one line at the start of `size` bytes. Returns its length with the CRLF, 0 when it is not
 * whole yet, -1 when no server would say that; *reply counts only after a length. */
int mj__meta_parse(const char *bytes, size_t size, struct mj__reply *reply);
int mj__ascii_parse(const char *bytes, size_t size, struct mj__reply *reply);

/* Write a call's line with its CRLF and return its length; a block, if the call has one, is the
 * caller's to append. out has room for MJ__LINE_ROOM + key_size + text_size bytes.
 * opaque: a token of MJ__OPAQUE_SIZE bytes to ask back, or NULL. */
size_t mj__meta_encode(char *out, const struct mj__call *call, const char *opaque);
size_t mj__ascii_encode(char *out, const struct mj__call *call);

/* True when text is the base64 of these bytes (at most MJ__KEY_MAX). */
bool mj__base64_is(const char *text, size_t text_size, const char *bytes, size_t size);
/* The next flag of a meta reply (or request) from *text on; NULL at the end. Moves *text. */
const char *mj__next_token(const char **text, const char *end, size_t *size);
/* Digits only, no sign, at most 2^64 - 1. */
bool mj__parse_number(const char *bytes, size_t size, uint64_t *number);
/* Decimal digits of number to out (20 bytes at most); returns how many. */
size_t mj__write_number(char *out, uint64_t number);
/* An ERROR, CLIENT_ERROR or SERVER_ERROR line of either protocol, without its line end: true and
 * *reply filled. */
bool mj__error_line(const char *line, size_t size, struct mj__reply *reply);
/* Finds a line end: the length with CRLF, 0 not whole yet, -1 too long or a bare LF. */
int mj__line_length(const char *bytes, size_t size);

#endif
