/* conn_write.c: requests into the outgoing stream, deadlines, and one write per turn. */
#include "conn_private.h"

#include <errno.h>
#include <string.h>

enum {
    OUT_LIMIT = 4 << 20, /* bytes waiting to leave before tasks are parked */
    ALLOWED_MORE = 255,  /* submits of a pipeline in one go while others wait for room */
    FENCE_AFTER = 1000   /* quiet requests before a noop is sent behind them */
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
    for (int i = 0; i < MJ__OPAQUE_SIZE; i++) {
        opaque[i] = letters[(number >> (6 * i)) & 63];
    }
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
            plan.bits = (uint16_t)(plan.bits & ~MJ__QUIET) | MJ__META_BARE;
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

static bool is_full(const struct mj__conn *conn) {
    return mj__requests_count(&conn->requests) + conn->granted >=
               conn->endpoint.options.max_inflight ||
           mj__outgoing_pending(&conn->out) >= OUT_LIMIT;
}

/* What a submit on a connection that is not open is told. */
static int refuse_closed(const struct mj__conn *conn, struct mj__error *error) {
    if (conn->state == MJ__CONN_CLOSED) {
        /* An error of the server's at the door (a full house, no login) stays what it is. */
        bool own = conn->cause.kind == MJ__SERVER_ERROR || conn->cause.kind == MJ__AUTH;
        mj__fail(error, own ? conn->cause.kind : MJ__CLOSED, "the connection is closed: %s",
                 conn->cause.text);
    } else {
        mj__fail(error, MJ__CLOSED, "the connection is not open yet");
    }
    return MJ__REFUSED; /* with no phase: it got nowhere */
}

int mj__conn_submit(struct mj__conn *conn, const struct mj__call *call,
                    const struct mj__lent *lent, struct mj__sink *sink, mj__done_fn *done,
                    void *arg, uint32_t index, uint64_t *seq, struct mj__error *error) {
    bool ticket = conn->ticket;
    conn->ticket = false;
    if (conn->state != MJ__CONN_OPEN) {
        return refuse_closed(conn, error);
    }
    if (!ticket) {
        bool others = conn->parked != NULL || conn->granted > 0;
        if (is_full(conn) || (others && conn->allowed == 0)) {
            return MJ__FULL;
        }
        conn->allowed -= conn->allowed > 0;
    }
    if (mj__conn_enqueue(conn, call, lent, sink, done, arg, index, seq, error) != 0) {
        mj__conn_room(conn); /* what it does not take is the next one's */
        return MJ__REFUSED;
    }
    conn->counters.requests++;
    if (ticket) {
        mj__requests_at(&conn->requests, *seq)->deadline = conn->ticket_deadline;
    }
    if (conn->unfenced >= FENCE_AFTER) {
        (void)send_fence(conn, error); /* else the flush does it */
    }
    return MJ__SUBMITTED;
}

/* ---- giving up -------------------------------------------------------------------------- */

bool mj__conn_progress(const struct mj__conn *conn, uint64_t seq, enum mj__phase *phase,
                       enum mj__sent *sent) {
    uint64_t written = conn->out.written;
    uint64_t start = seq == conn->requests.head
                         ? conn->popped_end
                         : mj__requests_at(&conn->requests, seq - 1)->out_end;
    *sent = written > start ? MJ__SENT_MAYBE : MJ__SENT_NO;
    if (written <= start) {
        *phase = MJ__PHASE_QUEUE;
        return false;
    }
    bool whole = written >= mj__requests_at(&conn->requests, seq)->out_end;
    *phase = whole ? MJ__PHASE_READ : MJ__PHASE_WRITE;
    return !whole;
}

static void half_written(struct mj__conn *conn, const char *how) {
    struct mj__error error;
    mj__fail(&error, MJ__TIMEOUT,
             "closed, because a request that was half written %s: the server does not read",
             how);
    mj__conn_fail(conn, &error);
}

static void close_later(struct mj__conn *conn) {
    conn->half_left = true;
    mj__conn_queue_flush(conn);
}

static void forget(struct mj__conn *conn, struct mj__request *request) {
    request->done = NULL;
    if (request->sink != NULL) {
        request->sink = NULL;
        if (request == mj__requests_at(&conn->requests, conn->requests.head)) {
            if (conn->incoming.to == MJ__TO_SINK) {
                conn->incoming.to = MJ__TO_NOWHERE;
            }
            conn->incoming.sink_refused = false;
        }
    }
}

/* True: it is half written. */
static bool abandon(struct mj__conn *conn, uint64_t seq, struct mj__error *error) {
    bool half = mj__conn_progress(conn, seq, &error->phase, &error->sent);
    if (error->sent == MJ__SENT_NO) {
        error->sent = MJ__SENT_MAYBE; /* its bytes are in line and will still leave */
    }
    forget(conn, mj__requests_at(&conn->requests, seq));
    conn->counters.abandoned++;
    return half;
}

void mj__conn_abandon(struct mj__conn *conn, uint64_t seq, struct mj__error *error) {
    mj__batches_forget(conn, seq);
    if (seq < conn->requests.head || seq >= conn->requests.tail) {
        return;
    }
    if (abandon(conn, seq, error)) {
        close_later(conn);
    }
}

void mj__conn_abandon_all(struct mj__conn *conn, mj__done_fn *done, const void *arg,
                          struct mj__error *error) {
    bool half = false;
    mj__batches_forget_all(conn, done, arg);
    for (uint64_t seq = conn->requests.head; seq != conn->requests.tail; seq++) {
        const struct mj__request *request = mj__requests_at(&conn->requests, seq);
        if (request->done == done && request->arg == arg) {
            half |= abandon(conn, seq, error);
        }
    }
    if (half) {
        close_later(conn);
    }
}

static void expire_parked(struct mj__conn *conn, mj__time now) {
    struct mj__error error;
    while (conn->parked != NULL && conn->parked->deadline <= now) {
        struct mj__parked *parked = conn->parked;
        mj__conn_unpark(conn, parked);
        conn->counters.timeouts++;
        mj__fail(&error, MJ__TIMEOUT,
                 "no room on the connection within %g s: %llu requests are outstanding",
                 (double)conn->endpoint.options.timeout / 1e9,
                 (unsigned long long)mj__requests_count(&conn->requests));
        error.phase = MJ__PHASE_QUEUE;
        parked->ready(parked, &error);
    }
}

/* True: one of them was half written, and order is lost with it. */
static bool expire_requests(struct mj__conn *conn, mj__time now) {
    struct mj__requests *queue = &conn->requests;
    struct mj__error error;
    struct mj__batch batch;
    bool half = false;
    mj__fail(&error, MJ__TIMEOUT, "no reply within %g s",
             (double)conn->endpoint.options.timeout / 1e9);
    mj__batch_begin(&batch, conn);
    batch.text = error.text;
    if (conn->expiring < queue->head) {
        conn->expiring = queue->head;
    }
    for (; conn->expiring != queue->tail; conn->expiring++) {
        mj__batch_room(&batch);
        if (conn->state == MJ__CONN_CLOSED) {
            break;
        }
        struct mj__request *request = mj__requests_at(queue, conn->expiring);
        if (request->done == NULL) { /* a fence's deadline would hide an earlier one */
            continue;
        }
        if (request->deadline > now) {
            break;
        }
        struct mj__request expired = *request;
        enum mj__phase phase;
        enum mj__sent sent;
        half |= mj__conn_progress(conn, conn->expiring, &phase, &sent);
        forget(conn, request);
        conn->counters.timeouts++;
        struct mj__waiting_answer *answer = mj__batch_add(&batch, &expired, conn->expiring);
        answer->failed = true;
        answer->kind = MJ__TIMEOUT;
        answer->phase = phase;
        answer->sent = sent == MJ__SENT_NO && !half ? MJ__SENT_MAYBE : sent;
    }
    mj__batch_end(&batch);
    return half;
}

static bool stalled(struct mj__conn *conn, mj__time now) {
    const struct mj__options *options = &conn->endpoint.options;
    if (mj__requests_count(&conn->requests) == 0 ||
        now < conn->heard + options->stall_timeout) {
        return false;
    }
    struct mj__error error;
    mj__fail(&error, MJ__TIMEOUT,
             "closed as stalled: nothing arrived for %g s (stall_timeout) while %llu requests "
             "were outstanding",
             (double)options->stall_timeout / 1e9,
             (unsigned long long)mj__requests_count(&conn->requests));
    mj__conn_fail(conn, &error);
    return true;
}

static mj__time earlier(mj__time a, mj__time b) {
    return a < b ? a : b;
}

static bool oldest_is_late(const struct mj__conn *conn, mj__time now) {
    const struct mj__requests *queue = &conn->requests;
    uint64_t oldest = conn->expiring > queue->head ? conn->expiring : queue->head;
    return oldest < queue->tail && mj__requests_at(queue, oldest)->deadline <= now;
}

/* Before a request is given up, what has come is read: after a pause of the whole process
 * more may lie ready than one read has taken. It ends with the replies to what is late. */
static void read_what_came(struct mj__conn *conn, mj__time now) {
    uint64_t before;
    do {
        before = conn->counters.bytes_read;
        if (oldest_is_late(conn, now)) {
            mj__conn_readable(conn);
        }
    } while (conn->counters.bytes_read != before && conn->state == MJ__CONN_OPEN);
}

mj__time mj__conn_expire(struct mj__conn *conn, mj__time now) {
    read_what_came(conn, now);
    if (conn->state == MJ__CONN_CLOSED) {
        return MJ__NEVER;
    }
    expire_parked(conn, now);
    if (expire_requests(conn, now)) {
        half_written(conn, "timed out");
    }
    if (conn->state == MJ__CONN_CLOSED || stalled(conn, now)) {
        return MJ__NEVER;
    }
    mj__time next = MJ__NEVER;
    if (conn->unfenced > 0 && conn->fence_due <= now) {
        conn->fence_hurry = true;
        mj__conn_queue_flush(conn);
    } else if (conn->unfenced > 0) {
        next = conn->fence_due;
    }
    if (conn->expiring < conn->requests.tail) {
        next = earlier(next, mj__requests_at(&conn->requests, conn->expiring)->deadline);
    }
    if (mj__requests_count(&conn->requests) > 0) {
        next = earlier(next, conn->heard + conn->endpoint.options.stall_timeout);
    }
    return conn->parked != NULL ? earlier(next, conn->parked->deadline) : next;
}

/* ---- parking ---------------------------------------------------------------------------- */

void mj__conn_park(struct mj__conn *conn, struct mj__parked *parked) {
    conn->allowed = 0;
    parked->next = NULL;
    parked->deadline = mj__clock() + conn->endpoint.options.timeout;
    *conn->parked_tail = parked;
    conn->parked_tail = &parked->next;
    conn->counters.parked++;
    /* No ordinary request can follow the quiet ones and fence them: it is parked. */
    conn->fence_hurry |= conn->unfenced > 0;
    mj__conn_queue_flush(conn); /* sets the timer: nobody is told anything from inside park */
}

void mj__conn_unpark(struct mj__conn *conn, struct mj__parked *parked) {
    for (struct mj__parked **at = &conn->parked; *at != NULL; at = &(*at)->next) {
        if (*at == parked) {
            *at = parked->next;
            if (conn->parked_tail == &parked->next) {
                conn->parked_tail = at;
            }
            return;
        }
    }
}

void mj__conn_redeem(struct mj__conn *conn, const struct mj__parked *parked) {
    if (conn->granted > 0) {
        conn->granted--;
        conn->ticket = true;
        conn->ticket_deadline = parked->deadline;
        mj__conn_queue_flush(conn); /* takes it back, should a throw come before a submit */
    }
}

void mj__conn_allow_more(struct mj__conn *conn) {
    conn->allowed = conn->ticket ? ALLOWED_MORE : 0;
}

void mj__conn_return_ticket(struct mj__conn *conn) {
    conn->ticket = false;
    conn->allowed = 0;
    mj__conn_room(conn);
}

void mj__conn_room(struct mj__conn *conn) {
    while (conn->parked != NULL && conn->state == MJ__CONN_OPEN && !is_full(conn)) {
        struct mj__parked *parked = conn->parked;
        mj__conn_unpark(conn, parked);
        conn->granted++;
        parked->ready(parked, NULL);
    }
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
    mj__time first = earlier(deadline, now + conn->endpoint.options.stall_timeout);
    for (; conn->undated != queue->tail; conn->undated++) {
        struct mj__request *request = mj__requests_at(queue, conn->undated);
        if (request->deadline == MJ__NEVER) {
            request->deadline = deadline;
        } else { /* it was parked: the timer may have moved past its deadline since */
            first = earlier(first, request->deadline);
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
            conn->fence_due = mj__loop_now(conn->loop) + fence_pause;
        }
        mj__conn_wake_at(conn, conn->fence_due);
    } else if (send_fence(conn, &error) != 0) {
        mj__conn_fail(conn, &error);
    }
}

void mj__conn_flush(struct mj__deferred *deferred) {
    struct mj__conn *conn =
        (struct mj__conn *)((char *)deferred - offsetof(struct mj__conn, flush));
    if (conn->state == MJ__CONN_RESOLVING) {
        mj__conn_start(conn);
        return;
    }
    if (conn->half_left) {
        half_written(conn, "was given up");
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
    if (conn->parked != NULL) { /* the first of them is the first to expire */
        mj__conn_wake_at(conn, conn->parked->deadline);
    }
    if (!conn->wait_writable && conn->state != MJ__CONN_CLOSED) {
        mj__conn_write(conn);
    }
}

static void await_writable(struct mj__conn *conn, bool wait) {
    if (conn->wait_writable == wait) {
        return;
    }
    conn->wait_writable = wait;
    conn->counters.arms++;
    if (mj__watch_arm(&conn->watch, true, wait) != 0) {
        struct mj__error error;
        mj__fail(&error, MJ__NO_MEMORY, "the socket cannot be watched: no memory");
        mj__conn_fail(conn, &error);
    }
}

/* The peer is gone, but what it said before may still be read. */
static void write_failed(struct mj__conn *conn, int code) {
    struct mj__error error;
    bool classic_only = conn->classic_only;
    mj__conn_readable(conn);
    if (conn->classic_only != classic_only) {
        return; /* the handshake has begun anew, over another socket */
    }
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
