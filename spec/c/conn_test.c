/* Connections used from C, without Lua: done functions that abandon, close and free while many
 * answers are handed over. */
#include "conn.h"

#include "check.h"

#include <sys/socket.h>
#include <sys/un.h>

enum { REQUESTS = 200, SPARED = 10 }; /* several batches of answers */

/* What becomes of the requests. */
enum ending { TIMED_OUT, SERVER_GONE, ANSWERED };
/* What the first done function does. */
enum deed { NOTHING, ABANDON, ABANDON_ALL, CLOSE, FREE };

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
static void connect_to_peer(void) {
    char path[64], text[128];
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct mj__error error;
    struct mj__url url;
    snprintf(path, sizeof path, "/tmp/moonjay-conn-%d", (int)getpid());
    memcpy(address.sun_path, path, strlen(path) + 1);
    snprintf(text, sizeof text, "memcache://%s?protocol=meta&timeout=100ms", path);
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    NEED(bind(listener, (struct sockaddr *)&address, sizeof address) == 0);
    NEED(listen(listener, 1) == 0);
    NEED(mj__url_parse(text, strlen(text), &url, &error) == 0);
    const struct mj__conn_owner owner = {.opened = on_opened};
    world.conn = mj__conn_open(world.loop, world.pool, NULL, &url.endpoints[0], &owner, &error);
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

static void play(enum ending ending, enum deed deed) {
    struct mj__error error;
    memset(&world, 0, sizeof world);
    world.deed = deed;
    world.loop = mj__loop_open(&error);
    NEED(world.loop != NULL);
    world.pool = mj__pool_open(&world.used, 0);
    NEED(world.pool != NULL);
    connect_to_peer();
    submit_all();
    if (ending != TIMED_OUT) {
        answer_all(ending == ANSWERED);
    }
    if (ending == SERVER_GONE) {
        close(world.peer);
    }
    turn_to_the_end();
    CHECK(!world.told_after);
    for (int i = 0; i < REQUESTS; i++) {
        CHECK(world.requests[i].calls == (world.requests[i].given_up ? 0 : 1));
    }
    mj__conn_free(world.conn);
    NEED(mj__loop_turn(world.loop, false) == 0);
    if (ending != SERVER_GONE) {
        close(world.peer);
    }
    mj__pool_close(world.pool);
    CHECK(world.used == 0);
    mj__loop_close(world.loop);
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

static void free_inside(void) {
    play_endings(FREE);
    CHECK(world.called == 1);
}

int main(void) {
    static const struct check checks[] = {
        {"every request ends once: late, lost with the server, answered", nothing},
        {"a done function may give up others: they are not told", abandon},
        {"a done function may give up all that are left", abandon_all},
        {"a done function may close: all others are told, once", close_inside},
        {"a done function may free the connection: nobody else is told", free_inside},
    };
    return check_all(checks, sizeof checks / sizeof *checks);
}
