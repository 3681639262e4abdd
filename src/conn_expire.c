/* conn_expire.c: requests that are given up: by their deadline, by their caller, by a server that
 * says nothing any more. A request given up keeps its place, and its late reply is dropped. */
#include "conn_private.h"

#include <stdio.h>

void mj__conn_half_written(struct mj__conn *conn, const char *how) {
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
        mj__value_disown(conn, request);
    }
}

static void told(struct mj__loss lost, struct mj__error *error) {
    error->phase = lost.phase;
    error->sent = lost.sent;
}

/* True: it is half written. */
static bool abandon(struct mj__conn *conn, uint64_t seq, struct mj__error *error) {
    bool half = mj__conn_progress(conn, seq) == MJ__HALF_WRITTEN;
    told(mj__loss_given_up(conn, seq, MJ__CANCELLED), error);
    forget(conn, mj__requests_at(&conn->requests, seq));
    conn->counters.abandoned++;
    return half;
}

void mj__conn_abandon(struct mj__conn *conn, uint64_t seq, struct mj__error *error) {
    struct mj__loss lost;
    if (mj__batches_forget(conn, seq, &lost)) {
        told(lost, error);
    }
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
    struct mj__loss lost;
    if (mj__batches_forget_all(conn, done, arg, &lost)) {
        told(lost, error);
    }
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

/* A parked one whose time is up, or NULL. Not always the first: one that waits again keeps its
 * deadline. */
static struct mj__parked *overdue(struct mj__conn *conn, mj__time now) {
    if (now < conn->parked_until) {
        return NULL;
    }
    mj__time until = MJ__NEVER;
    for (struct mj__parked *at = conn->parked; at != NULL; at = at->next) {
        if (at->deadline <= now) {
            return at;
        }
        until = mj__earlier(until, at->deadline);
    }
    conn->parked_until = until;
    return NULL;
}

void mj__conn_expire_parked(struct mj__conn *conn, mj__time now) {
    struct mj__error error;
    struct mj__parked *parked;
    while ((parked = overdue(conn, now)) != NULL) {
        mj__conn_unpark(conn, parked);
        conn->counters.timeouts++;
        char text[MJ__ERROR_TEXT];
        snprintf(text, sizeof text,
                 "no room on the connection within %g s: %llu requests are outstanding",
                 (double)conn->endpoint.options.timeout / 1e9,
                 (unsigned long long)mj__requests_count(&conn->requests));
        mj__loss_error(mj__loss_refused(MJ__TIMEOUT), text, &error);
        parked->ready(parked, &error);
    }
}

/* The oldest request that somebody may still wait for; the tail, where there is none. Those
 * without a done function (fences, quiet ones, given up) never expire. */
static uint64_t first_waiting(struct mj__conn *conn) {
    const struct mj__requests *queue = &conn->requests;
    if (conn->expiring < queue->head) {
        conn->expiring = queue->head;
    }
    while (conn->expiring != queue->tail &&
           mj__requests_at(queue, conn->expiring)->done == NULL) {
        conn->expiring++;
    }
    return conn->expiring;
}

/* The first request from `seq` on whose time is up; the tail, where there is none. They expire in
 * their order, but for those that had to wait for room. */
static uint64_t next_late(const struct mj__conn *conn, uint64_t seq, mj__time now) {
    for (; seq != conn->requests.tail; seq++) {
        const struct mj__request *request = mj__requests_at(&conn->requests, seq);
        if (request->done != NULL && request->deadline <= now) {
            return seq;
        }
        if (request->done != NULL && seq >= conn->disorder) {
            return conn->requests.tail;
        }
    }
    return seq;
}

/* When the next request expires, MJ__NEVER where none does. */
static mj__time first_deadline(struct mj__conn *conn) {
    mj__time first = MJ__NEVER;
    for (uint64_t seq = first_waiting(conn); seq != conn->requests.tail; seq++) {
        const struct mj__request *request = mj__requests_at(&conn->requests, seq);
        if (request->done != NULL) {
            first = mj__earlier(first, request->deadline);
        }
        if (seq >= conn->disorder) {
            break;
        }
    }
    return first;
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
    uint64_t seq = first_waiting(conn);
    while ((seq = next_late(conn, seq, now)) != queue->tail) {
        mj__batch_room(&batch);
        if (conn->state == MJ__CONN_CLOSED) {
            break;
        }
        struct mj__request *request = mj__requests_at(queue, seq);
        struct mj__request expired = *request;
        half |= mj__conn_progress(conn, seq) == MJ__HALF_WRITTEN;
        /* Behind a half-written one nothing more will leave. */
        struct mj__loss lost = half ? mj__loss_closed(conn, seq, MJ__TIMEOUT)
                                    : mj__loss_given_up(conn, seq, MJ__TIMEOUT);
        forget(conn, request);
        conn->counters.timeouts++;
        mj__batch_add_lost(&batch, &expired, seq, lost);
    }
    mj__batch_end(&batch);
    return half;
}

/* Requests that no flush has dated do not count: the silence before them means nothing. */
static bool stalled(struct mj__conn *conn, mj__time now) {
    const struct mj__options *options = &conn->endpoint.options;
    if (mj__requests_count(&conn->requests) == 0 || conn->undated <= conn->requests.head ||
        now < conn->heard + options->stall_timeout) {
        return false;
    }
    struct mj__error error;
    mj__fail(
        &error, MJ__TIMEOUT,
        "closed as stalled: nothing arrived for %g s (stall_timeout) with %llu outstanding",
        (double)options->stall_timeout / 1e9,
        (unsigned long long)mj__requests_count(&conn->requests));
    mj__conn_fail(conn, &error);
    return true;
}

static bool some_is_late(struct mj__conn *conn, mj__time now) {
    return next_late(conn, first_waiting(conn), now) != conn->requests.tail;
}

/* Before a request is given up, what has come is read, and the end if it is there: after a pause
 * of the whole process more may lie ready than one read has taken. It ends with the replies to
 * what is late, and with what was there when it began: a server may send without end. */
static void read_what_came(struct mj__conn *conn, mj__time now) {
    if (!some_is_late(conn, now)) {
        return;
    }
    uint64_t end = conn->counters.bytes_read + mj__stream_waiting(&conn->stream), before;
    do {
        before = conn->counters.bytes_read;
        mj__conn_readable(conn);
    } while (conn->counters.bytes_read != before && before < end &&
             conn->state == MJ__CONN_OPEN && some_is_late(conn, now));
}

mj__time mj__conn_expire(struct mj__conn *conn, mj__time now) {
    mj__conn_date_heard(conn);
    read_what_came(conn, now);
    if (conn->state == MJ__CONN_CLOSED) {
        return MJ__NEVER;
    }
    mj__conn_expire_parked(conn, now);
    if (expire_requests(conn, now)) {
        mj__conn_half_written(conn, "timed out");
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
    next = mj__earlier(next, first_deadline(conn));
    if (mj__requests_count(&conn->requests) > 0) {
        next = mj__earlier(next, conn->heard + conn->endpoint.options.stall_timeout);
    }
    return conn->parked != NULL ? mj__earlier(next, conn->parked_until) : next;
}
