/* conn_play.c: connections used from C, without Lua: every way to connect, pipelines, values small
 * and large, quiet requests, waiting for room, a server that never answers, giving up, closing. */
#include "conn.h"
#include "ledger.h"
#include "servers.h"
#include "sweep.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    ASKS = 14,           /* of one player at the most */
    PLAYERS = 12,        /* in one scenario at the most */
    LARGE = 200000,      /* a value that is lent to the connection, and read directly */
    HUGE_VALUE = 400000, /* more than a socket whose peer does not read takes */
    SINK_STEP = 50000,
    ARENA = 4 << 20,
    SECONDS = 20 /* for a round */
};

/* ---- what is asked ---- */

enum outcome {
    NOTHING, /* yet */
    STORED,
    VALUE,
    MISS,
    REFUSED,
    VALUES, /* of a get_many */
    GONE,   /* deleted */
    LATE,   /* timed out */
    CLOSED, /* by its user */
    SILENT, /* nobody is told any more */
    FAILED
};

struct ask {
    enum mj__command_id id;
    int key;
    size_t size; /* of its value */
    enum outcome expected;
    int depends; /* 1 + the ask without which the outcome may be another; 0: none */
    bool quiet, into, abandoned;
};

enum deed { NO_DEED, CLOSE_AT_ONCE, FREE_AT_ONCE };

struct part {
    const char *url;
    const char *(*path)(void); /* NULL: IP */
    const char *options;
    enum deed deed;
    enum mj__kind refusal; /* how it ends to open; NONE: it opens */
    uint32_t kinds;        /* errors that come without any fault */
    bool closes;           /* once all that was asked has left */
    size_t first;          /* asks of the first wave */
    struct ask asks[ASKS];
};

static const struct part parts[] = {
    {.url = "memcache://127.0.0.1:%d?timeout=20s&connect_timeout=20s",
     .first = 8,
     .asks = {{MJ__SET, 0, 40, STORED, 0, false, false, false},
              {MJ__GET, 0, 40, VALUE, 1, false, false, false},
              {MJ__SET, 1, LARGE, STORED, 0, false, false, false},
              {MJ__GET, 1, LARGE, VALUE, 3, false, false, false},
              {MJ__GET, 1, LARGE, VALUE, 3, false, true, false},
              {MJ__GET_MANY, 0, 0, VALUES, 0, false, false, false},
              {MJ__GET, 9, 0, MISS, 0, false, false, false},
              {MJ__INCR, 0, 0, REFUSED, 1, false, false, false},
              {MJ__SET, 2, 5000, STORED, 0, false, false, false},
              {MJ__DELETE, 0, 0, GONE, 1, false, false, false},
              {MJ__GET, 0, 0, MISS, 10, false, false, false},
              {MJ__GET, 2, 5000, VALUE, 9, false, false, false},
              {MJ__GET, 2, 5000, VALUE, 9, false, true, false}}},
    {.path = servers_path,
     .options = "?protocol=ascii&timeout=20s&connect_timeout=20s&direct_read=false"
                "&send_buffer=64k&receive_buffer=64k",
     .first = 5,
     .asks = {{MJ__SET, 0, 40, STORED, 0, false, false, false},
              {MJ__SET, 1, LARGE, STORED, 0, false, false, false},
              {MJ__GET, 1, LARGE, VALUE, 2, false, false, false},
              {MJ__GET_MANY, 0, 0, VALUES, 0, false, false, false},
              {MJ__GET, 0, 40, VALUE, 1, false, false, false},
              {MJ__GET, 9, 0, MISS, 0, false, false, false}}},
    {.path = servers_path, /* fenced for those who wait for their silence */
     .options = "?protocol=meta&timeout=20s&connect_timeout=20s",
     .first = 3,
     .asks = {{MJ__SET, 0, 40, STORED, 0, true, false, false},
              {MJ__ADD, 1, 40, STORED, 0, true, false, false},
              {MJ__SET, 2, LARGE, STORED, 0, true, false, false},
              {MJ__GET, 1, 40, VALUE, 2, false, false, false}}},
    {.path = servers_path, /* one at a time, the others wait for room */
     .options = "?protocol=meta&timeout=20s&connect_timeout=20s&max_inflight=1",
     .first = 4,
     .asks = {{MJ__SET, 0, 40, STORED, 0, false, false, false},
              {MJ__GET, 0, 40, VALUE, 1, false, false, false},
              {MJ__SET, 1, LARGE, STORED, 0, false, false, false},
              {MJ__GET, 1, LARGE, VALUE, 3, false, false, false}}},
    {.url = "memcache://" FAULT_HOST ":%d?timeout=20s&connect_timeout=20s",
     .first = 2,
     .asks = {{MJ__SET, 0, 40, STORED, 0, false, false, false},
              {MJ__GET, 0, 40, VALUE, 1, false, false, false}}},
    {.path = servers_login_path,
     .url = "memcache+unix://fault:let-me-in@%s?timeout=20s&connect_timeout=20s",
     .first = 2,
     .asks = {{MJ__SET, 0, 40, STORED, 0, false, false, false},
              {MJ__GET, 0, 40, VALUE, 1, false, false, false}}},
    {.path = servers_login_path,
     .url = "memcache+unix://fault:no@%s?timeout=20s&connect_timeout=20s",
     .refusal = MJ__AUTH,
     .kinds = SWEEP_KIND(MJ__AUTH)},
    {.path = servers_deaf_path, /* it closes, since its last is half written when time is up */
     .options = "?protocol=meta&timeout=3ms&stall_timeout=20s&connect_timeout=20s",
     .kinds = SWEEP_KIND(MJ__TIMEOUT),
     .closes = true,
     .first = 3,
     .asks = {{MJ__GET, 0, 0, LATE, 0, false, false, false},
              {MJ__GET, 1, 0, SILENT, 0, false, false, true},
              {MJ__SET, 2, HUGE_VALUE, LATE, 0, false, false, false}}},
    {.path = servers_deaf_path, /* it closes as stalled */
     .options = "?protocol=meta&timeout=20s&stall_timeout=4ms&connect_timeout=20s",
     .kinds = SWEEP_KIND(MJ__TIMEOUT),
     .closes = true,
     .first = 1,
     .asks = {{MJ__GET, 0, 0, LATE, 0, false, false, false}}},
    {.path = servers_path, /* the close comes with replies under way */
     .options = "?protocol=meta&timeout=20s&connect_timeout=20s",
     .deed = CLOSE_AT_ONCE,
     .kinds = SWEEP_KIND(MJ__CLOSED),
     .closes = true,
     .first = 2,
     .asks = {{MJ__SET, 0, 40, CLOSED, 0, false, false, false},
              {MJ__SET, 1, LARGE, CLOSED, 0, false, false, false}}},
    {.url = "memcache://" FAULT_HOST ":%d?timeout=20s", .deed = FREE_AT_ONCE},
};

static const struct part well[] = {
    {.path = servers_path,
     .options = "?timeout=20s&connect_timeout=20s",
     .first = 2,
     .asks = {{MJ__SET, 0, 40, STORED, 0, false, false, false},
              {MJ__GET, 0, 40, VALUE, 1, false, false, false}}},
};

/* ---- who asks ---- */

struct player;

struct request {
    struct player *player;
    const struct ask *ask;
    struct mj__parked parked;
    struct mj__sink sink;
    char key[40];
    char *value; /* what is stored, or what the sink has so far */
    size_t got, most;
    size_t place; /* among those that were queued on the connection */
    bool queued, waits_for_room, written;
    int ends;
    enum outcome outcome;
    struct mj__error error;
    unsigned values; /* of a get_many: how many came */
};

struct player {
    const struct part *part;
    int number;
    struct mj__conn *conn;
    int opened, closed, ledger;
    bool open, freed;
    size_t asked, count, queued;
    struct request requests[ASKS];
};

static struct {
    struct mj__loop *loop;
    struct mj__pool *pool;
    struct mj__resolver *resolver;
    size_t used;
    long lent;
    struct player players[PLAYERS];
    size_t count;
    char arena[ARENA];
    size_t arena_used;
} stage;

static char *take(size_t size) {
    if (size > sizeof stage.arena - stage.arena_used) {
        sweep_note("the arena is too small");
        stage.arena_used = 0;
    }
    char *block = stage.arena + stage.arena_used;
    stage.arena_used += size;
    return block;
}

/* ---- values: a key's value is the key, again and again ---- */

static void fill(char *value, size_t size, const char *key) {
    size_t done = strlen(key);
    memcpy(value, key, done < size ? done : size);
    while (done < size) { /* what is there, once more */
        size_t more = done < size - done ? done : size - done;
        memcpy(value + done, value, more);
        done += more;
    }
}

static bool is_value_of(const char *value, size_t size, const char *key) {
    size_t length = strlen(key);
    size_t head = size < length ? size : length;
    return memcmp(value, key, head) == 0 &&
           (size <= length || memcmp(value, value + length, size - length) == 0);
}

static void name_key(char *out, size_t size, const struct player *player, int key) {
    snprintf(out, size, "r%llup%dk%d.", (unsigned long long)sweep_round.number, player->number,
             key);
}

/* ---- answers ---- */

static void end(struct request *request, enum outcome outcome) {
    request->ends++;
    request->outcome = outcome;
}

static void fail(struct request *request, const struct mj__error *error) {
    const struct part *part = request->player->part;
    request->error = *error;
    if (request->ask->expected == REFUSED && error->kind == MJ__CLIENT_ERROR) {
        end(request, REFUSED);
    } else if (request->ask->expected == LATE && error->kind == MJ__TIMEOUT) {
        end(request, LATE);
    } else if (request->ask->expected == CLOSED && error->kind == MJ__CLOSED) {
        end(request, CLOSED);
    } else {
        end(request, FAILED);
        sweep_meet(error->kind, error->phase, error->text, part->kinds);
    }
}

/* The sizes of the keys that a get_many asks for. */
static size_t size_of_key(const struct player *player, const char *key, size_t key_size) {
    for (size_t i = 0; i < ASKS; i++) {
        const struct request *other = &player->requests[i];
        if (other->ask != NULL && other->ask->id == MJ__SET && strlen(other->key) == key_size &&
            memcmp(other->key, key, key_size) == 0) {
            return other->ask->size;
        }
    }
    return 0;
}

static void one_of_many(struct request *request, const struct mj__answer *answer) {
    char key[40];
    const struct mj__reply *reply = &answer->reply;
    snprintf(key, sizeof key, "%.*s", (int)reply->key_size, reply->key);
    SWEEP_CHECK(answer->value != NULL);
    SWEEP_CHECK(reply->value_size == size_of_key(request->player, reply->key, reply->key_size));
    SWEEP_CHECK(is_value_of(answer->value, (size_t)reply->value_size, key));
    request->values++;
}

static void value_came(struct request *request, const struct mj__answer *answer) {
    const char *value = answer->value != NULL ? answer->value : request->value;
    SWEEP_CHECK(answer->value != NULL || request->ask->into);
    SWEEP_CHECK(answer->value != NULL || request->got == answer->reply.value_size);
    SWEEP_CHECK(answer->reply.value_size == request->ask->size);
    SWEEP_CHECK(is_value_of(value, (size_t)answer->reply.value_size, request->key));
    end(request, VALUE);
}

static void on_done(void *arg, uint32_t index, const struct mj__answer *answer) {
    struct request *request = arg;
    const struct mj__command *command = mj__command(request->ask->id);
    SWEEP_CHECK(&request->player->requests[index] == request);
    SWEEP_CHECK(request->ends == 0);
    SWEEP_CHECK(request->ask->expected != SILENT && !request->player->freed);
    SWEEP_CHECK(answer->command == command);
    if (answer->error != NULL) {
        fail(request, answer->error);
    } else if (answer->more) {
        one_of_many(request, answer);
    } else if (command->verb == MJ__VERB_MANY) {
        end(request, VALUES);
    } else if (answer->reply.code == MJ__VA) {
        value_came(request, answer);
    } else if (command->verb != MJ__VERB_READ && command->yes & MJ__CODE(answer->reply.code)) {
        end(request, command->verb == MJ__VERB_REMOVE ? GONE : STORED);
    } else {
        end(request, MISS);
    }
}

/* ---- asking ---- */

static char *sink_reserve(struct mj__sink *sink, size_t want, size_t *got) {
    struct request *request = (struct request *)((char *)sink - offsetof(struct request, sink));
    *got = want < SINK_STEP ? want : SINK_STEP;
    SWEEP_CHECK(request->got + want <= request->most);
    return request->value + request->got;
}

static void sink_commit(struct mj__sink *sink, size_t count) {
    struct request *request = (struct request *)((char *)sink - offsetof(struct request, sink));
    request->got += count;
}

static void release(void *arg) {
    (void)arg;
    stage.lent--;
}

static void describe(struct request *request, struct mj__call *call) {
    const struct ask *ask = request->ask;
    *call =
        (struct mj__call){.id = ask->id, .key = request->key, .key_size = strlen(request->key)};
    if (mj__command(ask->id)->verb == MJ__VERB_STORE) {
        call->given = MJ__WITH_VALUE;
        call->value = request->value;
        call->value_size = ask->size;
    } else if (ask->id == MJ__INCR) {
        call->given = MJ__WITH_DELTA;
        call->delta = 1;
    }
    if (ask->quiet) {
        call->given |= MJ__WITH_QUIET;
    }
}

static void submit(struct request *request) {
    static char keys[3 * sizeof request->key];
    struct player *player = request->player;
    struct mj__error error;
    struct mj__call call;
    uint64_t seq;
    describe(request, &call);
    if (call.id == MJ__GET_MANY) {
        char other[40];
        name_key(other, sizeof other, player, 9);
        snprintf(keys, sizeof keys, "%s %s %s", player->requests[0].key, other,
                 player->requests[2].key);
        call.key_size = 0;
        call.text = keys;
        call.text_size = strlen(keys);
    }
    const struct mj__lent lent = {call.value, call.value_size, release, request};
    bool by_reference = call.value_size > MJ__COPY_MAX;
    stage.lent += by_reference;
    int status = mj__conn_submit(player->conn, &call, by_reference ? &lent : NULL,
                                 request->ask->into ? &request->sink : NULL, on_done, request,
                                 (uint32_t)(request - player->requests), &seq, &error);
    if (status == MJ__SUBMITTED) {
        request->queued = true;
        request->place = player->queued++;
        if (request->ask->abandoned) {
            mj__conn_abandon(player->conn, seq, &error);
            end(request, SILENT);
        }
        return;
    }
    stage.lent -= by_reference;
    if (status == MJ__FULL) {
        request->waits_for_room = true;
        mj__conn_park(player->conn, &request->parked);
        return;
    }
    SWEEP_CHECK(error.sent == MJ__SENT_NO);
    fail(request, &error);
}

static void on_room(struct mj__parked *parked, const struct mj__error *error) {
    struct request *request =
        (struct request *)((char *)parked - offsetof(struct request, parked));
    request->waits_for_room = false;
    if (error != NULL) {
        SWEEP_CHECK(error->sent == MJ__SENT_NO);
        fail(request, error);
        return;
    }
    mj__conn_redeem(request->player->conn, parked);
    submit(request);
}

static void prepare(struct player *player, size_t index) {
    struct request *request = &player->requests[index];
    request->player = player;
    request->ask = &player->part->asks[index];
    request->parked.ready = on_room;
    request->sink = (struct mj__sink){sink_reserve, sink_commit};
    request->most = request->ask->size;
    name_key(request->key, sizeof request->key, player, request->ask->key);
    if (request->most > 0) {
        request->value = take(request->most);
        fill(request->value, request->most, request->ask->into ? "?" : request->key);
    }
}

static void submit_wave(struct player *player, size_t until) {
    for (; player->asked < until; player->asked++) {
        submit(&player->requests[player->asked]);
    }
}

/* ---- a connection's life ---- */

static void on_opened(void *arg, struct mj__conn *conn, const struct mj__error *error) {
    struct player *player = arg;
    const struct part *part = player->part;
    player->opened++;
    SWEEP_CHECK(!player->freed);
    if (error != NULL) {
        SWEEP_CHECK(error->sent == MJ__SENT_NO);
        sweep_meet(error->kind, error->phase, error->text, part->kinds);
        return;
    }
    SWEEP_CHECK(part->refusal == MJ__KIND_NONE);
    player->open = true;
    player->ledger = ledger_of(mj__conn_fd(conn));
    submit_wave(player, part->first);
    if (part->deed == CLOSE_AT_ONCE) {
        mj__conn_close(conn);
    }
}

static void on_closed(void *arg, struct mj__conn *conn, const struct mj__error *error) {
    struct player *player = arg;
    (void)conn;
    player->closed++;
    SWEEP_CHECK(player->open && error != NULL && error->text[0] != '\0');
}

static void on_quiet_failed(void *arg, struct mj__conn *conn, const struct mj__error *error,
                            const struct mj__command *command, const char *key,
                            size_t key_size) {
    (void)arg, (void)conn, (void)command, (void)key, (void)key_size;
    sweep_note("a quiet request failed that somebody waited for: %s", error->text);
}

static int parse(const struct part *part, struct mj__url *url, struct mj__error *error) {
    char text[256];
    if (part->path != NULL && part->url != NULL) {
        snprintf(text, sizeof text, part->url, part->path());
    } else if (part->path != NULL) {
        snprintf(text, sizeof text, "memcache://%s%s", part->path(), part->options);
    } else {
        snprintf(text, sizeof text, part->url, servers_port());
    }
    return mj__url_parse(text, strlen(text), url, error);
}

static void enter(struct player *player) {
    const struct mj__conn_owner owner = {.opened = on_opened,
                                         .quiet_failed = on_quiet_failed,
                                         .closed = on_closed,
                                         .arg = player};
    struct mj__error error;
    struct mj__url url;
    if (parse(player->part, &url, &error) != 0) {
        sweep_meet(error.kind, error.phase, error.text, 0);
        return;
    }
    player->conn = mj__conn_open(stage.loop, stage.pool, stage.resolver, &url.endpoints[0],
                                 &owner, &error);
    mj__url_free(&url);
    if (player->conn == NULL) {
        sweep_meet(error.kind, error.phase, error.text, 0);
    }
}

/* ---- the scenario ---- */

static bool is_over(const struct player *player) {
    bool closes = player->part->closes;
    if (player->conn == NULL) {
        return true;
    }
    for (size_t i = 0; i < player->asked; i++) {
        if (player->requests[i].ends == 0) {
            return false;
        }
        closes = closes && player->requests[i].outcome != FAILED;
    }
    if (player->opened == 0 || (player->open && closes && !player->closed)) {
        return false;
    }
    return !player->open || player->asked == player->count;
}

/* The second wave, when the first is over. */
static void go_on(struct player *player) {
    for (size_t i = 0; i < player->asked; i++) {
        if (player->requests[i].ends == 0) {
            return;
        }
    }
    if (player->open && player->asked < player->count) {
        submit_wave(player, player->count);
    }
}

static bool all_over(void) {
    bool over = true;
    for (size_t i = 0; i < stage.count; i++) {
        go_on(&stage.players[i]);
        over = is_over(&stage.players[i]) && over;
    }
    return over;
}

static bool turn(bool wait) {
    bool may_fail = sweep_round.way != NULL && (sweep_round.way->call == FAULT_EPOLL_WAIT ||
                                                sweep_round.way->call == FAULT_TIMERFD_SETTIME);
    int status = mj__loop_turn(stage.loop, wait);
    SWEEP_CHECK(status == 0 || may_fail);
    return status == 0 || may_fail;
}

static void play_on(void) {
    mj__time last = mj__clock() + SECONDS * MJ__SECOND;
    for (size_t i = 0; i < stage.count; i++) {
        if (stage.players[i].part->deed == FREE_AT_ONCE) {
            mj__conn_free(stage.players[i].conn);
            stage.players[i].conn = NULL;
            stage.players[i].freed = true;
        }
    }
    while (!all_over() && turn(true)) {
        if (mj__clock() > last) {
            sweep_note("a request is not over after %d s", SECONDS);
            break;
        }
    }
}

/* ---- what must hold of it ---- */

static bool as_expected(const struct player *player, const struct request *request) {
    const struct ask *ask = request->ask;
    if (request->outcome == ask->expected) {
        return true;
    }
    if (sweep_harmless()) {
        return false;
    }
    const struct request *first = ask->depends ? &player->requests[ask->depends - 1] : NULL;
    return request->outcome == FAILED ||
           (first != NULL && first->outcome != first->ask->expected);
}

/* What an error says of how far it came, against what left. */
static void check_sent(const struct player *player, const struct request *request) {
    struct ledger_count left = ledger_count(player->ledger);
    bool begun = request->queued && request->place < left.begun;
    bool whole = request->queued && request->place < left.whole;
    const struct mj__error *error = &request->error;
    if (error->sent == MJ__SENT_NO && begun) {
        sweep_note("%s: sent is no, but some of it left", request->key);
    }
    if (error->sent == MJ__SENT_YES && !whole) {
        sweep_note("%s: sent is yes, but not all of it left", request->key);
    }
    if (error->sent == MJ__SENT_MAYBE && !begun && !left.doubtful &&
        error->kind != MJ__TIMEOUT) {
        sweep_note("%s: sent is maybe, but none of it left: %s", request->key, error->text);
    }
}

static void check_request(const struct player *player, const struct request *request) {
    SWEEP_CHECK(request->ends == 1);
    if (!as_expected(player, request)) {
        sweep_note("%s %s: outcome %d, not %d: %s", mj__command(request->ask->id)->name,
                   request->key, request->outcome, request->ask->expected, request->error.text);
    }
    if (request->error.kind != MJ__KIND_NONE) {
        check_sent(player, request);
    }
}

static void check_player(const struct player *player) {
    const struct part *part = player->part;
    if (player->freed) {
        SWEEP_CHECK(player->opened == 0 && player->closed == 0);
        return;
    }
    SWEEP_CHECK(player->opened == (player->conn != NULL));
    SWEEP_CHECK(player->closed <= player->open);
    SWEEP_CHECK(!sweep_harmless() || player->open == (part->refusal == MJ__KIND_NONE));
    for (size_t i = 0; i < player->asked; i++) {
        check_request(player, &player->requests[i]);
    }
}

/* ---- open and close ---- */

static bool open_stage(const struct part *with, size_t count) {
    struct mj__error error = {.kind = MJ__KIND_NONE};
    memset(&stage, 0, offsetof(__typeof__(stage), arena));
    stage.arena_used = 0;
    stage.loop = mj__loop_open(&error);
    if (stage.loop != NULL) {
        stage.resolver = mj__resolver_open(stage.loop, &error);
    }
    if (stage.resolver != NULL) {
        stage.pool = mj__pool_open(&stage.used, 0);
        if (stage.pool == NULL) {
            mj__fail(&error, MJ__NO_MEMORY, "no memory for a pool");
        }
    }
    if (stage.pool == NULL) {
        sweep_meet(error.kind, error.phase, error.text, 0);
        return false;
    }
    stage.count = count;
    for (size_t i = 0; i < count; i++) {
        struct player *player = &stage.players[i];
        player->part = &with[i];
        player->number = (int)i;
        player->ledger = -1;
        while (player->count < ASKS && with[i].asks[player->count].expected != NOTHING) {
            prepare(player, player->count++);
        }
        enter(player);
    }
    return true;
}

static void close_stage(void) {
    for (size_t i = 0; i < stage.count; i++) {
        mj__conn_free(stage.players[i].conn);
    }
    if (stage.loop != NULL) {
        turn(false);
    }
    mj__resolver_close(stage.resolver);
    mj__pool_close(stage.pool);
    mj__loop_close(stage.loop);
    SWEEP_CHECK(stage.used == 0);
    SWEEP_CHECK(stage.lent == 0);
}

static void play(const struct part *with, size_t count) {
    if (open_stage(with, count)) {
        play_on();
    }
    close_stage();
    for (size_t i = 0; i < stage.count; i++) {
        check_player(&stage.players[i]);
    }
}

void conn_play(void) {
    play(parts, sizeof parts / sizeof *parts);
}

void conn_play_well(void) {
    play(well, sizeof well / sizeof *well);
}
