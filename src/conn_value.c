/* conn_value.c: a value that is larger than what had arrived with its line: where its bytes go. */
#include "conn_private.h"

#include <string.h>

/* Where the bytes of the incoming value go next; size 0: nowhere of its own. */
struct iovec mj__value_room(struct mj__conn *conn) {
    struct mj__incoming *incoming = &conn->incoming;
    struct iovec room = {NULL, 0};
    if (incoming->to == MJ__TO_BLOCK) {
        room.iov_base = incoming->block + incoming->line_size + incoming->got;
        room.iov_len = (size_t)(incoming->want - incoming->got);
    } else if (incoming->to == MJ__TO_SINK &&
               incoming->got + incoming->end_size < incoming->want) {
        struct mj__sink *sink = mj__requests_at(&conn->requests, conn->requests.head)->sink;
        size_t want = (size_t)(incoming->want - incoming->end_size - incoming->got), got = 0;
        room.iov_base = sink->reserve(sink, want, &got);
        room.iov_len = got < want ? got : want;
        if (room.iov_base == NULL) {
            incoming->to = MJ__TO_NOWHERE;
            incoming->sink_refused = true;
            room.iov_len = 0;
        }
    }
    return room;
}

/* Bytes of the value were read into its room. */
void mj__value_read(struct mj__conn *conn, size_t count) {
    struct mj__incoming *incoming = &conn->incoming;
    if (incoming->to == MJ__TO_SINK && count > 0) {
        struct mj__sink *sink = mj__requests_at(&conn->requests, conn->requests.head)->sink;
        sink->commit(sink, count);
    }
    incoming->got += count;
}

/* Bytes of the value that came with the receive buffer: copied over, or dropped. */
void mj__value_from_buffer(struct mj__conn *conn) {
    struct mj__incoming *incoming = &conn->incoming;
    while (incoming->got < incoming->want && mj__buffer_length(&conn->in) > 0) {
        size_t have = mj__buffer_length(&conn->in);
        uint64_t left = incoming->want - incoming->got;
        struct iovec room = mj__value_room(conn);
        size_t count = have < left ? have : (size_t)left;
        const char *from = mj__buffer_head(&conn->in);
        if (room.iov_len > 0) {
            count = count < room.iov_len ? count : room.iov_len;
            memcpy(room.iov_base, from, count);
            mj__value_read(conn, count);
        } else if (left > incoming->end_size) { /* dropped */
            uint64_t value_left = left - incoming->end_size;
            count = count < value_left ? count : (size_t)value_left;
            incoming->got += count;
        } else { /* the end of a value that went elsewhere */
            count = 1;
            incoming->end[incoming->end_size - left] = *from;
            incoming->got++;
        }
        mj__buffer_consume(&conn->in, count);
    }
}

/* Its final storage is taken at full size from the reply's line. */
int mj__value_begin(struct mj__conn *conn, uint64_t seq, const struct mj__reply *reply,
                    size_t line_size, struct mj__error *error) {
    struct mj__incoming *incoming = &conn->incoming;
    const struct mj__request *request = mj__requests_at(&conn->requests, seq);
    const char *end;
    bool wanted = request->done != NULL;
    bool sink = wanted && request->sink != NULL && seq == conn->requests.head;
    incoming->end_size = mj__value_end(request, &end);
    uint64_t total = reply->value_size + incoming->end_size;
    bool block = wanted && !sink;
    incoming->block = mj__pool_take(conn->pool, line_size + (block ? (size_t)total : 0),
                                    &incoming->block_size);
    if (incoming->block == NULL) {
        return mj__fail(error, MJ__NO_MEMORY, "no memory for a value of %llu bytes: closed",
                        (unsigned long long)reply->value_size);
    }
    memcpy(incoming->block, mj__buffer_head(&conn->in), line_size);
    incoming->line_size = line_size;
    incoming->want = total;
    incoming->got = 0;
    incoming->sink_refused = false;
    incoming->to = block ? MJ__TO_BLOCK : sink ? MJ__TO_SINK : MJ__TO_NOWHERE;
    mj__buffer_consume(&conn->in, line_size);
    return 0;
}

const char *mj__value_bytes(const struct mj__incoming *incoming) {
    return incoming->to == MJ__TO_BLOCK ? incoming->block + incoming->line_size : NULL;
}

/* True while nothing has come of its end that does not belong there. */
bool mj__value_ends_well(const struct mj__incoming *incoming) {
    uint64_t left = incoming->want - incoming->got;
    const char *bytes = mj__value_bytes(incoming);
    const char *end =
        bytes != NULL ? bytes + incoming->want - incoming->end_size : incoming->end;
    return left >= incoming->end_size ||
           memcmp(end, "\r\nEND\r\n", incoming->end_size - (size_t)left) == 0;
}

void mj__value_disown(struct mj__conn *conn, struct mj__request *request) {
    request->sink = NULL;
    if (request == mj__requests_at(&conn->requests, conn->requests.head)) {
        if (conn->incoming.to == MJ__TO_SINK) {
            conn->incoming.to = MJ__TO_NOWHERE;
        }
        conn->incoming.sink_refused = false;
    }
}

void mj__value_drop(struct mj__conn *conn) {
    mj__pool_give(conn->pool, conn->incoming.block, conn->incoming.block_size);
    conn->incoming = (struct mj__incoming){0};
}
