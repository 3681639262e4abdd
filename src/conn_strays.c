/* conn_strays.c: error lines that came while quiet requests were outstanding. They name nobody; a
 * reply to a later request shows whose they were, or the connection ends. */
#include "conn_private.h"

#include <stdlib.h>
#include <string.h>

static const struct mj__request *request_at(const struct mj__conn *conn, uint64_t seq) {
    return mj__requests_at(&conn->requests, seq);
}

/* True when some request from the oldest up to the first that must answer carried a block. */
static bool block_in_doubt(const struct mj__conn *conn) {
    for (uint64_t seq = conn->requests.head; seq != conn->requests.tail; seq++) {
        const struct mj__request *request = request_at(conn, seq);
        if (request->bits & MJ__BLOCK_SENT) {
            return true;
        }
        if (!(request->bits & MJ__QUIET)) {
            return false;
        }
    }
    return false;
}

static int make_place(struct mj__conn *conn) {
    if (conn->strays != NULL && conn->stray_count < conn->strays->capacity) {
        return 0;
    }
    size_t capacity = conn->strays == NULL ? MJ__STRAYS_FIRST : conn->strays->capacity * 2;
    size_t size = sizeof *conn->strays + capacity * sizeof *conn->strays->list;
    struct mj__strays *strays = realloc(conn->strays, size);
    if (strays == NULL) {
        return -1;
    }
    strays->capacity = capacity;
    conn->strays = strays;
    return 0;
}

int mj__stray_keep(struct mj__conn *conn, const struct mj__reply *reply,
                   struct mj__error *error) {
    bool ascii = (request_at(conn, conn->requests.head)->bits & MJ__ASCII_REPLY) != 0;
    if (ascii || (reply->code != MJ__SAYS_SERVER_ERROR && block_in_doubt(conn))) {
        return mj__error_order_lost(
            error, reply,
            " while quiet requests were outstanding, and it cannot be told to which");
    }
    if (conn->stray_count == MJ__STRAYS_MAX) {
        return mj__error_order_lost(error, reply, ", one of too many errors to quiet requests");
    }
    if (make_place(conn) != 0) {
        return mj__fail(error, MJ__NO_MEMORY, "no memory to note a server's error");
    }
    struct mj__stray *stray = &conn->strays->list[conn->stray_count++];
    stray->code = reply->code;
    stray->text_size =
        reply->text_size < sizeof stray->text ? reply->text_size : sizeof stray->text;
    memcpy(stray->text, reply->text, stray->text_size);
    conn->unfenced += conn->unfenced == 0; /* a noop behind them all will tell them apart */
    conn->fence_hurry = true;
    mj__conn_queue_flush(conn);
    return 0;
}

struct mj__reply mj__stray_reply(const struct mj__conn *conn, size_t index) {
    const struct mj__stray *stray = &conn->strays->list[index];
    return (struct mj__reply){
        .code = stray->code, .text = stray->text, .text_size = stray->text_size};
}

const struct mj__error *mj__strays_settle(struct mj__conn *conn, uint64_t seq, size_t count) {
    size_t quiet = 0;
    for (uint64_t at = conn->requests.head; at != seq; at++) {
        quiet += (request_at(conn, at)->bits & MJ__QUIET) != 0;
    }
    bool all = quiet == count;
    uint64_t at = conn->requests.head;
    for (size_t i = 0; i < count && conn->state != MJ__CONN_CLOSED; i++, at++) {
        while (all && !(request_at(conn, at)->bits & MJ__QUIET)) {
            at++;
        }
        struct mj__reply said = mj__stray_reply(conn, i);
        mj__error_quiet_said(&said, all, &conn->strays->doubt);
        const struct mj__request *request = all ? request_at(conn, at) : NULL;
        if (request == NULL || request->done == NULL) { /* else its caller is told */
            mj__tell_quiet_failed(conn, &conn->strays->doubt, request);
        }
    }
    return count > 0 ? &conn->strays->doubt : NULL;
}
