/* lua_batch.c: many calls that leave together and are answered in one wait.
 *
 * A batch is userdata around a flat list of calls: each is its command's number times GIVEN, plus
 * how many arguments it has, and these (lua/moonjay/batch.lua). Answers go straight into its tables.
 * It is run once. */
#include "lua_conn.h"
#include "lua_error.h"

#include <lauxlib.h>
#include <string.h>

#define BATCH_META "moonjay.batch"

enum {
    GIVEN = 8,
    CHUNK_BYTES = 32 << 10, /* of the keys of one multi-get */
    CHUNK_KEYS = 1000
};

/* Places in the batch's environment, which keeps all it works with. */
enum { CALLS = 1, REPLIES, ERRORS, MORE, EMPTY, OP };

struct mj__lua_batch {
    struct mj__lua_conn *self;
    struct mj__task *task;
    const char *op; /* of an interruption; its environment keeps it */
    int kept;       /* registry reference to the batch itself while it runs */
    uint32_t count, next, pending, failed;
    uint32_t place;    /* of the next call in the list */
    uint32_t held;     /* the get_many whose values are held: see hold() */
    mj__time begun;    /* the call that it is a part of; 0: it is all of it */
    mj__time deadline; /* of all of it; 0: that of its requests, which leave together */
    bool waiting;      /* all is submitted */
    bool sent;         /* some is submitted */
    bool lost;         /* memory ran out */
    bool ran;
    struct mj__error refusal; /* kind NONE: none */
};

static const char none_token; /* stands for an argument that was left out */

static struct mj__lua_batch *batch_at(lua_State *L, int index) {
    return luaL_checkudata(L, index, BATCH_META);
}

/* ---- answers ---------------------------------------------------------------------------- */

/* Places on the stack of a protected call. Answers come in series for one batch and one get_many:
 * its tables stay there until another's take their place. */
enum { HELD_BATCH = 1, HELD_CALLS, HELD_REPLIES, HELD_VALUES };

#define NO_CALL UINT32_MAX

static void hold_anew(lua_State *L, struct mj__lua_batch *batch) {
    lua_settop(L, 0);
    lua_rawgeti(L, LUA_REGISTRYINDEX, batch->kept);
    lua_getfenv(L, HELD_BATCH);
    lua_rawgeti(L, -1, CALLS);
    lua_rawgeti(L, -2, REPLIES);
    lua_remove(L, HELD_BATCH + 1);
    lua_pushnil(L);
    batch->held = NO_CALL;
}

static void hold(lua_State *L, struct mj__lua_batch *batch) {
    if (lua_touserdata(L, HELD_BATCH) != batch) {
        hold_anew(L, batch);
    }
}

/* tables[place][index + 1] = the value on top, which is taken off. */
static void keep(lua_State *L, int place, uint32_t index) {
    lua_getfenv(L, HELD_BATCH);
    lua_rawgeti(L, -1, place);
    lua_pushvalue(L, -3);
    lua_rawseti(L, -2, (int)index + 1);
    lua_pop(L, 3);
}

/* replies[index + 1] = the value on top, which is taken off. */
static void set_reply(lua_State *L, uint32_t index) {
    lua_rawseti(L, HELD_REPLIES, (int)index + 1);
}

static void keep_failure(lua_State *L, struct mj__lua_batch *batch, uint32_t index,
                         const struct mj__error *error, const char *op, const char *key,
                         size_t key_size, bool quiet) {
    batch->failed++;
    mj__lua_push_error(L, error, op, key, key_size, mj__lua_conn_name(batch->self));
    if (quiet) {
        mj__lua_never_again(L);
    }
    keep(L, ERRORS, index);
}

/* One line of an answer to stats: a table of names and what they stand for. */
static void keep_stat(lua_State *L, uint32_t index, const struct mj__reply *reply) {
    lua_rawgeti(L, HELD_REPLIES, (int)index + 1);
    if (lua_isnil(L, -1)) {
        lua_newtable(L);
        lua_pushvalue(L, -1);
        set_reply(L, index);
    }
    if (reply->code == MJ__STAT) {
        lua_pushlstring(L, reply->key, reply->key_size);
        lua_pushlstring(L, reply->text, reply->text_size);
        lua_rawset(L, -3);
    }
    lua_settop(L, HELD_VALUES);
}

/* One value of a get_many, into the table that is its reply. */
static void keep_value(lua_State *L, struct mj__lua_batch *batch, uint32_t index,
                       const struct mj__answer *answer) {
    const struct mj__reply *reply = &answer->reply;
    if (batch->held != index) {
        lua_rawgeti(L, HELD_REPLIES, (int)index + 1);
        lua_replace(L, HELD_VALUES);
        batch->held = index;
    }
    lua_pushlstring(L, reply->key, reply->key_size);
    lua_pushlstring(L, answer->value, (size_t)reply->value_size);
    lua_rawset(L, HELD_VALUES);
    if (reply->value_size == 0) { /* a stored nothing, or a lease's stub */
        lua_getfenv(L, HELD_BATCH);
        lua_rawgeti(L, -1, EMPTY);
        lua_pushlstring(L, reply->key, reply->key_size);
        lua_rawseti(L, -2, (int)lua_objlen(L, -2) + 1);
        lua_pop(L, 2);
    }
}

static void keep_answer(lua_State *L, struct mj__lua_batch *batch, uint32_t index,
                        const struct mj__answer *answer) {
    if (answer->error != NULL) {
        if (answer->command == mj__command(MJ__STATS)) { /* half a table is no answer */
            lua_pushnil(L);
            set_reply(L, index);
        }
        bool many = answer->command == mj__command(MJ__GET_MANY);
        keep_failure(L, batch, index, answer->error, answer->command->name,
                     many || answer->key_size == 0 ? NULL : answer->key, answer->key_size,
                     false);
        return;
    }
    if (answer->command == mj__command(MJ__GET_MANY)) {
        if (answer->reply.code == MJ__VA) {
            keep_value(L, batch, index, answer);
        }
        return;
    }
    if (answer->command == mj__command(MJ__STATS)) {
        keep_stat(L, index, &answer->reply);
        return;
    }
    if (mj__lua_push_answer(L, batch->self, answer) == 2) {
        keep(L, MORE, index);
    }
    set_reply(L, index);
}

static void let_go(struct mj__lua_batch *batch) {
    lua_State *L = mj__runtime_lua(batch->self->runtime);
    luaL_unref(L, LUA_REGISTRYINDEX, batch->kept);
    batch->kept = LUA_NOREF;
    batch->task = NULL;
}

/* What the run gives: how many failed. Pushes nothing that could fail. */
static int push_outcome(lua_State *L, struct mj__lua_batch *batch) {
    bool lost = batch->lost;
    if (lost) {
        lua_pushnil(L);
        lua_pushlightuserdata(L, MJ__NO_MEMORY_TOKEN);
    } else {
        lua_pushnumber(L, batch->failed);
    }
    return lost ? 2 : 1;
}

static void one_ended(struct mj__lua_batch *batch) {
    batch->pending--;
    if (batch->waiting && batch->pending == 0) {
        struct mj__task *task = batch->task;
        int count = push_outcome(mj__task_stack(task), batch);
        let_go(batch);
        mj__task_wake(task, count);
    }
}

void mj__lua_batch_done(void *arg, uint32_t index, const struct mj__answer *answer) {
    struct mj__lua_batch *batch = arg;
    lua_State *L = mj__runtime_lua(batch->self->runtime);
    hold(L, batch);
    keep_answer(L, batch, index, answer);
    if (!answer->more) {
        one_ended(batch);
    }
}

void mj__lua_batch_lost(void *arg, bool more) {
    struct mj__lua_batch *batch = arg;
    batch->lost = true;
    if (!more) {
        one_ended(batch);
    }
}

mj__time *mj__lua_batch_deadline(struct mj__lua_batch *batch) {
    return &batch->deadline;
}

void mj__lua_batch_refused(struct mj__lua_batch *batch, const struct mj__error *error) {
    batch->refusal = *error;
}

void mj__lua_batch_abandon(struct mj__lua_batch *batch, struct mj__error *error) {
    mj__conn_abandon_all(batch->self->conn, mj__lua_batch_done, batch, error);
    if (batch->sent && error->sent == MJ__SENT_NO) { /* what it sent is answered already */
        error->sent = MJ__SENT_MAYBE;
    }
    let_go(batch);
}

static void abandon(struct mj__task *task, void *arg, uint64_t tag,
                    struct mj__interrupted *out) {
    struct mj__lua_batch *batch = arg;
    (void)task;
    (void)tag;
    out->op = batch->op;
    out->server = mj__lua_conn_name(batch->self);
    mj__lua_batch_abandon(batch, &out->error);
}

static const struct mj__wait_ops batch_wait = {.abandon = abandon};

/* ---- submit ----------------------------------------------------------------------------- */

/* Pushes the arguments of the call at `place`; returns how many. */
static int push_arguments(lua_State *L, uint32_t place, enum mj__command_id *id) {
    lua_rawgeti(L, HELD_CALLS, (int)place);
    unsigned head = (unsigned)lua_tointeger(L, -1);
    lua_pop(L, 1);
    int count = (int)(head % GIVEN);
    *id = (enum mj__command_id)(head / GIVEN);
    for (int i = 1; i <= count; i++) {
        lua_rawgeti(L, HELD_CALLS, (int)place + i);
        if (lua_touserdata(L, -1) == &none_token) {
            lua_pop(L, 1);
            lua_pushnil(L);
        }
    }
    return count;
}

/* Its keys, and the table that its values go into. */
static int read_many(lua_State *L, int base, uint32_t index, struct mj__call *call) {
    memset(call, 0, sizeof *call);
    call->id = MJ__GET_MANY;
    call->text = lua_tolstring(L, base, &call->text_size);
    lua_pushvalue(L, base + 1);
    set_reply(L, index);
    return 0;
}

static int read_call(lua_State *L, struct mj__lua_batch *batch, int base,
                     enum mj__command_id id, struct mj__call *call, struct mj__error *error) {
    int into;
    if (id == MJ__GET_MANY) {
        return read_many(L, base, batch->next, call);
    }
    int status = mj__lua_read_call(L, base, id, "pipeline", batch->self, call, &into, error);
    if (status == 0 && into != 0) {
        return mj__fail(error, MJ__UNSUPPORTED, "a pipeline reads no value into a buffer");
    }
    return status;
}

/* MJ__SUBMITTED also when the call itself is at fault: its error is kept. */
static int submit_next(lua_State *L, struct mj__lua_batch *batch) {
    struct mj__call call;
    struct mj__error error;
    struct mj__lent lent, *by_reference = NULL;
    enum mj__command_id id;
    uint64_t seq;
    uint32_t index = batch->next;
    int base = lua_gettop(L) + 1;
    int given = push_arguments(L, batch->place, &id);
    int status = read_call(L, batch, base, id, &call, &error);
    if (status == 0 && batch->refusal.kind != MJ__KIND_NONE) {
        error = batch->refusal;
        status = MJ__REFUSED;
    }
    if (status == 0) {
        bool quiet = (call.given & MJ__WITH_QUIET) != 0;
        if (call.value_size > MJ__COPY_MAX) {
            mj__lua_lend(L, id == MJ__META_COMMAND ? base + 3 : base + 1, batch->self, &call,
                         &lent);
            by_reference = &lent;
        }
        status = mj__conn_submit(batch->self->conn, &call, by_reference, NULL,
                                 quiet ? NULL : mj__lua_batch_done, batch, index, &seq, &error);
        batch->sent |= status == MJ__SUBMITTED;
        if (status == MJ__SUBMITTED && quiet) {
            lua_pushboolean(L, 1);
            set_reply(L, index);
        } else if (status == MJ__SUBMITTED) {
            batch->pending++;
        } else if (by_reference != NULL) {
            lent.release(lent.arg);
        }
    }
    if (status == MJ__REFUSED) {
        keep_failure(L, batch, index, &error, mj__command(id)->name,
                     call.key_size > 0 ? call.key : NULL, call.key_size,
                     (call.given & MJ__WITH_QUIET) != 0);
        status = MJ__SUBMITTED;
    }
    lua_settop(L, base - 1);
    if (status == MJ__SUBMITTED) {
        batch->next++;
        batch->place += 1 + (uint32_t)given;
    }
    return status;
}

/* Called with a batch: submits what is left. True: the connection is full. */
static int submit_rest(lua_State *L) {
    struct mj__lua_batch *batch = lua_touserdata(L, 1);
    bool full = false;
    luaL_checkstack(L, 32, "too many values");
    hold_anew(L, batch);
    while (!full && batch->next < batch->count) {
        full = submit_next(L, batch) == MJ__FULL;
    }
    lua_pushboolean(L, full);
    return 1;
}

/* The same, protected: a throw must not leave requests behind that answer to a batch which
 * nobody keeps. A script may have changed an options table since it was recorded. */
static bool submit_protected(lua_State *L, struct mj__lua_batch *batch) {
    lua_pushvalue(L, lua_upvalueindex(1));
    lua_pushvalue(L, 2);
    if (lua_pcall(L, 1, 1, 0) != 0) {
        struct mj__error ignored;
        mj__conn_return_ticket(batch->self->conn);
        mj__lua_batch_abandon(batch, &ignored);
        lua_error(L);
    }
    return lua_toboolean(L, -1) != 0;
}

static void begin(lua_State *L, struct mj__lua_batch *batch, struct mj__lua_conn *self,
                  struct mj__task *task) {
    batch->self = self;
    batch->task = task;
    batch->ran = true;
    if (batch->begun != 0) {
        batch->deadline = batch->begun + mj__conn_endpoint(self->conn)->options.timeout;
    }
    lua_pushvalue(L, 2);
    batch->kept = luaL_ref(L, LUA_REGISTRYINDEX);
}

/* core.run(conn, batch): how many calls failed; answers and errors are in the batch's tables. */
static int run(lua_State *L) {
    struct mj__lua_conn *self = mj__lua_conn_at(L, 1, "pipeline:run");
    struct mj__lua_batch *batch = batch_at(L, 2);
    struct mj__task *task = mj__task_here(L, "pipeline:run");
    lua_settop(L, 2);
    struct mj__error none; /* what parks with a batch is refused by mj__lua_batch_refused */
    (void)mj__lua_redeem(self, task, &none);
    if (mj__task_interrupted(task)) {
        mj__conn_return_ticket(self->conn);
        struct mj__interrupted what = {.op = batch->op, .server = mj__lua_conn_name(self)};
        if (batch->task != NULL) { /* it was parked */
            what.error.phase = MJ__PHASE_QUEUE;
            mj__lua_batch_abandon(batch, &what.error);
        }
        return mj__task_refuse_as(L, task, &what);
    }
    if (batch->task == NULL) {
        if (batch->ran) {
            return mj__lua_misuse(L, "pipeline:run", "this batch ran already");
        }
        begin(L, batch, self, task);
    }
    mj__conn_allow_more(self->conn);
    if (batch->deadline != 0) {
        mj__conn_bind(self->conn, batch->deadline);
    }
    if (submit_protected(L, batch)) {
        return mj__lua_park(L, self, task, batch->op, batch);
    }
    mj__conn_return_ticket(self->conn);
    if (batch->pending > 0) {
        batch->waiting = true;
        return mj__task_wait(L, task, &batch_wait, batch, 0);
    }
    let_go(batch);
    return push_outcome(L, batch);
}

/* ---- made by the Lua side --------------------------------------------------------------- */

/* core.new_batch(calls, count, replies, errors, more, empty, op, begun): runs calls 1 to count of
 * the flat list. replies[i], errors[i] and more[i] are set; empty lists keys whose value has length
 * 0; op is what the script called; begun, if not nil, when: its timeout counts from there. */
static int new_batch(lua_State *L) {
    lua_settop(L, 8);
    lua_Integer count = luaL_checkinteger(L, 2);
    struct mj__lua_batch *batch = lua_newuserdata(L, sizeof *batch);
    memset(batch, 0, sizeof *batch);
    batch->count = (uint32_t)count;
    batch->place = 1;
    batch->op = luaL_checkstring(L, 7);
    batch->begun = (mj__time)(luaL_optnumber(L, 8, 0) * (double)MJ__SECOND);
    batch->kept = LUA_NOREF;
    luaL_getmetatable(L, BATCH_META);
    lua_setmetatable(L, -2);
    lua_createtable(L, OP, 0);
    lua_pushvalue(L, 1);
    lua_rawseti(L, -2, CALLS);
    lua_pushvalue(L, 7);
    lua_rawseti(L, -2, OP);
    for (int i = 0; i < 4; i++) {
        lua_pushvalue(L, 3 + i);
        lua_rawseti(L, -2, REPLIES + i);
    }
    lua_setfenv(L, -2);
    return 1;
}

/* core.new_table(list, names): an empty table with room for so many. LuaJIT has such a function as a
 * module; one that memory was short for once cannot be required again. */
static int new_table(lua_State *L) {
    lua_createtable(L, (int)luaL_checkinteger(L, 1), (int)luaL_checkinteger(L, 2));
    return 1;
}

/* core.check[NAME](...): throws what the call would throw, and sends nothing. */
static int check_command(lua_State *L) {
    enum mj__command_id id = (enum mj__command_id)lua_tointeger(L, lua_upvalueindex(1));
    mj__lua_check_call(L, 1, id, "pipeline");
    return 0;
}

/* A key that cannot go as it is: it is bad, or needs the encoding of binary_keys. */
static int cannot_join(lua_State *L, const struct mj__lua_conn *self, const char *key,
                       size_t size, int place) {
    struct mj__error error;
    bool encoded, binary = mj__conn_endpoint(self->conn)->options.binary_keys;
    if (mj__key_check(key, size, binary, &encoded, &error) != 0) {
        return mj__lua_fail(L, &error, "get_many", key, size, mj__lua_conn_name(self));
    }
    lua_pushboolean(L, 0);
    lua_pushinteger(L, place + 1);
    return 2;
}

/* core.join_keys(conn, keys, from): checks keys from `from` on and joins as many as fit one
 * multi-get: the text and the place behind the last. A key that only binary_keys allows: false
 * and the place behind it. nil and an error: a bad key. Throws where one is no string. */
static int join_keys(lua_State *L) {
    struct mj__lua_conn *self = mj__lua_conn_at(L, 1, "conn:get_many");
    char text[CHUNK_BYTES];
    size_t at = 0;
    int from = (int)luaL_checkinteger(L, 3), place = from;
    for (; place < from + CHUNK_KEYS; place++) {
        size_t size;
        lua_rawgeti(L, 2, place);
        int type = lua_type(L, -1);
        if (type == LUA_TNIL) {
            break;
        }
        if (type != LUA_TSTRING) {
            return mj__lua_misuse(L, "conn:get_many", "key %d must be a string, got %s", place,
                                  luaL_typename(L, -1));
        }
        const char *key = lua_tolstring(L, -1, &size);
        if (!mj__key_plain(key, size)) {
            return cannot_join(L, self, key, size, place);
        }
        if (at + size + 1 > sizeof text) {
            break;
        }
        memcpy(text + at, key, size);
        at += size;
        text[at++] = ' ';
        lua_pop(L, 1);
    }
    lua_pushlstring(L, text, at > 0 ? at - 1 : 0);
    lua_pushinteger(L, place);
    return 2;
}

static void push_checks(lua_State *L) {
    lua_createtable(L, 0, MJ__COMMANDS);
    for (int id = 0; id < MJ__COMMANDS; id++) {
        lua_pushinteger(L, id);
        lua_pushcclosure(L, check_command, 1);
        lua_setfield(L, -2, mj__command((enum mj__command_id)id)->name);
    }
}

static void push_numbers(lua_State *L) {
    lua_createtable(L, 0, MJ__COMMANDS);
    for (int id = 0; id < MJ__COMMANDS; id++) {
        lua_pushinteger(L, id);
        lua_setfield(L, -2, mj__command((enum mj__command_id)id)->name);
    }
}

void mj__lua_open_batch(lua_State *L) {
    luaL_newmetatable(L, BATCH_META);
    lua_pop(L, 1);
    lua_pushcfunction(L, submit_rest);
    lua_pushcclosure(L, run, 1);
    lua_setfield(L, -2, "run");
    lua_pushcfunction(L, new_batch);
    lua_setfield(L, -2, "new_batch");
    lua_pushcfunction(L, new_table);
    lua_setfield(L, -2, "new_table");
    lua_pushcfunction(L, join_keys);
    lua_setfield(L, -2, "join_keys");
    push_checks(L);
    lua_setfield(L, -2, "check");
    push_numbers(L);
    lua_setfield(L, -2, "commands");
    lua_pushlightuserdata(L, (void *)(uintptr_t)&none_token);
    lua_setfield(L, -2, "NONE");
}
