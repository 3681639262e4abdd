/* What a connection used from C is told of a request that fails: kind, phase and sent. These are
 * the rows of spec/support/sent_rows.lua, and those that no script can provoke. */
#include "conn.h"

#include "check.h"

#include <netinet/in.h>
#include <sys/socket.h>

enum { BIG = 1 << 20, REQUESTS = 4 };

/* Requests stand here, in this order. */
enum place { WRITTEN, ALSO_WRITTEN, HALF_WRITTEN, BEHIND };

static struct {
    struct mj__loop *loop;
    struct mj__pool *pool;
    size_t used;
    struct mj__resolver *resolver;
    struct mj__conn *conn;
    int listener, peer;
    bool opened;
    struct mj__error failed; /* the end of the attempt to connect */
    struct {
        uint64_t seq;
        int calls;
        struct mj__error error;
    } requests[REQUESTS];
    bool give_up_next; /* in the first done function */
} world;

static char big[BIG];

static void on_opened(void *arg, struct mj__conn *conn, const struct mj__error *error) {
    (void)arg;
    (void)conn;
    world.opened = true;
    if (error != NULL) {
        world.failed = *error;
    }
}

static void on_done(void *arg, uint32_t index, const struct mj__answer *answer) {
    (void)arg;
    world.requests[index].calls++;
    if (answer->error != NULL) {
        world.requests[index].error = *answer->error;
    }
    if (world.give_up_next && index == WRITTEN) {
        mj__conn_abandon(world.conn, world.requests[ALSO_WRITTEN].seq,
                         &world.requests[ALSO_WRITTEN].error);
    }
}

static void turn(void) {
    NEED(mj__loop_turn(world.loop, false) == 0);
}

/* A listener with small buffers, a pool of at most `limit` bytes, and a connection under way. */
static void begin(size_t limit, const char *options) {
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    struct mj__error error;
    struct mj__url url;
    int small = 4096;
    char text[160];
    memset(&world, 0, sizeof world);
    world.loop = mj__loop_open(&error);
    world.pool = mj__pool_open(&world.used, limit);
    world.resolver = mj__resolver_open(world.loop, &error);
    NEED(world.loop != NULL && world.pool != NULL && world.resolver != NULL);
    world.peer = -1;
    world.listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    NEED(setsockopt(world.listener, SOL_SOCKET, SO_RCVBUF, &small, sizeof small) == 0);
    NEED(bind(world.listener, (struct sockaddr *)&address, size) == 0);
    NEED(listen(world.listener, 1) == 0);
    NEED(getsockname(world.listener, (struct sockaddr *)&address, &size) == 0);
    snprintf(text, sizeof text, "memcache://127.0.0.1:%d?protocol=meta&%s",
             ntohs(address.sin_port), options);
    NEED(mj__url_parse(text, strlen(text), &url, &error) == 0);
    const struct mj__conn_owner owner = {.opened = on_opened};
    world.conn = mj__conn_open(world.loop, world.pool, world.resolver, &url.endpoints[0],
                               &owner, &error);
    NEED(world.conn != NULL);
    mj__url_free(&url);
}

static void wait_until_opened(void) {
    while (!world.opened) {
        NEED(mj__loop_turn(world.loop, true) == 0);
    }
}

static void take(void) {
    world.peer = accept4(world.listener, NULL, NULL, SOCK_CLOEXEC);
    NEED(world.peer >= 0);
}

static void end(void) {
    mj__conn_free(world.conn);
    turn();
    if (world.peer >= 0) {
        close(world.peer);
    }
    if (world.listener >= 0) {
        close(world.listener);
    }
    mj__resolver_close(world.resolver);
    mj__pool_close(world.pool);
    CHECK(world.used == 0);
    mj__loop_close(world.loop);
}

static int submit(enum place place, struct mj__error *error) {
    static const struct mj__call get = {.id = MJ__GET, .key = "key", .key_size = 3};
    static const struct mj__call set = {.id = MJ__SET,
                                        .key = "big",
                                        .key_size = 3,
                                        .value = big,
                                        .value_size = BIG,
                                        .given = MJ__WITH_VALUE};
    return mj__conn_submit(world.conn, place == HALF_WRITTEN ? &set : &get, NULL, NULL, on_done,
                           NULL, (uint32_t)place, &world.requests[place].seq, error);
}

/* All that the peer has got, up to `size` bytes; at least `least`. */
static size_t read_some(char *text, size_t size, size_t least) {
    size_t have = 0;
    while (have < least) {
        ssize_t got = recv(world.peer, text + have, size - have, 0);
        NEED(got > 0);
        have += (size_t)got;
    }
    return have;
}

/* Two written, one half written, one behind it. */
static void stand(void) {
    struct mj__error error;
    wait_until_opened();
    take();
    NEED(submit(WRITTEN, &error) == MJ__SUBMITTED);
    NEED(submit(ALSO_WRITTEN, &error) == MJ__SUBMITTED);
    turn();
    NEED(submit(HALF_WRITTEN, &error) == MJ__SUBMITTED);
    NEED(submit(BEHIND, &error) == MJ__SUBMITTED);
    turn();
}

static bool is(const struct mj__error *error, enum mj__kind kind, enum mj__phase phase,
               enum mj__sent sent) {
    return error->kind == kind && error->phase == phase && error->sent == sent;
}

static bool told(enum place place, enum mj__kind kind, enum mj__phase phase,
                 enum mj__sent sent) {
    return world.requests[place].calls == 1 &&
           is(&world.requests[place].error, kind, phase, sent);
}

static void turn_until_closed(void) {
    while (mj__conn_is_open(world.conn)) {
        NEED(mj__loop_turn(world.loop, true) == 0);
    }
}

/* ---- the tests ---- */

static void reset_before_it_is_taken(void) {
    begin(0, "connect_timeout=10s");
    while (mj__conn_fd(world.conn) < 0) {
        turn(); /* the turn in which it connects; it hears of that in the next */
    }
    close(world.listener);
    world.listener = -1;
    wait_until_opened();
    CHECK(is(&world.failed, MJ__RESET, MJ__PHASE_CONNECT, MJ__SENT_NO));
    end();
}

static void not_open(void) {
    struct mj__error error;
    begin(0, "connect_timeout=10s");
    CHECK(submit(WRITTEN, &error) == MJ__REFUSED);
    CHECK(is(&error, MJ__CLOSED, MJ__PHASE_NONE, MJ__SENT_NO));
    wait_until_opened();
    mj__conn_close(world.conn);
    CHECK(submit(WRITTEN, &error) == MJ__REFUSED);
    CHECK(is(&error, MJ__CLOSED, MJ__PHASE_NONE, MJ__SENT_NO));
    CHECK(world.requests[WRITTEN].calls == 0);
    end();
}

static void every_place(void) {
    begin(0, "send_buffer=4096&timeout=60s");
    stand();
    mj__conn_close(world.conn);
    CHECK(told(WRITTEN, MJ__CLOSED, MJ__PHASE_READ, MJ__SENT_MAYBE));
    CHECK(told(ALSO_WRITTEN, MJ__CLOSED, MJ__PHASE_READ, MJ__SENT_MAYBE));
    CHECK(told(HALF_WRITTEN, MJ__CLOSED, MJ__PHASE_WRITE, MJ__SENT_MAYBE));
    CHECK(told(BEHIND, MJ__CLOSED, MJ__PHASE_QUEUE, MJ__SENT_NO));
    end();
}

/* Each is given up while the connection lives on; the half written one last, which ends it. */
static void given_up(void) {
    static const struct {
        enum place place;
        enum mj__phase phase;
    } rows[] = {
        {BEHIND, MJ__PHASE_QUEUE}, {WRITTEN, MJ__PHASE_READ}, {HALF_WRITTEN, MJ__PHASE_WRITE}};
    struct mj__error error = {.kind = MJ__CANCELLED};
    begin(0, "send_buffer=4096&timeout=60s");
    stand();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        mj__conn_abandon(world.conn, world.requests[rows[i].place].seq, &error);
        CHECK(is(&error, MJ__CANCELLED, rows[i].phase, MJ__SENT_MAYBE));
        CHECK(mj__conn_is_open(world.conn));
    }
    turn();
    CHECK(!mj__conn_is_open(world.conn));
    CHECK(told(ALSO_WRITTEN, MJ__TIMEOUT, MJ__PHASE_READ, MJ__SENT_MAYBE));
    CHECK(world.requests[WRITTEN].calls == 0 && world.requests[BEHIND].calls == 0);
    end();
}

/* Answers both, "EN" and the token, in one go. */
static void answer_both(void) {
    char text[256], reply[64];
    size_t size = read_some(text, sizeof text - 1, 2 * sizeof "mg key v O....\r" - 2);
    text[size] = '\0';
    const char *first = strstr(text, " O"), *second = strstr(first + 2, " O");
    int length = snprintf(reply, sizeof reply, "EN%.6s\r\nEN%.6s\r\n", first, second);
    NEED(write(world.peer, reply, (size_t)length) == length);
}

static void given_up_when_answered(void) {
    struct mj__error error;
    begin(0, "timeout=60s");
    wait_until_opened();
    take();
    NEED(submit(WRITTEN, &error) == MJ__SUBMITTED);
    NEED(submit(ALSO_WRITTEN, &error) == MJ__SUBMITTED);
    turn();
    world.give_up_next = true;
    answer_both();
    while (world.requests[WRITTEN].calls == 0) {
        NEED(mj__loop_turn(world.loop, true) == 0);
    }
    CHECK(world.requests[ALSO_WRITTEN].calls == 0);
    CHECK(world.requests[ALSO_WRITTEN].error.phase == MJ__PHASE_READ);
    CHECK(world.requests[ALSO_WRITTEN].error.sent == MJ__SENT_YES);
    end();
}

static void no_memory_for_the_request(void) {
    struct mj__error error;
    begin(2 * MJ__BLOCK, "timeout=60s");
    wait_until_opened();
    take();
    CHECK(submit(HALF_WRITTEN, &error) == MJ__REFUSED); /* its value would be copied */
    CHECK(is(&error, MJ__NO_MEMORY, MJ__PHASE_NONE, MJ__SENT_NO));
    CHECK(mj__conn_is_open(world.conn));
    CHECK(submit(WRITTEN, &error) == MJ__SUBMITTED);
    end();
}

/* The pool takes what is half written, the keys, and no receive buffer beside. */
static void no_memory_to_read_into(void) {
    begin(2 * BIG + MJ__BLOCK, "send_buffer=4096&timeout=60s");
    stand();
    NEED(write(world.peer, "E", 1) == 1);
    turn_until_closed();
    CHECK(told(WRITTEN, MJ__NO_MEMORY, MJ__PHASE_READ, MJ__SENT_MAYBE));
    CHECK(told(HALF_WRITTEN, MJ__NO_MEMORY, MJ__PHASE_WRITE, MJ__SENT_MAYBE));
    CHECK(told(BEHIND, MJ__NO_MEMORY, MJ__PHASE_QUEUE, MJ__SENT_NO));
    end();
}

int main(void) {
    static const struct check checks[] = {
        {"a connection reset before it is taken says so, and no", reset_before_it_is_taken},
        {"a submit to a connection that is not open says no", not_open},
        {"a closed connection tells each by how far it came", every_place},
        {"one that is given up may have been seen, or still will be", given_up},
        {"one that is given up when its answer is there says yes", given_up_when_answered},
        {"without memory for a request nothing is sent", no_memory_for_the_request},
        {"without memory to read into each is told by how far it came", no_memory_to_read_into},
    };
    return check_all(checks, sizeof checks / sizeof *checks);
}
