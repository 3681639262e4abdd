#include "buffer.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum {
    CLASSES = 13,          /* 16 KiB, 32 KiB ... 64 MiB */
    KEPT_SMALL = 64,       /* at most so many of the smallest are kept for later, */
    KEPT_BYTES = 16 << 20, /* and of larger ones so many bytes */
    KEPT_LARGE = 64        /* and blocks */
};

struct free_block {
    struct free_block *next;
};

struct mj__pool {
    size_t *used, limit;
    struct free_block *free[CLASSES];
    size_t kept_small, kept_large;
    size_t kept_bytes; /* of the large ones */
};

/* The class whose blocks hold `want` bytes; CLASSES when none does. */
static unsigned class_of(size_t want, size_t *size) {
    unsigned index = 0;
    *size = MJ__BLOCK;
    while (*size < want && index < CLASSES) {
        *size *= 2;
        index++;
    }
    if (index == CLASSES) {
        *size = want;
    }
    return index;
}

struct mj__pool *mj__pool_open(size_t *used, size_t limit) {
    struct mj__pool *pool = calloc(1, sizeof *pool);
    if (pool != NULL) {
        pool->used = used;
        pool->limit = limit;
    }
    return pool;
}

void mj__pool_trim(struct mj__pool *pool) {
    for (unsigned i = 0; i < CLASSES; i++) {
        while (pool->free[i] != NULL) {
            struct free_block *block = pool->free[i];
            pool->free[i] = block->next;
            free(block);
        }
    }
    *pool->used -= pool->kept_small * MJ__BLOCK + pool->kept_bytes;
    pool->kept_small = pool->kept_large = pool->kept_bytes = 0;
}

void mj__pool_close(struct mj__pool *pool) {
    if (pool != NULL) {
        mj__pool_trim(pool);
        free(pool);
    }
}

static bool is_over(const struct mj__pool *pool, size_t more) {
    return pool->limit != 0 && (*pool->used > pool->limit || more > pool->limit - *pool->used);
}

static char *pop(struct mj__pool *pool, unsigned index) {
    struct free_block *block = pool->free[index];
    pool->free[index] = block->next;
    return (char *)block;
}

static void push(struct mj__pool *pool, unsigned index, char *bytes) {
    struct free_block *block = (struct free_block *)(void *)bytes;
    block->next = pool->free[index];
    pool->free[index] = block;
}

/* A connection that talks borrows and gives back small blocks in every turn: that comes first. */
char *mj__pool_take(struct mj__pool *pool, size_t want, size_t *size) {
    if (want <= MJ__BLOCK && pool->free[0] != NULL) {
        pool->kept_small--;
        *size = MJ__BLOCK;
        return pop(pool, 0);
    }
    unsigned index = class_of(want, size);
    if (index > 0 && index < CLASSES && pool->free[index] != NULL) {
        pool->kept_bytes -= *size;
        pool->kept_large--;
        return pop(pool, index);
    }
    if (is_over(pool, *size)) {
        mj__pool_trim(pool);
        if (is_over(pool, *size)) {
            return NULL;
        }
    }
    char *block = malloc(*size);
    *pool->used += block != NULL ? *size : 0;
    return block;
}

void mj__pool_give(struct mj__pool *pool, char *block, size_t size) {
    if (block == NULL) {
        return;
    }
    if (size == MJ__BLOCK && pool->kept_small < KEPT_SMALL) {
        pool->kept_small++;
        push(pool, 0, block);
        return;
    }
    size_t class_size;
    unsigned index = class_of(size, &class_size);
    if (index == 0 || index == CLASSES || pool->kept_bytes + size > KEPT_BYTES ||
        pool->kept_large == KEPT_LARGE) {
        *pool->used -= size;
        free(block);
        return;
    }
    pool->kept_bytes += size;
    pool->kept_large++;
    push(pool, index, block);
}

int mj__buffer_grow(struct mj__pool *pool, struct mj__buffer *buffer, size_t room) {
    if (buffer->data == NULL) {
        buffer->data = mj__pool_take(pool, room, &buffer->size);
        buffer->size = buffer->data != NULL ? buffer->size : 0;
        return buffer->data != NULL ? 0 : -1;
    }
    size_t length = mj__buffer_length(buffer);
    if (room > SIZE_MAX / 4 - length) {
        return -1;
    }
    /* Only while few bytes move: a nearly full one would move them all for a small gain. */
    if (length + room <= buffer->size && length <= buffer->size / 2) {
        memmove(buffer->data, mj__buffer_head(buffer), length);
        buffer->head = 0;
        buffer->tail = length;
        return 0;
    }
    size_t size;
    char *data = mj__pool_take(pool, length + room, &size);
    if (data == NULL) {
        return -1;
    }
    if (length > 0) {
        memcpy(data, mj__buffer_head(buffer), length);
    }
    mj__pool_give(pool, buffer->data, buffer->size);
    *buffer = (struct mj__buffer){.data = data, .tail = length, .size = size};
    return 0;
}
