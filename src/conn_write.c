/* conn_write.c: requests into the outgoing stream, deadlines, and one write per turn. */
#include "conn_private.h"

#include <errno.h>
#include <string.h>

enum {
    FENCE_AFTER = 1000,  /* quiet requests before a noop is sent behind them */
    STATS_MAX = 4 << 20, /* bytes of lines that an answer to stats may have */
};

static const mj__time fence_pause = 100 * (MJ__SECOND / 1000);

void mj__conn_queue_flush(struct mj__conn *conn) {
    mj__loop_flush(conn->loop, &conn->flush);
}

/* ---- submit ----------------------------------------------------------------------------- */

/* Which protocol's words the call takes on this connection. */
static bool in_ascii(const struct mj__conn *conn, enum mj__command_id id) {
    switch (id) {
    case MJ__GET_MANY:
    case MJ__VERSION:
    case MJ__STATS:
    case MJ__FLUSH_ALL:
    case MJ__LOGIN:
        return true;
    default:
        return conn->protocol != MJ__META;
    }
}

static void next_opaque(struct mj__conn *conn, char *opaque) {
    static const char letters[] =
        "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_";
    uint32_t number = conn->opaque++;
    opaque[0] = letters[number & 63];
    opaque[1] = letters[number >> 6 & 63];
    opaque[2] = letters[number >> 12 & 63];
    opaque[3] = letters[number >> 18 & 63];
}

/* What a script's own meta flags ask to be held against: its token, its key, or nothing. */
static uint16_t meta_bits(const struct mj__call *call, const char **token, size_t *token_size,
                          size_t *flags) {
    const char *at = call->text, *end = at + call->text_size;
    uint16_t bits = 0;
    size_t size;
    for (const char *flag; (flag = mj__next_token(&at, end, &size)) != NULL; ++*flags) {
        if (flag[0] == 'O') {
            bits |= MJ__USER_OPAQUE;
            *token = flag + 1;
            *token_size = size - 1;
        } else if (flag[0] == 'k') {
            bits |= MJ__USER_KEY;
        } else if (flag[0] == 'b') {
            bits |= MJ__USER_ENCODED;
        } else if (flag[0] == 'q') {
            bits |= MJ__QUIET;
        }
    }
    return bits;
}

struct plan {
    uint16_t bits;
    const char *token;
    size_t token_size;
    bool opaque;
};

enum { META_FLAGS_MAX = 12 }; /* beyond this the server's own limit is near: no token of ours */

static struct plan plan_of(const struct mj__conn *conn, const struct mj__call *call) {
    struct plan plan = {0};
    bool verify = conn->endpoint.options.verify;
    if (call->given & MJ__WITH_VALUE) {
        plan.bits |= MJ__BLOCK_SENT;
    }
    if (call->given & MJ__WITH_QUIET) {
        plan.bits |= MJ__QUIET;
    }
    if (in_ascii(conn, call->id)) {
        plan.bits |= MJ__ASCII_REPLY;
        return plan;
    }
    if (call->id == MJ__META_COMMAND) {
        size_t flags = 0;
        plan.bits |= meta_bits(call, &plan.token, &plan.token_size, &flags);
        bool echoes = call->meta[1] != 'n' && call->meta[1] != 'e'; /* mn and me carry none */
        plan.opaque = echoes && flags <= META_FLAGS_MAX &&
                      !(plan.bits & (MJ__USER_OPAQUE | MJ__USER_KEY)) &&
                      (verify || plan.bits & MJ__QUIET);
        plan.bits |= plan.opaque ? MJ__LOOSE : 0;
        if (!echoes) { /* these two answer in spite of a q */
            plan.bits = (uint16_t)(plan.bits & ~MJ__QUIET) |
                        (call->meta[1] == 'n' ? MJ__META_MN : MJ__META_ME);
        } else if (call->meta[1] == 'g') {
            plan.bits |= MJ__META_READ;
        }
    } else {
        plan.opaque = call->id != MJ__NOOP && (verify || plan.bits & MJ__QUIET);
    }
    plan.bits |= plan.opaque ? MJ__OPAQUE : 0;
    return plan;
}

/* Behind the line: the data block, copied or lent. Room was reserved. */
static void append_block(struct mj__outgoing *out, const struct mj__call *call,
                         const struct mj__lent *lent) {
    if (lent != NULL) {
        mj__outgoing_lend(out, lent);
    } else {
        memcpy(out->flat.data + out->flat.tail, call->value, call->value_size);
        mj__outgoing_commit(out, call->value_size);
    }
    memcpy(out->flat.data + out->flat.tail, "\r\n", 2);
    mj__outgoing_commit(out, 2);
}

/* get_many: its keys are its text. */
static const char *key_of(const struct mj__call *call, size_t *size) {
    if (call->id == MJ__GET_MANY) {
        *size = call->text_size;
        return call->text;
    }
    *size = call->key_size;
    return call->key;
}

/* What its answer may have of several lines, so that one which never ends is seen to be none. */
static uint32_t lines_of(const struct mj__call *call) {
    return call->id == MJ__GET_MANY ? mj__requests_count_keys(call->text, call->text_size)
           : call->id == MJ__STATS  ? STATS_MAX
                                    : 0;
}

int mj__conn_enqueue(struct mj__conn *conn, const struct mj__call *call,
                     const struct mj__lent *lent, struct mj__sink *sink, mj__done_fn *done,
                     void *arg, uint32_t index, uint64_t *seq, struct mj__error *error) {
    struct plan plan = plan_of(conn, call);
    size_t copied = lent == NULL ? call->value_size : 0;
    size_t key_size;
    const char *key = key_of(call, &key_size);
    char *at = mj__outgoing_reserve(conn->pool, &conn->out,
                                    MJ__LINE_ROOM + call->key_size + call->text_size + copied);
    struct mj__request *request =
        at == NULL ? NULL
                   : mj__requests_push(conn->pool, &conn->requests, key, key_size, plan.token,
                                       plan.token_size);
    if (request == NULL) {
        return mj__fail(error, MJ__NO_MEMORY, "no memory for the request");
    }
    request->done = done;
    request->arg = arg;
    request->sink = sink;
    request->deadline = MJ__NEVER;
    request->index = index;
    request->cursor = 0;
    request->left = lines_of(call);
    request->id = (uint8_t)call->id;
    request->bits = plan.bits;
    if (plan.opaque) {
        next_opaque(conn, request->opaque);
    }
    size_t line = plan.bits & MJ__ASCII_REPLY
                      ? mj__ascii_encode(at, call)
                      : mj__meta_encode(at, call, plan.opaque ? request->opaque : NULL);
    mj__outgoing_commit(&conn->out, line);
    if (plan.bits & MJ__BLOCK_SENT) {
        append_block(&conn->out, call, lent);
    }
    request->out_end = conn->out.queued;
    *seq = conn->requests.tail - 1;
    if (plan.bits & MJ__QUIET) {
        conn->counters.quiet++;
        conn->silent++;
        mj__conn_owe(conn);
        if (conn->unfenced++ == 0) {
            conn->fence_due = MJ__NEVER; /* set by the flush */
        }
        conn->fence_hurry |= done != NULL || conn->parked != NULL;
    } else {
        conn->unfenced = 0;
        conn->fence_hurry = false;
    }
    mj__conn_queue_flush(conn);
    return MJ__SUBMITTED;
}

/* A noop of the connection's own behind quiet requests. -1: no memory, and none was queued. */
static int send_fence(struct mj__conn *conn, struct mj__error *error) {
    struct mj__call noop = {.id = MJ__NOOP};
    uint64_t seq;
    if (mj__conn_enqueue(conn, &noop, NULL, NULL, NULL, NULL, 0, &seq, error) != 0) {
        return -1;
    }
    conn->counters.fences++;
    return 0;
}

int mj__conn_submit(struct mj__conn *conn, const struct mj__call *call,
                    const struct mj__lent *lent, struct mj__sink *sink, mj__done_fn *done,
                    void *arg, uint32_t index, uint64_t *seq, struct mj__error *error) {
    bool ticket = conn->ticket;
    conn->ticket = false;
    if (conn->state != MJ__CONN_OPEN) {
        return mj__conn_refuse(conn, error); /* with no phase: it got nowhere */
    }
    if (!ticket) {
        bool others = conn->parked != NULL || conn->granted > 0;
        if (mj__conn_is_full(conn) || (others && conn->allowed == 0)) {
            conn->full_for = call->key_size + call->text_size + call->value_size;
            return MJ__FULL;
        }
        conn->allowed -= conn->allowed > 0;
    }
    if (mj__conn_enqueue(conn, call, lent, sink, done, arg, index, seq, error) != 0) {
        mj__conn_room(conn); /* what it does not take is the next one's */
        return MJ__REFUSED;
    }
    conn->counters.requests++;
    if (ticket || conn->bound) {
        mj__requests_at(&conn->requests, *seq)->deadline = conn->ticket_deadline;
    }
    if (conn->unfenced >= FENCE_AFTER) {
        (void)send_fence(conn, error); /* else the flush does it */
    }
    return MJ__SUBMITTED;
}

/* ---- flush ------------------------------------------------------------------------------ */

/* Requests of this turn begin to count now. */
static void date_requests(struct mj__conn *conn) {
    struct mj__requests *queue = &conn->requests;
    mj__time now = mj__loop_now(conn->loop);
    mj__time deadline = now + conn->endpoint.options.timeout;
    if (conn->undated < queue->head) {
        conn->undated = queue->head;
    }
    if (conn->undated == queue->tail) {
        return;
    }
    if (conn->undated == queue->head) {
        conn->heard = now;
    }
    mj__time first = mj__earlier(deadline, now + conn->endpoint.options.stall_timeout);
    for (; conn->undated != queue->tail; conn->undated++) {
        struct mj__request *request = mj__requests_at(queue, conn->undated);
        if (request->deadline == MJ__NEVER) {
            request->deadline = deadline;
        } else { /* it was parked: the timer may have moved past its deadline since */
            first = mj__earlier(first, request->deadline);
        }
        if (request->deadline < conn->latest) {
            conn->disorder = conn->undated;
        } else {
            conn->latest = request->deadline;
        }
    }
    mj__conn_wake_at(conn, first);
}

/* The silence of quiet requests means something once a reply to a later request came. */
static void fence(struct mj__conn *conn) {
    struct mj__error error;
    if (conn->unfenced == 0) {
        return;
    }
    if (!conn->fence_hurry && conn->unfenced < FENCE_AFTER) {
        /* Counted from the first of them: were it put off by each, a trickle would not be
         * fenced, and its silence look like a stall. */
        if (conn->fence_due == MJ__NEVER) {
            mj__time pause = mj__earlier(fence_pause, conn->endpoint.options.stall_timeout / 2);
            conn->fence_due = mj__loop_now(conn->loop) + pause;
        }
        mj__conn_wake_at(conn, conn->fence_due);
    } else if (send_fence(conn, &error) != 0) {
        mj__conn_fail(conn, &error);
    }
}

void mj__conn_date_heard(struct mj__conn *conn) {
    if (conn->hears) {
        conn->hears = false;
        conn->heard = mj__loop_now(conn->loop);
    }
}

void mj__conn_flush(struct mj__deferred *deferred) {
    struct mj__conn *conn =
        (struct mj__conn *)((char *)deferred - offsetof(struct mj__conn, flush));
    if (conn->state == MJ__CONN_RESOLVING) {
        mj__conn_start(conn);
        return;
    }
    mj__conn_date_heard(conn);
    if (conn->close_soon) {
        mj__conn_close(conn);
        return;
    }
    if (conn->half_left) {
        mj__conn_half_written(conn, "was given up");
        return;
    }
    if (conn->ticket) {
        mj__conn_return_ticket(conn);
    }
    if (conn->state == MJ__CONN_OPEN) {
        fence(conn);
    }
    if (conn->state == MJ__CONN_OPEN) { /* still */
        date_requests(conn);
    }
    if (conn->parked != NULL) {
        mj__conn_wake_at(conn, conn->parked_until);
    }
    if (!conn->wait_writable && conn->state != MJ__CONN_CLOSED) {
        mj__conn_write(conn);
    }
    if (conn->orphan && conn->state == MJ__CONN_OPEN) {
        mj__conn_end_orphan(conn);
    } else if (mj__requests_count(&conn->requests) > 0 && conn->state == MJ__CONN_OPEN) {
        mj__loop_expect(conn->loop, &conn->watch);
    }
}

static void await_writable(struct mj__conn *conn, bool wait) {
    if (conn->wait_writable == wait) {
        return;
    }
    conn->wait_writable = wait;
    mj__conn_owe(conn);
    conn->counters.arms++;
    if (mj__watch_arm(&conn->watch, true, wait) != 0) {
        struct mj__error error;
        mj__fail(&error, MJ__NO_MEMORY, "the socket cannot be watched: no memory");
        mj__conn_fail(conn, &error);
    }
}

/* The peer is gone, but what it said before is read, however much it is; not what it still says:
 * one that only reads no more may send without end. Nothing is read while answers are handed over
 * (a done function closes): what they came from is still in the buffer. */
static void write_failed(struct mj__conn *conn, int code) {
    struct mj__error error;
    bool classic_only = conn->classic_only;
    uint64_t end = conn->counters.bytes_read + mj__stream_waiting(&conn->stream), before;
    conn->write_error = code;
    do {
        before = conn->counters.bytes_read;
        if (conn->batches == NULL) {
            mj__conn_readable(conn);
        }
        if (conn->classic_only != classic_only) {
            return; /* the handshake has begun anew, over another socket */
        }
    } while (conn->counters.bytes_read != before && before < end &&
             conn->state != MJ__CONN_CLOSED);
    mj__stream_error(&error, MJ__PHASE_WRITE, code);
    mj__conn_fail(conn, &error);
}

/* One writev of as many pieces as it takes. 1: all of them went, 0: the socket is full, -1: it
 * is broken, and the connection closed. */
static int write_pieces(struct mj__conn *conn) {
    struct iovec pieces[MJ__IOV_MAX];
    int count = mj__outgoing_pieces(&conn->out, pieces);
    size_t total = 0;
    for (int i = 0; i < count; i++) {
        total += pieces[i].iov_len;
    }
    conn->counters.writes++;
    ssize_t wrote = conn->stream.ops->writev(&conn->stream, pieces, count);
    if (wrote < 0 && errno != EAGAIN && errno != EWOULDBLOCK) {
        write_failed(conn, errno);
        return -1;
    }
    if (wrote > 0) {
        conn->counters.bytes_written += (uint64_t)wrote;
        mj__outgoing_wrote(conn->pool, &conn->out, (size_t)wrote);
    }
    if (wrote > 0 && mj__outgoing_pending(&conn->out) > 0) {
        conn->heard = mj__loop_now(conn->loop); /* a slow reader is alive */
    }
    return wrote > 0 && (size_t)wrote == total;
}

void mj__conn_write(struct mj__conn *conn) {
    int status = 1; /* until a short write: only that is worth an EV_WRITE */
    while (status > 0 && mj__outgoing_pending(&conn->out) > 0) {
        status = write_pieces(conn);
    }
    if (status < 0) {
        return;
    }
    await_writable(conn, status == 0);
    if (conn->parked != NULL) {
        mj__conn_room(conn);
    }
}
