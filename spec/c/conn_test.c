/* Connections used from C, without Lua: done functions that abandon, close, free and jump while
 * answers are handed over; and bytes that answer nothing which has left. */
#include "conn.h"

#include "check.h"

#include <setjmp.h>
#include <sys/socket.h>
#include <sys/un.h>

enum { REQUESTS = 200, SPARED = 10 }; /* several batches of answers */

/* What becomes of the requests. */
enum ending { TIMED_OUT, SERVER_GONE, ANSWERED };
/* What the first done function does. */
enum deed { NOTHING, ABANDON, ABANDON_ALL, CLOSE, CLOSE_SOON, FREE };

static struct {
    struct mj__loop *loop;
    struct mj__pool *pool;
    size_t used;
    struct mj__conn *conn;
    int peer;
    bool opened;
    enum deed deed;
    struct {
        uint64_t seq;
        int calls;
        bool given_up;
        enum mj__kind kind;
    } requests[REQUESTS];
    int called;
    bool told_after;
} world;

static void on_opened(void *arg, struct mj__conn *conn, const struct mj__error *error) {
    (void)arg;
    (void)conn;
    world.opened = error == NULL;
}

static void give_up_behind(uint32_t index) {
    for (uint32_t i = index; i < REQUESTS; i++) {
        world.requests[i].given_up = world.requests[i].calls == 0;
    }
}

static void on_done(void *arg, uint32_t index, const struct mj__answer *answer) {
    struct mj__error error;
    world.requests[index].calls++;
    world.requests[index].kind = answer->error != NULL ? answer->error->kind : MJ__KIND_NONE;
    world.told_after |= world.requests[index].given_up;
    if (world.called++ > 0) {
        return;
    }
    switch (world.deed) {
    case NOTHING:
        break;
    case ABANDON:
        give_up_behind(SPARED);
        for (int i = SPARED; i < REQUESTS; i++) {
            mj__conn_abandon(world.conn, world.requests[i].seq, &error);
        }
        break;
    case ABANDON_ALL:
        give_up_behind(0);
        mj__conn_abandon_all(world.conn, on_done, arg, &error);
        break;
    case CLOSE_SOON:
        mj__conn_close_soon(world.conn);
        CHECK(mj__conn_is_open(world.conn));
        break;
    case CLOSE:
        mj__conn_close(world.conn);
        break;
    case FREE:
        give_up_behind(0);
        mj__conn_free(world.conn);
        world.conn = NULL;
        break;
    }
}

/* A connection to a listener of our own that has taken it. */
static void connect_to_peer(const char *options, const struct mj__conn_owner *owner) {
    char path[64], text[160];
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct mj__error error;
    struct mj__url url;
    snprintf(path, sizeof path, "/tmp/moonjay-conn-%d", (int)getpid());
    memcpy(address.sun_path, path, strlen(path) + 1);
    snprintf(text, sizeof text, "memcache://%s?%s", path, options);
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    NEED(bind(listener, (struct sockaddr *)&address, sizeof address) == 0);
    NEED(listen(listener, 1) == 0);
    NEED(mj__url_parse(text, strlen(text), &url, &error) == 0);
    world.conn = mj__conn_open(world.loop, world.pool, NULL, &url.endpoints[0], owner, &error);
    NEED(world.conn != NULL);
    while (!world.opened) {
        NEED(mj__loop_turn(world.loop, true) == 0);
    }
    world.peer = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    NEED(world.peer >= 0);
    mj__url_free(&url);
    close(listener);
    unlink(path);
}

static void submit_all(void) {
    struct mj__error error;
    for (uint32_t i = 0; i < REQUESTS; i++) {
        const struct mj__call call = {.id = MJ__GET, .key = "key", .key_size = 3};
        NEED(mj__conn_submit(world.conn, &call, NULL, NULL, on_done, NULL, i,
                             &world.requests[i].seq, &error) == MJ__SUBMITTED);
    }
    NEED(mj__loop_turn(world.loop, false) == 0);
}

/* Reads what was asked, so that a close is no reset, and answers each request with a miss. */
static void answer_all(bool answer) {
    char text[65536];
    ssize_t size = 0;
    int lines = 0;
    while (lines < REQUESTS) {
        ssize_t got = read(world.peer, text + size, sizeof text - (size_t)size);
        NEED(got > 0);
        for (ssize_t i = size; i < size + got; i++) {
            lines += text[i] == '\n';
        }
        size += got;
    }
    for (const char *at = text; answer && at < text + size;) {
        const char *end = memchr(at, '\n', (size_t)(text + size - at));
        const char *token = memmem(at, (size_t)(end - at), " O", 2);
        char reply[32];
        int length = snprintf(reply, sizeof reply, "EN%.*s\n", (int)(end - token), token);
        NEED(write(world.peer, reply, (size_t)length) == length);
        at = end + 1;
    }
}

/* Turns until nobody waits any more and what was freed is gone. */
static void turn_to_the_end(void) {
    mj__time last = mj__clock() + 10 * MJ__SECOND;
    bool over = false;
    while (!over && mj__clock() < last) {
        over = true;
        for (int i = 0; i < REQUESTS; i++) {
            over &= world.requests[i].calls > 0 || world.requests[i].given_up;
        }
        NEED(mj__loop_turn(world.loop, false) == 0);
    }
    CHECK(over);
    for (int i = 0; i < 3; i++) {
        NEED(mj__loop_turn(world.loop, false) == 0);
    }
}

static void open_world(const char *options, const struct mj__conn_owner *owner) {
    struct mj__error error;
    memset(&world, 0, sizeof world);
    world.loop = mj__loop_open(&error);
    NEED(world.loop != NULL);
    world.pool = mj__pool_open(&world.used, 0);
    NEED(world.pool != NULL);
    connect_to_peer(options, owner);
}

static void close_world(void) {
    mj__conn_free(world.conn);
    NEED(mj__loop_turn(world.loop, false) == 0);
    if (world.peer >= 0) {
        close(world.peer);
    }
    mj__pool_close(world.pool);
    CHECK(world.used == 0);
    mj__loop_close(world.loop);
}

static void play(enum ending ending, enum deed deed) {
    const struct mj__conn_owner owner = {.opened = on_opened};
    open_world("protocol=meta&timeout=100ms", &owner);
    world.deed = deed;
    submit_all();
    if (ending != TIMED_OUT) {
        answer_all(ending == ANSWERED);
    }
    if (ending == SERVER_GONE) {
        close(world.peer);
        world.peer = -1;
    }
    turn_to_the_end();
    CHECK(!world.told_after);
    for (int i = 0; i < REQUESTS; i++) {
        CHECK(world.requests[i].calls == (world.requests[i].given_up ? 0 : 1));
    }
    close_world();
}

static void play_endings(enum deed deed) {
    play(TIMED_OUT, deed);
    play(SERVER_GONE, deed);
    play(ANSWERED, deed);
}

static void nothing(void) {
    play(TIMED_OUT, NOTHING);
    CHECK(world.requests[REQUESTS - 1].kind == MJ__TIMEOUT);
    play(SERVER_GONE, NOTHING);
    CHECK(world.requests[REQUESTS - 1].kind == MJ__CLOSED);
    play(ANSWERED, NOTHING);
    CHECK(world.requests[REQUESTS - 1].kind == MJ__KIND_NONE);
}

static void abandon(void) {
    play_endings(ABANDON);
    CHECK(world.called == SPARED);
}

static void abandon_all(void) {
    play_endings(ABANDON_ALL);
    CHECK(world.called == 1);
}

static void close_inside(void) {
    play_endings(CLOSE);
    CHECK(world.called == REQUESTS);
}

/* At the end of the turn: all that came in it is answered. */
static void close_soon(void) {
    play(TIMED_OUT, CLOSE_SOON);
    CHECK(world.requests[REQUESTS - 1].kind == MJ__TIMEOUT);
    play(ANSWERED, CLOSE_SOON);
    CHECK(world.called == REQUESTS);
    CHECK(world.requests[REQUESTS - 1].kind == MJ__KIND_NONE);
}

static void free_inside(void) {
    play_endings(FREE);
    CHECK(world.called == 1);
}

/* ---- what answers nothing --------------------------------------------------------------- */

/* What the requests of these specs were told. */
static struct told {
    int ends, lines;
    enum mj__code code;
    enum mj__kind kind;
    enum mj__sent sent;
} told[3];

static void note(uint32_t index, const struct mj__answer *answer) {
    struct told *at = &told[index];
    at->lines += answer->more;
    at->ends += !answer->more;
    at->code = answer->reply.code;
    at->kind = answer->error != NULL ? answer->error->kind : MJ__KIND_NONE;
    at->sent = answer->error != NULL ? answer->error->sent : MJ__SENT_YES;
}

static void on_told(void *arg, uint32_t index, const struct mj__answer *answer) {
    (void)arg;
    note(index, answer);
}

/* Closes in the one way or the other, and writes to all blocks of memory that this gave back. */
static void on_value(void *arg, uint32_t index, const struct mj__answer *answer) {
    enum { BLOCKS = 6 };
    char *blocks[BLOCKS];
    size_t sizes[BLOCKS];
    bool release = *(const bool *)arg;
    note(index, answer);
    if (release) {
        mj__conn_release(world.conn);
    } else {
        mj__conn_close(world.conn);
    }
    for (int i = 0; i < BLOCKS; i++) {
        blocks[i] = mj__pool_take(world.pool, 1, &sizes[i]);
        NEED(blocks[i] != NULL);
        memset(blocks[i], 'x', sizes[i]);
    }
    CHECK(answer->key_size == 5 && memcmp(answer->key, "lent?", 5) == 0);
    CHECK(answer->reply.value_size == 5 && memcmp(answer->value, "whole", 5) == 0);
    for (int i = 0; i < BLOCKS; i++) {
        mj__pool_give(world.pool, blocks[i], sizes[i]);
    }
}

static void lend_and_close(bool release) {
    const struct mj__conn_owner owner = {.opened = on_opened};
    const struct mj__call call = {.id = MJ__GET, .key = "lent?", .key_size = 5};
    static const char reply[] = "VA 5\r\nwhole\r\n";
    struct mj__error error;
    uint64_t seq;
    open_world("protocol=meta&verify=false&timeout=5s", &owner);
    memset(told, 0, sizeof told);
    NEED(mj__conn_submit(world.conn, &call, NULL, NULL, on_value, &release, 0, &seq, &error) ==
         MJ__SUBMITTED);
    NEED(mj__loop_turn(world.loop, false) == 0);
    NEED(write(world.peer, reply, sizeof reply - 1) == sizeof reply - 1);
    NEED(mj__loop_turn(world.loop, false) == 0);
    CHECK(told[0].ends == 1 && told[0].kind == MJ__KIND_NONE);
    if (release) {
        world.conn = NULL;
    }
    close_world();
}

static void lent(void) {
    lend_and_close(false);
    lend_and_close(true);
}

static void store(uint32_t index, mj__done_fn *done) {
    const struct mj__call call = {.id = MJ__SET,
                                  .key = "key",
                                  .key_size = 3,
                                  .value = "v",
                                  .value_size = 1,
                                  .given = MJ__WITH_VALUE};
    struct mj__error error;
    uint64_t seq;
    NEED(mj__conn_submit(world.conn, &call, NULL, NULL, done, NULL, index, &seq, &error) ==
         MJ__SUBMITTED);
}

static void peer_says(const char *text) {
    NEED(write(world.peer, text, strlen(text)) == (ssize_t)strlen(text));
}

static void peer_hears(size_t size) {
    char text[256];
    NEED(size <= sizeof text && recv(world.peer, text, size, MSG_WAITALL) == (ssize_t)size);
}

static void open_classic(void) {
    const struct mj__conn_owner owner = {.opened = on_opened};
    memset(told, 0, sizeof told);
    open_world("protocol=ascii", &owner);
}

static void turn_until_closed(void) {
    mj__time last = mj__clock() + 10 * MJ__SECOND;
    while (mj__conn_fd(world.conn) >= 0 && mj__clock() < last) {
        NEED(mj__loop_turn(world.loop, false) == 0);
    }
    CHECK(mj__conn_fd(world.conn) < 0);
}

enum { STORE_SIZE = sizeof "set key 0 0 1\r\nv\r\n" - 1 };

/* A write that fails tells that the peer is gone; what it said before is read then. */
static void close_with_more(void *arg, uint32_t index, const struct mj__answer *answer) {
    (void)arg;
    note(index, answer);
    store(2, on_told);
    peer_says("NOT_STORED\r\n");
    close(world.peer);
    world.peer = -1;
    mj__conn_close(world.conn);
}

static void replies_are_met_once(void) {
    open_classic();
    store(0, close_with_more);
    store(1, on_told);
    NEED(mj__loop_turn(world.loop, false) == 0);
    peer_hears(2 * (size_t)STORE_SIZE);
    peer_says("STORED\r\n");
    turn_until_closed();
    CHECK(told[0].kind == MJ__KIND_NONE && told[0].code == MJ__HD);
    CHECK(told[1].ends == 1 && told[1].kind != MJ__KIND_NONE); /* not the STORED of the first */
    CHECK(told[2].ends == 1 && told[2].kind != MJ__KIND_NONE && told[2].sent == MJ__SENT_NO);
    close_world();
}

static void unwritten(const char *text, enum mj__kind kind) {
    open_classic();
    store(0, on_told);
    peer_says(text);
    close(world.peer);
    world.peer = -1;
    turn_until_closed();
    CHECK(told[0].ends == 1 && told[0].kind == kind && told[0].sent == MJ__SENT_NO);
    close_world();
}

static void nothing_answers_the_unwritten(void) {
    unwritten("STORED\r\n", MJ__PROTOCOL);
    unwritten("SERVER_ERROR good bye\r\n", MJ__SERVER_ERROR);
}

static void the_rest_of_a_line(void) {
    open_classic();
    peer_says("SERVER_ERR");
    for (int i = 0; i < 3; i++) {
        NEED(mj__loop_turn(world.loop, false) == 0);
    }
    store(0, on_told);
    NEED(mj__loop_turn(world.loop, false) == 0);
    peer_hears(STORE_SIZE);
    peer_says("OR good bye\r\n");
    turn_until_closed();
    CHECK(told[0].ends == 1 && told[0].kind == MJ__SERVER_ERROR);
    CHECK(told[0].sent == MJ__SENT_MAYBE);
    close_world();
}

/* ---- done functions that jump ----------------------------------------------------------- */

static jmp_buf *out; /* of the innermost hand-over */

static void deliver(void *arg, struct mj__conn *conn, struct mj__batch *batch) {
    mj__done_fn *done;
    void *done_arg;
    bool more;
    jmp_buf here, *outer = out;
    (void)arg;
    (void)conn;
    out = &here;
    if (setjmp(here) != 0) {
        NEED(mj__batch_interrupted(batch, &done, &done_arg, &more));
        told[0].lines += more;
        told[0].ends += !more;
    }
    mj__batch_hand_over(batch);
    out = outer;
}

/* As a value for which there is no memory, while a finalizer closes the connection. */
static void close_and_jump(void *arg, uint32_t index, const struct mj__answer *answer) {
    (void)arg;
    if (!answer->more) {
        note(index, answer);
        return;
    }
    mj__conn_close(world.conn);
    longjmp(*out, 1);
}

static void jump_from_a_line(void) {
    const struct mj__conn_owner owner = {.opened = on_opened, .deliver = deliver};
    const struct mj__call call = {.id = MJ__GET_MANY, .text = "a b", .text_size = 3};
    struct mj__error error;
    uint64_t seq;
    memset(told, 0, sizeof told);
    open_world("protocol=ascii", &owner);
    NEED(mj__conn_submit(world.conn, &call, NULL, NULL, close_and_jump, NULL, 0, &seq,
                         &error) == MJ__SUBMITTED);
    NEED(mj__loop_turn(world.loop, false) == 0);
    peer_says("VALUE a 0 1\r\n1\r\n");
    turn_until_closed();
    CHECK(told[0].lines == 1 && told[0].ends == 1);
    close_world();
}

int main(void) {
    static const struct check checks[] = {
        {"every request ends once: late, lost with the server, answered", nothing},
        {"a done function may give up others: they are not told", abandon},
        {"a done function may give up all that are left", abandon_all},
        {"a done function may close: all others are told, once", close_inside},
        {"what a done function is lent lasts until it returns, also where it closes", lent},
        {"one that closes at the end of the turn leaves what came before", close_soon},
        {"a done function may free the connection: nobody else is told", free_inside},
        {"a done function may close what cannot be written: no reply is met twice",
         replies_are_met_once},
        {"what came before a request left is no answer to it", nothing_answers_the_unwritten},
        {"nor is a line that had begun before it left", the_rest_of_a_line},
        {"a done function may close and jump from one line of an answer: it ends once",
         jump_from_a_line},
    };
    return check_all(checks, sizeof checks / sizeof *checks);
}
