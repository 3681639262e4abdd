/* url_parts.h: the rooms behind url.h. Internal: url*.c and lua_url.c alone include it.
 *
 * A part is a stretch of the URL as it was written; only raw parts are shown in messages. */
#ifndef MJ_URL_PARTS_H
#define MJ_URL_PARTS_H

#include "url.h"

struct mj__part {
    const char *at;
    size_t size;
};

/* The URL being read: where failures go, and the stretch that messages must not show, because
 * it is, or may be meant as, a password. */
struct mj__source {
    struct mj__error *error;
    struct mj__part secret;
};

/* ---- url_text.c ------------------------------------------------------------------------- */

enum { MJ__SHOWN = 72 };

/* The part in quotes, cut to fit, or a few words instead where it touches the secret. */
const char *mj__part_show(const struct mj__source *, struct mj__part, char out[MJ__SHOWN]);
/* Splits at the first `mark`: *head is what stands before it, *tail what follows. Without a
 * mark all is head, tail is empty and the answer false. */
bool mj__part_split(struct mj__part part, char mark, struct mj__part *head,
                    struct mj__part *tail);
bool mj__part_is(struct mj__part, const char *word);
/* A terminated copy with percent codes decoded; the caller frees it. NULL: *source->error tells
 * of a broken code, a CR, LF or NUL, or no memory. `what` names the part ("the password"). */
char *mj__part_decode(const struct mj__source *, struct mj__part, const char *what);
/* Digits only, at most `max`. False: something else. */
bool mj__part_number(struct mj__part, uint64_t max, uint64_t *number);
/* Sets no_memory; returns -1. */
int mj__source_no_memory(const struct mj__source *);

/* ---- url_host.c ------------------------------------------------------------------------- */

enum { MJ__HOST_MAX = 253 };

/* One `host[:port]` of the list. 0: *host is a copy the caller frees, *port is set. */
int mj__host_read(const struct mj__source *, struct mj__part, char **host, uint16_t *port);
/* Letters, digits, hyphens and underscores in labels of 1 to 63 bytes, 253 bytes in all. */
bool mj__host_is_name(struct mj__part);
/* True where both spell one host: capitals and the many ways to write one IPv6 address do not
 * count. */
bool mj__host_same(const char *a, const char *b);

/* ---- url_options.c ---------------------------------------------------------------------- */

enum mj__option_kind {
    MJ__FLAG,        /* bool */
    MJ__WORD,        /* an enum that counts up from 0, one word each */
    MJ__COUNT,       /* uint32_t */
    MJ__SIZE,        /* uint64_t, bytes */
    MJ__SPAN,        /* mj__time */
    MJ__SPAN_OR_OFF, /* mj__time, 0: off */
    MJ__TEXT,        /* char *, NULL: not given */
    MJ__NAME         /* the same, the name of a host */
};

/* An option is defined once, here: parsing, defaults and the Lua table all follow this. */
struct mj__option {
    const char *name;
    enum mj__option_kind kind;
    size_t offset; /* in struct mj__options */
    bool tls;      /* for memcache+tls:// only */
    uint64_t initial, min, max;
    const char *accepted;     /* what a value may be, after "write" */
    const char *const *words; /* of a flag or word, in the order of their numbers, then NULL */
};

extern const struct mj__option mj__options_table[];
extern const size_t mj__options_count;

/* The query, without its question mark. *options is filled with defaults first. -1: *error is
 * set; what *options holds by then still has to be freed. */
int mj__options_read(const struct mj__source *, struct mj__part query, bool has_query, bool tls,
                     struct mj__options *options);
/* A deep copy. -1: no memory, and *to owns nothing. */
int mj__options_copy(struct mj__options *to, const struct mj__options *from);
void mj__options_free(struct mj__options *);

#endif
