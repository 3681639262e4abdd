/* buffer.h: memory that connections borrow, and flat buffers made of it.
 *
 * A pool belongs to one runtime. A block goes back when its borrower has nothing in it, so that
 * an idle connection holds none; large blocks are kept for the next large value, up to a bound,
 * because fresh pages cost more than the read that fills them. */
#ifndef MJ_BUFFER_H
#define MJ_BUFFER_H

#include <stdbool.h>
#include <stddef.h>

enum { MJ__BLOCK = 16384 }; /* the smallest block, and a connection's receive buffer */

/* The smallest blocks that wait to be lent again. They come and go in every turn of a connection
 * that talks, so both are done in place. */
struct mj__spare {
    struct mj__spare *next;
};

enum { MJ__SPARES_MAX = 64 };

struct mj__pool {
    struct mj__spare *spare;
    size_t spares;
    struct mj__large_blocks *large;
    size_t *used, limit;
};

/* Counts every block it holds or lends in *used, which others may count in too, and lends none that
 * would take it past `limit` (0: no limit). NULL: no memory. */
struct mj__pool *mj__pool_open(size_t *used, size_t limit);
/* Frees the blocks it keeps; those still lent must not be given back afterwards. */
void mj__pool_close(struct mj__pool *);
/* Frees the blocks it keeps for later: somebody else is short of memory. */
void mj__pool_trim(struct mj__pool *);
/* Lends a block of at least `want` bytes; *size says how many. NULL: no memory. */
char *mj__pool_take(struct mj__pool *, size_t want, size_t *size);
/* `size` as take gave it. NULL is harmless. */
void mj__pool_give(struct mj__pool *, char *block, size_t size);

static inline char *mj__pool_take_spare(struct mj__pool *pool) {
    struct mj__spare *block = pool->spare;
    pool->spare = block->next;
    pool->spares--;
    return (char *)block;
}

static inline void mj__pool_give_spare(struct mj__pool *pool, char *bytes) {
    struct mj__spare *block = (struct mj__spare *)(void *)bytes;
    block->next = pool->spare;
    pool->spare = block;
    pool->spares++;
}

/* Bytes from head to tail wait in a block of `size`. All zero is empty. */
struct mj__buffer {
    char *data;
    size_t head, tail, size;
};

static inline size_t mj__buffer_length(const struct mj__buffer *buffer) {
    return buffer->tail - buffer->head;
}

static inline char *mj__buffer_head(const struct mj__buffer *buffer) {
    return buffer->data + buffer->head;
}

/* Moves the bytes to the front or to a larger block: see mj__buffer_reserve. */
int mj__buffer_grow(struct mj__pool *, struct mj__buffer *, size_t room);

/* Makes room for `room` bytes behind the tail, moving the bytes as needed. -1: no memory, nothing
 * changed. */
static inline int mj__buffer_reserve(struct mj__pool *pool, struct mj__buffer *buffer,
                                     size_t room) {
    if (buffer->size - buffer->tail >= room) {
        return 0;
    }
    if (buffer->data == NULL && room <= MJ__BLOCK && pool->spare != NULL) {
        buffer->data = mj__pool_take_spare(pool);
        buffer->size = MJ__BLOCK;
        return 0;
    }
    return mj__buffer_grow(pool, buffer, room);
}

/* Takes bytes off the front; an empty buffer begins at the front of its block again. */
static inline void mj__buffer_consume(struct mj__buffer *buffer, size_t count) {
    buffer->head += count;
    if (buffer->head == buffer->tail) {
        buffer->head = buffer->tail = 0;
    }
}

/* Gives the block back, whatever is in it. */
static inline void mj__buffer_release(struct mj__pool *pool, struct mj__buffer *buffer) {
    if (buffer->size == MJ__BLOCK && pool->spares < MJ__SPARES_MAX) {
        mj__pool_give_spare(pool, buffer->data);
    } else {
        mj__pool_give(pool, buffer->data, buffer->size);
    }
    *buffer = (struct mj__buffer){0};
}

#endif
