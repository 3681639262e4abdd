/* server.h: a request as a server reads it, and what an honest server says to it.
 *
 * Shares nothing with the encoders: a request that is not one sound command, line for line, is a
 * finding. */
#ifndef SERVER_H
#define SERVER_H

#include "words.h"

enum { ASKED_WORDS = 24 }; /* more are counted, not kept */

struct asked {
    struct word line; /* without its CRLF */
    struct word words[ASKED_WORDS];
    size_t count;
    struct word block; /* at NULL: it has none */
    bool meta;
};

/* Reads the request at the start of bytes: its length with its block, 0 when it is not whole. */
size_t server_read(const char *bytes, size_t size, struct asked *);
/* It has this meta flag (quiet: also the classic noreply). */
bool asked_flag(const struct asked *, char letter);
bool asked_quiet(const struct asked *);
/* memcached would take all its meta flags: it knows them, each comes once, and none is too long. */
bool asked_is_sound(const struct asked *);

enum answer { YES, NO, SERVER_FAILS, CLIENT_ERRS };

/* Adds the reply, or nothing where a server is silent. Values have this many bytes at least. */
void server_answer(struct text *, const struct asked *, enum answer, size_t value_size);

/* ---- replies, read as a server's words ---------------------------------------------------- */

/* Reads the reply to this request at the start of bytes, and adds what its caller is to be told,
 * as told_answer would: its length, or 0 when it is not whole or makes no sense (then what could
 * be read was added). A reply of no bytes is silence. */
size_t server_reply(struct text *told, const struct asked *, const char *bytes, size_t size);
/* What silence tells. */
void server_silence(struct text *told, const struct asked *);

#endif
