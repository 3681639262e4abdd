/* requests.h: what is outstanding on a connection, first in first out.
 *
 * A ring of requests by sequence number, and beside it their keys, so that every failure can name
 * its key and every reply can be held against it, with no allocation per request. */
#ifndef MJ_REQUESTS_H
#define MJ_REQUESTS_H

#include "buffer.h"
#include "command.h"
#include "span.h"
#include "wire.h"

#include <stdbool.h>
#include <stdint.h>

struct mj__answer;
struct mj__sink;

/* Called with each answer to a request: once, or, while answer->more, several times. */
typedef void mj__done_fn(void *arg, uint32_t index, const struct mj__answer *answer);

enum mj__request_bit {
    MJ__ASCII_REPLY = 1 << 0, /* its reply is in the classic protocol's words */
    MJ__QUIET = 1 << 1,       /* silence is an answer */
    MJ__BLOCK_SENT = 1 << 2,  /* it carried a data block */
    MJ__OPAQUE = 1 << 3,      /* our own token comes back */
    MJ__LOOSE = 1 << 4, /* a missing token is no fault, even on VA (a script's own meta) */
    MJ__USER_OPAQUE = 1 << 5,  /* the script's own token comes back */
    MJ__USER_KEY = 1 << 6,     /* the script asked for the key back */
    MJ__META_READ = 1 << 7,    /* a script's mg: silence is EN, not HD */
    MJ__META_ME = 1 << 8,      /* a script's me: ME or EN comes back, without flags */
    MJ__META_MN = 1 << 9,      /* a script's mn: a noop */
    MJ__USER_ENCODED = 1 << 10 /* the script's key is base64 */
};

struct mj__request {
    mj__done_fn *done; /* NULL: nobody waits (quiet, abandoned, internal) */
    void *arg;
    struct mj__sink *sink; /* where a large value goes; NULL: a block */
    uint64_t out_end;      /* place in the outgoing stream just behind its last byte */
    mj__time deadline;     /* MJ__NEVER until the flush after its submit */
    uint64_t key_at; /* place of its key in the stream of keys; then the script's own token */
    uint32_t key_size;
    uint32_t index;  /* the caller's, handed to done */
    uint32_t cursor; /* get_many: behind the last of its keys that a VALUE had, and the blank */
    uint32_t left; /* of an answer of several lines: get_many: values, stats: bytes of lines */
    uint16_t bits;
    uint8_t id;         /* enum mj__command_id */
    uint8_t token_size; /* of the script's own token */
    char opaque[MJ__OPAQUE_SIZE];
};

struct mj__requests {
    struct mj__request *slots;
    uint32_t capacity;   /* a power of two, or 0 */
    uint64_t head, tail; /* sequence numbers: oldest outstanding, next to be given */
    struct mj__buffer keys;
    uint64_t keys_taken; /* bytes of keys ever taken off the front */
};

static inline uint64_t mj__requests_count(const struct mj__requests *queue) {
    return queue->tail - queue->head;
}

static inline struct mj__request *mj__requests_at(const struct mj__requests *queue,
                                                  uint64_t seq) {
    return &queue->slots[seq & (queue->capacity - 1)];
}

/* Appends a request with these key bytes (and token). Its other fields are the caller's to set.
 * NULL: no memory, nothing changed. Pointers to requests and keys move. */
struct mj__request *mj__requests_push(struct mj__pool *, struct mj__requests *, const char *key,
                                      size_t key_size, const char *token, size_t token_size);
/* Takes the oldest off; its key stays readable until mj__requests_forget_keys. */
void mj__requests_pop(struct mj__requests *);
/* Gives up the keys of all requests that were popped, and the block when none is left. */
void mj__requests_forget_keys(struct mj__pool *, struct mj__requests *);
const char *mj__requests_key(const struct mj__requests *, uint64_t key_at);
/* get_many: how many keys a list separated by blanks has. */
uint32_t mj__requests_count_keys(const char *list, size_t size);
/* get_many: true when key is one of those the request asked for. Cheap while they come in the
 * order they were asked in. */
bool mj__requests_has_key(const struct mj__requests *, struct mj__request *, const char *key,
                          size_t key_size);
void mj__requests_release(struct mj__pool *, struct mj__requests *);

#endif
