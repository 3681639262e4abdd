#include "requests.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_SLOTS = 16 }; /* kept by a connection that is idle */

/* Doubles the ring; a request keeps its sequence number. */
static int grow(struct mj__requests *queue) {
    uint32_t capacity = queue->capacity == 0 ? FIRST_SLOTS : queue->capacity * 2;
    struct mj__request *slots = malloc(capacity * sizeof *slots);
    if (slots == NULL) {
        return -1;
    }
    for (uint64_t seq = queue->head; seq != queue->tail; seq++) {
        slots[seq & (capacity - 1)] = *mj__requests_at(queue, seq);
    }
    free(queue->slots);
    queue->slots = slots;
    queue->capacity = capacity;
    return 0;
}

struct mj__request *mj__requests_push(struct mj__pool *pool, struct mj__requests *queue,
                                      const char *key, size_t key_size, const char *token,
                                      size_t token_size) {
    struct mj__buffer *keys = &queue->keys;
    if (mj__requests_count(queue) == queue->capacity && grow(queue) != 0) {
        return NULL;
    }
    if (mj__buffer_reserve(pool, keys, key_size + token_size) != 0) {
        return NULL;
    }
    struct mj__request *request = mj__requests_at(queue, queue->tail++);
    request->key_at = queue->keys_taken + mj__buffer_length(keys);
    request->key_size = (uint32_t)key_size;
    request->token_size = (uint8_t)token_size;
    if (key_size > 0) {
        memcpy(keys->data + keys->tail, key, key_size);
        keys->tail += key_size;
    }
    if (token_size > 0) {
        memcpy(keys->data + keys->tail, token, token_size);
        keys->tail += token_size;
    }
    return request;
}

void mj__requests_pop(struct mj__requests *queue) {
    queue->head++;
}

void mj__requests_forget_keys(struct mj__pool *pool, struct mj__requests *queue) {
    if (queue->head == queue->tail) {
        queue->keys_taken += mj__buffer_length(&queue->keys);
        mj__buffer_release(pool, &queue->keys);
        return;
    }
    uint64_t first = mj__requests_at(queue, queue->head)->key_at;
    mj__buffer_consume(&queue->keys, (size_t)(first - queue->keys_taken));
    queue->keys_taken = first;
}

const char *mj__requests_key(const struct mj__requests *queue, uint64_t key_at) {
    if (queue->keys.data == NULL) {
        return "";
    }
    return mj__buffer_head(&queue->keys) + (key_at - queue->keys_taken);
}

/* get_many: the key at `at` of a list separated by blanks is this one. */
static bool is_key(const char *list, size_t size, size_t at, const char *key, size_t key_size) {
    return size - at >= key_size && memcmp(list + at, key, key_size) == 0 &&
           (at + key_size == size || list[at + key_size] == ' ');
}

/* The same of the key that a blank, or the end of the list, at `end` is behind. */
static bool is_key_before(const char *list, size_t end, const char *key, size_t key_size) {
    return end >= key_size && memcmp(list + end - key_size, key, key_size) == 0 &&
           (end == key_size || list[end - key_size - 1] == ' ');
}

static size_t next_key(const char *list, size_t size, size_t at) {
    const char *blank = memchr(list + at, ' ', size - at);
    return blank != NULL ? (size_t)(blank - list) + 1 : size;
}

uint32_t mj__requests_count_keys(const char *list, size_t size) {
    uint32_t count = 0;
    for (size_t at = 0; at < size; at = next_key(list, size, at)) {
        count++;
    }
    return count;
}

/* Keys come in the order they were asked in, and a reply may be looked up more than once: when it
 * was not whole, and when it is. */
bool mj__requests_has_key(const struct mj__requests *queue, struct mj__request *request,
                          const char *key, size_t key_size) {
    const char *list = mj__requests_key(queue, request->key_at);
    size_t size = request->key_size;
    size_t start = request->cursor < size ? request->cursor : 0;
    size_t at = start;
    if (!is_key(list, size, at, key, key_size)) {
        if (request->cursor > 0 && is_key_before(list, request->cursor - 1, key, key_size)) {
            return true;
        }
        do {
            at = next_key(list, size, at);
            at = at < size ? at : 0;
            if (at == start) {
                return false;
            }
        } while (!is_key(list, size, at, key, key_size));
    }
    request->cursor = (uint32_t)(at + key_size) + 1;
    return true;
}

void mj__requests_release(struct mj__pool *pool, struct mj__requests *queue) {
    free(queue->slots);
    mj__buffer_release(pool, &queue->keys);
    *queue = (struct mj__requests){.keys_taken = queue->keys_taken};
}
