#include "buffer.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum {
    CLASSES = 13,          /* 16 KiB, 32 KiB ... 64 MiB */
    KEPT_BYTES = 16 << 20, /* at most this much is kept for later */
    KEPT_BLOCKS = 64
};

struct free_block {
    struct free_block *next;
};

struct mj__pool {
    size_t *used, limit;
    struct free_block *free[CLASSES];
    size_t kept_bytes;
    size_t kept_blocks;
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
    *pool->used -= pool->kept_bytes;
    pool->kept_bytes = 0;
    pool->kept_blocks = 0;
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

char *mj__pool_take(struct mj__pool *pool, size_t want, size_t *size) {
    unsigned index = class_of(want, size);
    if (index < CLASSES && pool->free[index] != NULL) {
        struct free_block *block = pool->free[index];
        pool->free[index] = block->next;
        pool->kept_bytes -= *size;
        pool->kept_blocks--;
        return (char *)block;
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
    size_t class_size;
    unsigned index = class_of(size, &class_size);
    if (index == CLASSES || pool->kept_bytes + size > KEPT_BYTES ||
        pool->kept_blocks == KEPT_BLOCKS) {
        *pool->used -= size;
        free(block);
        return;
    }
    struct free_block *kept = (struct free_block *)(void *)block;
    kept->next = pool->free[index];
    pool->free[index] = kept;
    pool->kept_bytes += size;
    pool->kept_blocks++;
}

int mj__buffer_reserve(struct mj__pool *pool, struct mj__buffer *buffer, size_t room) {
    size_t length = mj__buffer_length(buffer);
    if (buffer->size - buffer->tail >= room) {
        return 0;
    }
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

void mj__buffer_consume(struct mj__buffer *buffer, size_t count) {
    buffer->head += count;
    if (buffer->head == buffer->tail) {
        buffer->head = 0;
        buffer->tail = 0;
    }
}

void mj__buffer_release(struct mj__pool *pool, struct mj__buffer *buffer) {
    mj__pool_give(pool, buffer->data, buffer->size);
    *buffer = (struct mj__buffer){0};
}
