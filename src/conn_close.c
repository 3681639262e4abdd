/* conn_close.c: a connection ends. mj__conn_fail is the one place where it is declared unfit,
 * whatever the reason; everyone that waits is told there. */
#include "conn_private.h"

#include <stdlib.h>

/* Inside a batch it is lent to a done function until that returns. */
static void hold(const struct mj__conn *conn, struct mj__buffer *buffer,
                 struct mj__buffer *held) {
    if (conn->batches != NULL && held->data == NULL) {
        *held = *buffer;
        *buffer = (struct mj__buffer){0};
    }
}

void mj__conn_forget_requests(struct mj__conn *conn) {
    hold(conn, &conn->requests.keys, &conn->held_keys);
    mj__outgoing_release(conn->pool, &conn->out);
    mj__requests_release(conn->pool, &conn->requests);
    /* As the queue, which is empty and starts anew. */
    conn->undated = conn->expiring = conn->disorder = conn->answered = 0;
    conn->silent = 0;
    mj__conn_owe(conn);
}

void mj__conn_drop_transport(struct mj__conn *conn) {
    mj__watch_close(&conn->watch);
    if (conn->stream.fd >= 0) {
        conn->stream.ops->close(&conn->stream);
    }
    mj__value_drop(conn);
    hold(conn, &conn->in, &conn->held_in);
    mj__buffer_release(conn->pool, &conn->in);
    conn->wait_writable = false;
    conn->write_error = 0;
    conn->unasked = false;
    mj__conn_owe(conn);
}

static void drop_lookup(struct mj__conn *conn) {
    if (conn->lookup != NULL) {
        mj__resolve_abandon(conn->lookup);
        conn->lookup = NULL;
    }
    if (conn->addresses != NULL) {
        freeaddrinfo(conn->addresses);
        conn->addresses = NULL;
        conn->address = NULL;
    }
}

/* Everything but the requests and the counters. */
static void shut(struct mj__conn *conn) {
    conn->state = MJ__CONN_CLOSED;
    mj__conn_drop_transport(conn);
    drop_lookup(conn);
    mj__timer_stop(conn->loop, &conn->timer);
    mj__loop_cancel(conn->loop, &conn->flush);
    conn->stray_count = 0; /* their text stays: a batch under way may refer to it */
}

static struct mj__conn *conn_of_freed(struct mj__deferred *deferred) {
    return (struct mj__conn *)((char *)deferred - offsetof(struct mj__conn, freed));
}

static void free_now(struct mj__deferred *deferred) {
    struct mj__conn *conn = conn_of_freed(deferred);
    mj__endpoint_free(&conn->endpoint);
    free(conn->strays);
    free(conn);
}

static void free_later(struct mj__conn *conn) {
    mj__loop_cancel(conn->loop, &conn->flush); /* asked for since it closed */
    conn->freed.run = free_now;
    mj__loop_free_later(conn->loop, &conn->freed);
}

/* ---- why it ends: everyone is told ------------------------------------------------------ */

/* Those that wait, each by how far it had come. */
static void fail_requests(struct mj__conn *conn, const struct mj__error *error) {
    struct mj__batch batch;
    mj__batch_begin(&batch, conn);
    batch.text = error->text;
    for (uint64_t seq = conn->requests.head; seq != conn->requests.tail; seq++) {
        mj__batch_room(&batch);
        struct mj__request *request = mj__requests_at(&conn->requests, seq);
        if (request->done != NULL) {
            mj__batch_add_lost(&batch, request, seq, mj__loss_closed(conn, seq, error->kind));
        }
    }
    mj__batch_end(&batch);
}

/* Quiet requests whose silence nothing will prove any more have failed, for all that is known. */
static void fail_quiet(struct mj__conn *conn, const struct mj__error *cause) {
    const struct mj__request *last = NULL;
    uint64_t count = 0, first = 0;
    for (uint64_t seq = conn->requests.head; seq != conn->requests.tail; seq++) {
        const struct mj__request *request = mj__requests_at(&conn->requests, seq);
        if (request->bits & MJ__QUIET && request->done == NULL) {
            last = request;
            first = count++ == 0 ? seq : first;
        }
    }
    if (count > 0) {
        struct mj__error error;
        mj__loss_error(mj__loss_closed(conn, first, cause->kind), cause->text, &error);
        conn->counters.quiet_failed += count - 1;
        mj__tell_quiet_failed(conn, &error, count == 1 ? last : NULL);
    }
}

static void fail_parked(struct mj__conn *conn, const struct mj__error *cause) {
    struct mj__error error;
    mj__loss_error(mj__loss_refused(cause->kind), cause->text, &error);
    while (conn->parked != NULL) {
        struct mj__parked *parked = conn->parked;
        mj__conn_unpark(conn, parked);
        parked->ready(parked, &error);
    }
}

void mj__conn_fail(struct mj__conn *conn, const struct mj__error *error) {
    if (conn->state == MJ__CONN_CLOSED) {
        return;
    }
    bool was_open = conn->state == MJ__CONN_OPEN;
    conn->cause = *error;
    shut(conn);
    fail_quiet(conn, &conn->cause); /* first: the next forgets who waits */
    fail_requests(conn, &conn->cause);
    mj__conn_forget_requests(conn);
    fail_parked(conn, &conn->cause);
    if (conn->orphan) {
        mj__loop_cancel(conn->loop, &conn->freed);
        free_later(conn);
        return;
    }
    if (!was_open && conn->owner.opened != NULL) {
        conn->owner.opened(conn->owner.arg, conn, &conn->cause);
    } else if (was_open && conn->owner.closed != NULL) {
        conn->owner.closed(conn->owner.arg, conn, &conn->cause);
    }
}

void mj__conn_close(struct mj__conn *conn) {
    struct mj__error error;
    if (conn->state == MJ__CONN_OPEN && !conn->wait_writable) {
        mj__conn_write(conn);
    }
    mj__fail(&error, MJ__CLOSED, "the connection was closed by its user");
    mj__conn_fail(conn, &error);
}

void mj__conn_close_soon(struct mj__conn *conn) {
    if (conn->state != MJ__CONN_CLOSED) {
        conn->close_soon = true;
        mj__conn_queue_flush(conn);
    }
}

/* ---- nobody holds it any more ------------------------------------------------------------ */

/* From here on no function of the owner's or of a request's is called. */
static void detach(struct mj__conn *conn) {
    conn->released = true;
    conn->owner = (struct mj__conn_owner){0};
    for (uint64_t seq = conn->requests.head; seq != conn->requests.tail; seq++) {
        struct mj__request *request = mj__requests_at(&conn->requests, seq);
        request->done = NULL;
        if (request->sink != NULL) {
            mj__value_disown(conn, request);
        }
    }
    struct mj__loss ignored;
    mj__batches_forget_all(conn, NULL, NULL, &ignored);
    conn->parked = NULL;
    conn->parked_tail = &conn->parked;
}

void mj__conn_free(struct mj__conn *conn) {
    if (conn == NULL || conn->released) {
        return;
    }
    detach(conn);
    mj__conn_close(conn);
    free_later(conn);
}

static void loop_closes(struct mj__deferred *deferred) {
    mj__conn_close(conn_of_freed(deferred));
}

void mj__conn_release(struct mj__conn *conn) {
    if (conn == NULL || conn->released) {
        return;
    }
    /* In the middle of a batch a collector's finalizer may call this: the flush ends it. */
    bool owes =
        conn->state == MJ__CONN_OPEN &&
        (conn->silent > 0 || mj__outgoing_pending(&conn->out) > 0 || conn->batches != NULL);
    conn->freed.run = loop_closes;
    if (!owes || !mj__loop_before_close(conn->loop, &conn->freed)) {
        mj__conn_free(conn);
        return;
    }
    detach(conn);
    conn->orphan = true;
    conn->fence_hurry |= conn->unfenced > 0;
    mj__conn_queue_flush(conn);
}

void mj__conn_end_orphan(struct mj__conn *conn) {
    if (conn->silent == 0 && mj__outgoing_pending(&conn->out) == 0) {
        mj__conn_close(conn);
    }
}
