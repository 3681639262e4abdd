/* outgoing.h: the bytes on their way out of a connection, in one stream.
 *
 * Lines and small values are copied into one flat buffer; a large value goes by reference between
 * them, so that one writev sends all. */
#ifndef MJ_OUTGOING_H
#define MJ_OUTGOING_H

#include "buffer.h"

#include <stdint.h>
#include <sys/uio.h>

/* What keeps a value that goes by reference. */
struct mj__lent {
    const char *bytes;
    size_t size;
    void (*release)(void *arg); /* called once, when the bytes are no longer needed */
    void *arg;
};

struct mj__lent_slot {
    struct mj__lent lent;
    uint64_t at; /* its place in the stream */
};

struct mj__outgoing {
    struct mj__buffer flat;
    struct mj__lent_slot *slots; /* oldest first */
    size_t slot_head, slot_count, slot_capacity;
    uint64_t queued, written; /* bytes of the stream ever queued and ever written */
};

enum {
    MJ__COPY_MAX = 16384, /* a value up to this size is copied, a larger one lent */
    MJ__IOV_MAX = 16
};

static inline uint64_t mj__outgoing_pending(const struct mj__outgoing *out) {
    return out->queued - out->written;
}

/* Room for `size` flat bytes at the returned place (commit says how many were used), and for one
 * lent value. NULL: no memory. */
char *mj__outgoing_reserve(struct mj__pool *, struct mj__outgoing *, size_t size);
void mj__outgoing_commit(struct mj__outgoing *, size_t size);
/* Appends a value by reference; room for it was reserved. */
void mj__outgoing_lend(struct mj__outgoing *, const struct mj__lent *);
/* The next bytes to write; returns how many pieces, 0 when nothing is pending. */
int mj__outgoing_pieces(const struct mj__outgoing *, struct iovec *pieces);
/* `count` bytes were written: releases what they end. The block goes back when all is written. */
void mj__outgoing_wrote(struct mj__pool *, struct mj__outgoing *, size_t count);
/* Drops everything. */
void mj__outgoing_release(struct mj__pool *, struct mj__outgoing *);

#endif
