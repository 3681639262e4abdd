#include "outgoing.h"

#include <stdlib.h>
#include <string.h>

static struct mj__lent_slot *slot_at(const struct mj__outgoing *out, size_t index) {
    return &out->slots[(out->slot_head + index) % out->slot_capacity];
}

static int grow_slots(struct mj__outgoing *out) {
    size_t capacity = out->slot_capacity == 0 ? 4 : out->slot_capacity * 2;
    struct mj__lent_slot *slots = malloc(capacity * sizeof *slots);
    if (slots == NULL) {
        return -1;
    }
    for (size_t i = 0; i < out->slot_count; i++) {
        slots[i] = *slot_at(out, i);
    }
    free(out->slots);
    out->slots = slots;
    out->slot_head = 0;
    out->slot_capacity = capacity;
    return 0;
}

char *mj__outgoing_reserve(struct mj__pool *pool, struct mj__outgoing *out, size_t size) {
    if (out->slot_count == out->slot_capacity && grow_slots(out) != 0) {
        return NULL;
    }
    if (mj__buffer_reserve(pool, &out->flat, size) != 0) {
        return NULL;
    }
    return out->flat.data + out->flat.tail;
}

void mj__outgoing_commit(struct mj__outgoing *out, size_t size) {
    out->flat.tail += size;
    out->queued += size;
}

void mj__outgoing_lend(struct mj__outgoing *out, const struct mj__lent *lent) {
    struct mj__lent_slot *slot = slot_at(out, out->slot_count++);
    slot->lent = *lent;
    slot->at = out->queued;
    out->queued += lent->size;
}

/* Nearly always there is no lent value. Else it walks the stream from `written` on: flat bytes up to the next lent value, then that value. */
int mj__outgoing_pieces(const struct mj__outgoing *out, struct iovec *pieces) {
    uint64_t at = out->written;
    char *flat = out->flat.data + out->flat.head;
    int count = 0;
    if (out->slot_count == 0 && at < out->queued) {
        pieces[0] = (struct iovec){flat, (size_t)(out->queued - at)};
        return 1;
    }
    for (size_t i = 0; at < out->queued && count < MJ__IOV_MAX; i++) {
        const struct mj__lent_slot *slot = i < out->slot_count ? slot_at(out, i) : NULL;
        uint64_t stop = slot != NULL ? slot->at : out->queued;
        if (stop > at) {
            pieces[count++] = (struct iovec){flat, (size_t)(stop - at)};
            flat += stop - at;
            at = stop;
        }
        if (slot != NULL && count < MJ__IOV_MAX) {
            size_t skip = (size_t)(at - slot->at);
            pieces[count++] = (struct iovec){(void *)(uintptr_t)(slot->lent.bytes + skip),
                                             slot->lent.size - skip};
            at = slot->at + slot->lent.size;
        }
    }
    return count;
}

void mj__outgoing_wrote(struct mj__pool *pool, struct mj__outgoing *out, size_t count) {
    uint64_t end = out->written + count;
    if (out->slot_count == 0) {
        mj__buffer_consume(&out->flat, count);
        out->written = end;
    }
    while (out->written < end) {
        struct mj__lent_slot *slot = out->slot_count > 0 ? slot_at(out, 0) : NULL;
        uint64_t flat_end = slot != NULL ? slot->at : out->queued;
        if (slot == NULL || out->written < flat_end) {
            uint64_t stop = flat_end < end ? flat_end : end;
            mj__buffer_consume(&out->flat, (size_t)(stop - out->written));
            out->written = stop;
            continue;
        }
        uint64_t lent_end = slot->at + slot->lent.size;
        out->written = lent_end < end ? lent_end : end;
        if (out->written == lent_end) {
            struct mj__lent lent = slot->lent;
            out->slot_head = (out->slot_head + 1) % out->slot_capacity;
            out->slot_count--;
            lent.release(lent.arg);
        }
    }
    if (mj__outgoing_pending(out) == 0) {
        mj__buffer_release(pool, &out->flat);
    }
}

void mj__outgoing_release(struct mj__pool *pool, struct mj__outgoing *out) {
    while (out->slot_count > 0) {
        struct mj__lent lent = slot_at(out, 0)->lent;
        out->slot_head = (out->slot_head + 1) % out->slot_capacity;
        out->slot_count--;
        lent.release(lent.arg);
    }
    free(out->slots);
    mj__buffer_release(pool, &out->flat);
    *out = (struct mj__outgoing){.queued = out->queued, .written = out->queued};
}
