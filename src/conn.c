/* conn.c: a connection is made, timed and asked what it is like. How it ends: conn_close.c. */
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
    if (conn->orphan && !owes && conn->state == MJ__CONN_OPEN) {
        mj__conn_queue_flush(conn); /* which ends it */
    }
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
