/* conn.c: a connection's life: made, timed, failed, closed; and how answers are handed over. */
#include "conn_private.h"

#include <stdlib.h>

/* ---- time ------------------------------------------------------------------------------- */

void mj__conn_wake_at(struct mj__conn *conn, mj__time when) {
    if (when == MJ__NEVER || (conn->timer.slot != 0 && conn->timer.when <= when)) {
        return;
    }
    if (mj__timer_set(conn->loop, &conn->timer, when) != 0) {
        struct mj__error error;
        mj__fail(&error, MJ__NO_MEMORY, "no memory for a timer");
        mj__conn_fail(conn, &error);
    }
}

static struct mj__conn *conn_of_timer(struct mj__timer *timer) {
    return (struct mj__conn *)((char *)timer - offsetof(struct mj__conn, timer));
}

static void on_timer(struct mj__timer *timer) {
    struct mj__conn *conn = conn_of_timer(timer);
    mj__time now = mj__loop_now(conn->loop);
    mj__time next = conn->state == MJ__CONN_OPEN ? mj__conn_expire(conn, now)
                                                 : mj__conn_connect_timer(conn, now);
    if (conn->state != MJ__CONN_CLOSED) {
        mj__conn_wake_at(conn, next);
    }
}

/* ---- life ------------------------------------------------------------------------------- */

static int check_built_in(const struct mj__endpoint *endpoint, struct mj__error *error) {
    const char *what = endpoint->tls                              ? "memcache+tls://"
                       : endpoint->transport == MJ__UDP           ? "memcache+udp://"
                       : endpoint->options.protocol == MJ__BINARY ? "protocol=binary"
                                                                  : NULL;
    if (what == NULL) {
        return 0;
    }
    mj__fail(error, MJ__UNSUPPORTED, "%s is not built in yet", what);
    error->phase = MJ__PHASE_CONNECT;
    return -1;
}

static void on_ready(struct mj__watch *watch, bool readable, bool writable) {
    struct mj__conn *conn =
        (struct mj__conn *)((char *)watch - offsetof(struct mj__conn, watch));
    if (conn->state == MJ__CONN_CONNECTING) {
        mj__conn_connect_ready(conn);
        return;
    }
    if (readable) {
        mj__conn_readable(conn);
    }
    if (writable && conn->wait_writable && conn->state != MJ__CONN_CLOSED) {
        mj__conn_write(conn);
    }
}

struct mj__conn *mj__conn_open(struct mj__loop *loop, struct mj__pool *pool,
                               struct mj__resolver *resolver,
                               const struct mj__endpoint *endpoint,
                               const struct mj__conn_owner *owner, struct mj__error *error) {
    if (check_built_in(endpoint, error) != 0) {
        return NULL;
    }
    struct mj__conn *conn = calloc(1, sizeof *conn);
    if (conn == NULL || mj__endpoint_copy(&conn->endpoint, endpoint) != 0) {
        free(conn);
        mj__fail(error, MJ__NO_MEMORY, "no memory for a connection");
        return NULL;
    }
    conn->loop = loop;
    conn->pool = pool;
    conn->resolver = resolver;
    conn->owner = *owner;
    conn->stream.fd = -1;
    conn->state = MJ__CONN_RESOLVING;
    conn->protocol = endpoint->options.protocol;
    conn->timer.fire = on_timer;
    conn->watch.ready = on_ready;
    conn->flush.run = mj__conn_flush;
    conn->parked_tail = &conn->parked;
    conn->fence_due = MJ__NEVER;
    conn->attempt_deadline = MJ__NEVER;
    conn->retry_at = MJ__NEVER;
    conn->connect_deadline = mj__clock() + endpoint->options.connect_timeout;
    if (mj__timer_set(loop, &conn->timer, conn->connect_deadline) != 0) {
        mj__endpoint_free(&conn->endpoint);
        free(conn);
        mj__fail(error, MJ__NO_MEMORY, "no memory for a connection");
        return NULL;
    }
    mj__conn_queue_flush(conn); /* where it starts: nothing is ever called from inside open */
    return conn;
}

/* A socket closed while a reply is under way resets the connection, and what the kernel had not
 * sent yet is lost: so quiet requests are owed until the reply to their fence is there. */
void mj__conn_owe(struct mj__conn *conn) {
    bool owes = conn->wait_writable || conn->silent > 0;
    if (conn->owing != owes) {
        conn->owing = owes;
        mj__loop_owe(conn->loop, owes ? 1 : -1);
    }
}

void mj__conn_forget_requests(struct mj__conn *conn) {
    mj__outgoing_release(conn->pool, &conn->out);
    mj__requests_release(conn->pool, &conn->requests);
    conn->undated = conn->expiring = 0; /* as the queue, which is empty and starts anew */
    conn->silent = 0;
    mj__conn_owe(conn);
}

void mj__conn_drop_transport(struct mj__conn *conn) {
    mj__watch_close(&conn->watch);
    if (conn->stream.fd >= 0) {
        conn->stream.ops->close(&conn->stream);
    }
    mj__pool_give(conn->pool, conn->incoming.block, conn->incoming.block_size);
    conn->incoming = (struct mj__incoming){0};
    mj__buffer_release(conn->pool, &conn->in);
    conn->wait_writable = false;
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
    mj__loop_flush_cancel(conn->loop, &conn->flush);
    conn->stray_count = 0; /* their text stays: a batch under way may refer to it */
}

static void fail_requests(struct mj__conn *conn, const struct mj__error *error) {
    struct mj__batch batch;
    mj__batch_begin(&batch, conn);
    batch.text = error->text;
    for (uint64_t seq = conn->requests.head; seq != conn->requests.tail; seq++) {
        mj__batch_room(&batch);
        struct mj__request *request = mj__requests_at(&conn->requests, seq);
        if (request->done == NULL) {
            continue;
        }
        enum mj__phase phase;
        enum mj__sent sent;
        mj__conn_progress(conn, seq, &phase, &sent);
        struct mj__waiting_answer *answer = mj__batch_add(&batch, request, seq);
        answer->failed = true;
        answer->kind = error->kind;
        answer->phase = phase;
        answer->sent = sent;
    }
    mj__batch_end(&batch);
}

/* Quiet requests whose silence nothing will prove any more have failed, for all that is known. */
static void fail_quiet(struct mj__conn *conn, const struct mj__error *cause) {
    const struct mj__request *last = NULL;
    uint64_t count = 0;
    for (uint64_t seq = conn->requests.head; seq != conn->requests.tail; seq++) {
        const struct mj__request *request = mj__requests_at(&conn->requests, seq);
        if (request->bits & MJ__QUIET && request->done == NULL) {
            last = request;
            count++;
        }
    }
    if (count == 0) {
        return;
    }
    conn->counters.quiet_failed += count;
    if (conn->owner.quiet_failed != NULL) {
        struct mj__error error = *cause;
        const char *key = mj__requests_key(&conn->requests, last->key_at);
        bool one = count == 1;
        error.phase = MJ__PHASE_READ;
        error.sent = MJ__SENT_MAYBE;
        conn->owner.quiet_failed(conn->owner.arg, conn, &error,
                                 one ? mj__command((enum mj__command_id)last->id) : NULL,
                                 one ? key : NULL, one ? last->key_size : 0);
    }
}

static void fail_parked(struct mj__conn *conn, const struct mj__error *cause) {
    struct mj__error error = *cause;
    error.phase = MJ__PHASE_QUEUE;
    error.sent = MJ__SENT_NO;
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

static void free_now(struct mj__deferred *deferred) {
    struct mj__conn *conn =
        (struct mj__conn *)((char *)deferred - offsetof(struct mj__conn, freed));
    mj__endpoint_free(&conn->endpoint);
    free(conn->strays);
    free(conn);
}

void mj__conn_free(struct mj__conn *conn) {
    if (conn == NULL || conn->released) {
        return;
    }
    conn->released = true;
    conn->owner = (struct mj__conn_owner){0};
    for (uint64_t seq = conn->requests.head; seq != conn->requests.tail; seq++) {
        mj__requests_at(&conn->requests, seq)->done = NULL;
    }
    mj__batches_forget_all(conn, NULL, NULL);
    conn->parked = NULL;
    conn->parked_tail = &conn->parked;
    mj__conn_close(conn);
    conn->freed.run = free_now;
    mj__loop_free_later(conn->loop, &conn->freed);
}

/* ---- what it is like -------------------------------------------------------------------- */

bool mj__conn_is_open(const struct mj__conn *conn) {
    return conn->state == MJ__CONN_OPEN;
}

enum mj__protocol mj__conn_protocol(const struct mj__conn *conn) {
    return conn->protocol;
}

const struct mj__endpoint *mj__conn_endpoint(const struct mj__conn *conn) {
    return &conn->endpoint;
}

const struct mj__conn_counters *mj__conn_counters(const struct mj__conn *conn) {
    return &conn->counters;
}

uint64_t mj__conn_inflight(const struct mj__conn *conn) {
    return mj__requests_count(&conn->requests);
}

const struct mj__command *mj__conn_request(const struct mj__conn *conn, uint64_t seq,
                                           const char **key, size_t *key_size) {
    if (seq < conn->requests.head || seq >= conn->requests.tail) {
        return NULL;
    }
    const struct mj__request *request = mj__requests_at(&conn->requests, seq);
    *key = mj__requests_key(&conn->requests, request->key_at);
    *key_size = request->key_size;
    return mj__command((enum mj__command_id)request->id);
}

enum mj__phase mj__conn_phase(const struct mj__conn *conn) {
    static const enum mj__phase phases[] = {
        [MJ__CONN_RESOLVING] = MJ__PHASE_RESOLVE,   [MJ__CONN_CONNECTING] = MJ__PHASE_CONNECT,
        [MJ__CONN_HANDSHAKE] = MJ__PHASE_HANDSHAKE, [MJ__CONN_OPEN] = MJ__PHASE_NONE,
        [MJ__CONN_CLOSED] = MJ__PHASE_NONE,
    };
    return phases[conn->state];
}

int mj__conn_fd(const struct mj__conn *conn) {
    return conn->stream.fd;
}

bool mj__conn_has_unfenced(const struct mj__conn *conn) {
    return conn->silent > 0;
}
