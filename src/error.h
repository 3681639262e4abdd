/* error.h: what went wrong, as a value.
 *
 * Inside, a failure is a small negative number or a `struct mj__error`; lua_error.c alone turns
 * one into a Lua table. Nothing here allocates. */
#ifndef MJ_ERROR_H
#define MJ_ERROR_H

#include <stddef.h>

enum mj__kind {
    MJ__KIND_NONE,
    MJ__BAD_URL,
    MJ__BAD_KEY,
    MJ__BAD_VALUE,
    MJ__TOO_LARGE,
    MJ__UNSUPPORTED,
    MJ__RESOLVE,
    MJ__CONNECT_REFUSED,
    MJ__CONNECT_TIMEOUT,
    MJ__UNREACHABLE,
    MJ__TLS,
    MJ__AUTH,
    MJ__TIMEOUT,
    MJ__CLOSED,
    MJ__RESET,
    MJ__PROTOCOL,
    MJ__CLIENT_ERROR,
    MJ__SERVER_ERROR,
    MJ__DOWN,
    MJ__NO_SERVER,
    MJ__CANCELLED,
    MJ__NO_MEMORY,
    MJ__KINDS
};

/* How far the request had come when it failed. */
enum mj__phase {
    MJ__PHASE_NONE,
    MJ__PHASE_RESOLVE,
    MJ__PHASE_CONNECT,
    MJ__PHASE_HANDSHAKE,
    MJ__PHASE_QUEUE,
    MJ__PHASE_WRITE,
    MJ__PHASE_READ
};

/* Whether the server may have acted on the request: no byte of it left this process, some or all
 * may have arrived, or the server's own answer proves that it did arrive. */
enum mj__sent { MJ__SENT_NO, MJ__SENT_MAYBE, MJ__SENT_YES };

enum { MJ__ERROR_TEXT = 256 };

struct mj__error {
    enum mj__kind kind;
    enum mj__phase phase;
    enum mj__sent sent;
    char text[MJ__ERROR_TEXT]; /* one sentence without the server's name, always terminated */
};

/* The words scripts see: "bad_url", "connect", "maybe". Never NULL; a kind or phase of NONE is "". */
const char *mj__kind_name(enum mj__kind kind);
const char *mj__phase_name(enum mj__phase phase);
const char *mj__sent_name(enum mj__sent sent);

/* Sets kind and text (printf-like, cut to fit; bytes that are not printable ASCII are shown as
 * \xNN), phase NONE and sent NO. Returns -1, so that a function can end with it. */
int mj__fail(struct mj__error *error, enum mj__kind kind, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Writes bytes for a person to read: printable ASCII as it is, the rest as \xNN, cut with "..."
 * so that it fits. out is always terminated. Returns out. */
const char *mj__printable(char *out, size_t out_size, const char *bytes, size_t size);

#endif
