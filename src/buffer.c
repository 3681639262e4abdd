#include "buffer.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum {
    CLASSES = 12,          /* 32 KiB, 64 KiB ... 64 MiB */
    KEPT_BYTES = 16 << 20, /* at most this much is kept for later, */
    KEPT_BLOCKS = 64       /* in so many blocks */
};

struct free_block {
    struct free_block *next;
};

struct mj__large_blocks {
    struct free_block *free[CLASSES];
    size_t bytes, blocks;
};

/* The class whose blocks hold `want` bytes; CLASSES when none does. */
static unsigned class_of(size_t want, size_t *size) {
    unsigned index = 0;
    *size = 2 * MJ__BLOCK;
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
    struct mj__pool *pool = calloc(1, sizeof *pool + sizeof *pool->large);
    if (pool != NULL) {
        pool->large = (struct mj__large_blocks *)(pool + 1);
        pool->used = used;
        pool->limit = limit;
    }
    return pool;
}

void mj__pool_trim(struct mj__pool *pool) {
    struct mj__large_blocks *large = pool->large;
    for (unsigned i = 0; i < CLASSES; i++) {
        while (large->free[i] != NULL) {
            struct free_block *block = large->free[i];
            large->free[i] = block->next;
            free(block);
        }
    }
    *pool->used -= large->bytes + pool->spares * MJ__BLOCK;
    while (pool->spares > 0) {
        free(mj__pool_take_spare(pool));
    }
    large->bytes = 0;
    large->blocks = 0;
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

static char *make_block(struct mj__pool *pool, size_t size) {
    if (is_over(pool, size)) {
        mj__pool_trim(pool);
        if (is_over(pool, size)) {
            return NULL;
        }
    }
    char *block = malloc(size);
    *pool->used += block != NULL ? size : 0;
    return block;
}

char *mj__pool_take(struct mj__pool *pool, size_t want, size_t *size) {
    if (want <= MJ__BLOCK) {
        *size = MJ__BLOCK;
        return pool->spare != NULL ? mj__pool_take_spare(pool) : make_block(pool, MJ__BLOCK);
    }
    struct mj__large_blocks *large = pool->large;
    unsigned index = class_of(want, size);
    if (index == CLASSES || large->free[index] == NULL) {
        return make_block(pool, *size);
    }
    struct free_block *block = large->free[index];
    large->free[index] = block->next;
    large->bytes -= *size;
    large->blocks--;
    return (char *)block;
}

void mj__pool_give(struct mj__pool *pool, char *block, size_t size) {
    struct mj__large_blocks *large = pool->large;
    size_t class_size;
    if (block == NULL) {
        return;
    }
    if (size == MJ__BLOCK && pool->spares < MJ__SPARES_MAX) {
        mj__pool_give_spare(pool, block);
        return;
    }
    unsigned index = class_of(size, &class_size);
    if (size == MJ__BLOCK || index == CLASSES || large->bytes + size > KEPT_BYTES ||
        large->blocks == KEPT_BLOCKS) {
        *pool->used -= size;
        free(block);
        return;
    }
    struct free_block *kept = (struct free_block *)(void *)block;
    kept->next = large->free[index];
    large->free[index] = kept;
    large->bytes += size;
    large->blocks++;
}

int mj__buffer_grow(struct mj__pool *pool, struct mj__buffer *buffer, size_t room) {
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
