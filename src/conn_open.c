/* conn_open.c: from a URL to an open connection: resolve, connect, log in, ask which protocol. */
#include "conn_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    RETRY_PAUSE = 5 * 1000 * 1000
}; /* ns: a unix socket whose queue is full is asked again */

static void attempt(struct mj__conn *conn);
static void handshake(struct mj__conn *conn);

/* ---- addresses -------------------------------------------------------------------------- */

/* This address did not work: the next one, or the end with what the last one said. */
static void attempt_failed(struct mj__conn *conn, const struct mj__error *error) {
    conn->last_failure = *error;
    conn->retry_at = MJ__NEVER;
    mj__conn_drop_transport(conn);
    if (conn->address != NULL && conn->address->ai_next != NULL) {
        conn->address = conn->address->ai_next;
        attempt(conn);
        return;
    }
    mj__conn_fail(conn, error);
}

static int connect_to(struct mj__conn *conn, struct mj__error *error) {
    const struct mj__options *options = &conn->endpoint.options;
    if (conn->endpoint.transport == MJ__UNIX) {
        struct sockaddr_storage address;
        socklen_t size = mj__stream_unix_address(&address, conn->endpoint.path);
        return mj__stream_connect(&conn->stream, (struct sockaddr *)&address, size, options,
                                  error);
    }
    return mj__stream_connect(&conn->stream, conn->address->ai_addr, conn->address->ai_addrlen,
                              options, error);
}

/* A dead address gets its share of the time left, so that the next is tried before it is over. */
static mj__time share_of_time(const struct mj__conn *conn) {
    mj__time now = mj__clock(), left = 0;
    for (const struct addrinfo *at = conn->address; at != NULL; at = at->ai_next) {
        left++;
    }
    return left > 1 ? now + (conn->connect_deadline - now) / left : MJ__NEVER;
}

static void attempt(struct mj__conn *conn) {
    struct mj__error error;
    conn->state = MJ__CONN_CONNECTING;
    conn->attempt_deadline = share_of_time(conn);
    mj__conn_wake_at(conn, conn->attempt_deadline);
    if (conn->state == MJ__CONN_CLOSED) {
        return; /* no memory for the timer */
    }
    int status = connect_to(conn, &error);
    if (status > 0) { /* a full listen queue: the same again, shortly */
        conn->last_failure = error;
        conn->retry_at = mj__clock() + RETRY_PAUSE;
        mj__conn_wake_at(conn, conn->retry_at);
        return;
    }
    if (status < 0) {
        attempt_failed(conn, &error);
        return;
    }
    if (mj__watch_open(conn->loop, &conn->watch, conn->stream.fd) != 0 ||
        mj__watch_arm(&conn->watch, false, true) != 0) {
        mj__fail(&error, MJ__NO_MEMORY, "the socket cannot be watched: no memory");
        error.phase = MJ__PHASE_CONNECT;
        attempt_failed(conn, &error);
        return;
    }
    conn->counters.arms++;
}

static void on_resolved(void *arg, struct addrinfo *list, const char *reason) {
    struct mj__conn *conn = arg;
    conn->lookup = NULL;
    if (list == NULL) {
        struct mj__error error;
        mj__fail(&error, MJ__RESOLVE, "the name %s cannot be resolved: %s", conn->endpoint.host,
                 reason);
        error.phase = MJ__PHASE_RESOLVE;
        mj__conn_fail(conn, &error);
        return;
    }
    conn->addresses = list;
    conn->address = list;
    attempt(conn);
}

void mj__conn_start(struct mj__conn *conn) {
    struct mj__error error;
    if (conn->endpoint.transport == MJ__UNIX) {
        attempt(conn);
        return;
    }
    conn->lookup = mj__resolve(conn->resolver, conn->endpoint.host, conn->endpoint.port,
                               on_resolved, conn, &error);
    if (conn->lookup == NULL) {
        error.phase = MJ__PHASE_RESOLVE;
        mj__conn_fail(conn, &error);
    }
}

void mj__conn_connect_ready(struct mj__conn *conn) {
    struct mj__error error;
    if (mj__stream_connected(&conn->stream, &error) != 0) {
        attempt_failed(conn, &error);
        return;
    }
    if (mj__watch_arm(&conn->watch, true, false) != 0) {
        mj__fail(&error, MJ__NO_MEMORY, "the socket cannot be watched: no memory");
        error.phase = MJ__PHASE_CONNECT;
        attempt_failed(conn, &error);
        return;
    }
    conn->counters.arms++;
    mj__stream_be_patient(&conn->stream, MJ__PATIENCE);
    handshake(conn);
}

/* ---- time ------------------------------------------------------------------------------- */

static void connect_timed_out(struct mj__conn *conn) {
    static const struct {
        enum mj__phase phase;
        const char *text;
    } stages[] = {
        [MJ__CONN_RESOLVING] = {MJ__PHASE_RESOLVE, "the name was not resolved"},
        [MJ__CONN_CONNECTING] = {MJ__PHASE_CONNECT, "the server did not accept the connection"},
        [MJ__CONN_HANDSHAKE] = {MJ__PHASE_HANDSHAKE,
                                "the server accepted the connection but does not answer"},
    };
    const char *before =
        conn->last_failure.kind != MJ__KIND_NONE ? conn->last_failure.text : "";
    struct mj__error error;
    mj__fail(&error, MJ__CONNECT_TIMEOUT, "%s within connect_timeout (%g s)%s%s",
             stages[conn->state].text, (double)conn->endpoint.options.connect_timeout / 1e9,
             *before != '\0' ? "; before that: " : "", before);
    error.phase = stages[conn->state].phase;
    mj__conn_fail(conn, &error);
}

mj__time mj__conn_connect_timer(struct mj__conn *conn, mj__time now) {
    if (now >= conn->connect_deadline) {
        connect_timed_out(conn);
        return MJ__NEVER;
    }
    if (conn->state == MJ__CONN_CONNECTING && now >= conn->attempt_deadline) {
        struct mj__error error;
        mj__fail(&error, MJ__CONNECT_TIMEOUT, "one address did not accept the connection");
        error.phase = MJ__PHASE_CONNECT;
        attempt_failed(conn, &error);
    } else if (now >= conn->retry_at) {
        conn->retry_at = MJ__NEVER;
        attempt(conn);
    }
    mj__time next = conn->state == MJ__CONN_CONNECTING ? conn->attempt_deadline : MJ__NEVER;
    next = conn->retry_at < next ? conn->retry_at : next;
    return next < conn->connect_deadline ? next : conn->connect_deadline;
}

/* ---- handshake -------------------------------------------------------------------------- */

static void opened(struct mj__conn *conn) {
    conn->state = MJ__CONN_OPEN;
    if (conn->addresses != NULL) {
        freeaddrinfo(conn->addresses);
        conn->addresses = NULL;
        conn->address = NULL;
    }
    conn->counters.replies = 0; /* those of the handshake */
    if (conn->owner.opened != NULL) {
        conn->owner.opened(conn->owner.arg, conn, NULL);
    }
}

/* Whatever the server answered to the handshake, nothing that its user asks has been sent. */
static void handshake_failed(struct mj__conn *conn, const struct mj__error *cause) {
    struct mj__error error = *cause;
    error.phase = MJ__PHASE_HANDSHAKE;
    error.sent = MJ__SENT_NO;
    mj__conn_fail(conn, &error);
}

static void ask(struct mj__conn *conn, const struct mj__call *call, mj__done_fn *done,
                uint32_t index) {
    struct mj__error error;
    uint64_t seq;
    if (mj__conn_enqueue(conn, call, NULL, NULL, done, conn, index, &seq, &error) != 0) {
        handshake_failed(conn, &error);
    }
}

/* "1.6.18": meta commands answer as they do now since 1.6.10. */
static bool version_has_meta(const char *text, size_t size) {
    char copy[32];
    int major, minor, patch;
    snprintf(copy, sizeof copy, "%.*s", (int)(size < sizeof copy ? size : sizeof copy - 1),
             text);
    if (sscanf(copy, "%d.%d.%d", &major, &minor, &patch) != 3) {
        return true; /* a server of another make that answers mn */
    }
    return major > 1 || (major == 1 && (minor > 6 || (minor == 6 && patch >= 10)));
}

enum { PROBE_MN, PROBE_VERSION };

static void on_probe(void *arg, uint32_t index, const struct mj__answer *answer) {
    struct mj__conn *conn = arg;
    if (conn->state != MJ__CONN_HANDSHAKE) {
        return;
    }
    if (index == PROBE_MN) {
        conn->speaks_meta = answer->error == NULL;
        if (answer->error != NULL && answer->error->kind != MJ__CLIENT_ERROR) {
            handshake_failed(conn, answer->error);
        }
        return;
    }
    if (answer->error != NULL) {
        handshake_failed(conn, answer->error);
        return;
    }
    bool meta =
        conn->speaks_meta && version_has_meta(answer->reply.text, answer->reply.text_size);
    conn->protocol = meta ? MJ__META : MJ__ASCII;
    opened(conn);
}

/* One round trip: mn is known to servers with meta commands alone, version to every memcached. */
static void probe(struct mj__conn *conn) {
    if (conn->endpoint.options.protocol != MJ__AUTO) {
        opened(conn);
        return;
    }
    conn->protocol = MJ__META;
    if (!conn->classic_only) {
        ask(conn, &(struct mj__call){.id = MJ__NOOP}, on_probe, PROBE_MN);
    }
    if (conn->state == MJ__CONN_HANDSHAKE) {
        ask(conn, &(struct mj__call){.id = MJ__VERSION}, on_probe, PROBE_VERSION);
    }
}

static void on_login(void *arg, uint32_t index, const struct mj__answer *answer) {
    struct mj__conn *conn = arg;
    (void)index;
    if (conn->state != MJ__CONN_HANDSHAKE) {
        return;
    }
    if (answer->error == NULL) {
        probe(conn);
        return;
    }
    struct mj__error error = *answer->error;
    if (error.kind == MJ__CLIENT_ERROR || error.kind == MJ__AUTH) {
        mj__fail(&error, MJ__AUTH, "the login was refused: check user and password in the URL");
    }
    handshake_failed(conn, &error);
}

/* The login of `-Y`: a set of any key whose value is "user password". What is sent behind a login
 * that fails is refused with it, so its reply is awaited first. */
static void login(struct mj__conn *conn) {
    const struct mj__endpoint *endpoint = &conn->endpoint;
    size_t size = strlen(endpoint->user) + 1 + strlen(endpoint->password);
    char *token = malloc(size + 1);
    if (token == NULL) {
        struct mj__error error;
        mj__fail(&error, MJ__NO_MEMORY, "no memory for the login");
        handshake_failed(conn, &error);
        return;
    }
    snprintf(token, size + 1, "%s %s", endpoint->user, endpoint->password);
    ask(conn,
        &(struct mj__call){.id = MJ__LOGIN,
                           .key = "login",
                           .key_size = 5,
                           .value = token,
                           .value_size = size,
                           .given = MJ__WITH_VALUE},
        on_login, 0);
    free(token);
}

static void handshake(struct mj__conn *conn) {
    conn->state = MJ__CONN_HANDSHAKE;
    if (conn->endpoint.user != NULL) {
        login(conn);
    } else {
        probe(conn);
    }
}

/* Proxies that know only the classic protocol close the connection at the word mn. */
bool mj__conn_retry_classic(struct mj__conn *conn) {
    uint64_t before_probe = conn->endpoint.user != NULL; /* the reply to the login */
    if (conn->state != MJ__CONN_HANDSHAKE || conn->classic_only ||
        conn->endpoint.options.protocol != MJ__AUTO || conn->counters.replies != before_probe) {
        return false;
    }
    conn->classic_only = true;
    mj__conn_drop_transport(conn);
    mj__conn_forget_requests(conn);
    conn->popped_end = conn->out.written;
    attempt(conn);
    return true;
}
