/* lua_conn.c: connections for scripts: connect, one call and its wait, close, what it counts. */
#include "lua_conn.h"
#include "lua_error.h"
#include "lua_open.h"
#include "url.h"

#include <lauxlib.h>
#include <stdlib.h>
#include <string.h>

const char mj__no_memory_token;
static const char conn_magic;
static const char notify_key;   /* registry: the function that hands an error to an on_error */
static const char handlers_key; /* registry: the connections that have an on_error; weak */

#define CONN_META "moonjay.connection"

struct mj__lua_conn *mj__lua_conn_at(lua_State *L, int index, const char *function) {
    struct mj__lua_conn *self = lua_touserdata(L, index);
    /* A light userdata has no length. */
    if (self == NULL || lua_objlen(L, index) != sizeof *self || self->magic != &conn_magic ||
        self->conn == NULL) {
        mj__lua_misuse(L, function, "call it on a connection, as conn:name(...), got %s",
                       luaL_typename(L, index));
    }
    return self;
}

const char *mj__lua_conn_name(const struct mj__lua_conn *self) {
    return mj__conn_endpoint(self->conn)->name;
}

/* ---- waking ----------------------------------------------------------------------------- */

void mj__lua_wake_with(struct mj__task *task, void *token) {
    lua_State *stack = mj__task_stack(task);
    lua_pushnil(stack);
    lua_pushlightuserdata(stack, token);
    mj__task_wake(task, 2);
}

struct failure {
    struct mj__lua_conn *self;
    struct mj__task *task;
    const char *op;
    const struct mj__error *error;
};

static void push_failure(lua_State *L, void *arg) {
    const struct failure *failure = arg;
    const char *server = mj__lua_conn_name(failure->self);
    int count = mj__lua_fail(L, failure->error, failure->op, NULL, 0, server);
    lua_xmove(L, mj__task_stack(failure->task), count);
}

void mj__lua_wake_failed(struct mj__lua_conn *self, struct mj__task *task, const char *op,
                         const struct mj__error *error) {
    struct failure failure = {self, task, op, error};
    if (mj__runtime_insist(self->runtime, push_failure, &failure) == 0) {
        mj__task_wake(task, 2);
    } else {
        mj__lua_wake_with(task, MJ__NO_MEMORY_TOKEN);
    }
}

/* ---- lent values ------------------------------------------------------------------------ */

struct loan {
    struct mj__runtime *runtime;
    int reference;
};

static void return_loan(void *arg) {
    struct loan *loan = arg;
    lua_State *L = mj__runtime_lua(loan->runtime);
    if (L != NULL) {
        luaL_unref(L, LUA_REGISTRYINDEX, loan->reference);
    }
    free(loan);
}

void mj__lua_lend(lua_State *L, int index, struct mj__lua_conn *self,
                  const struct mj__call *call, struct mj__lent *lent) {
    lua_pushvalue(L, index);
    int reference = luaL_ref(L, LUA_REGISTRYINDEX);
    struct loan *loan = malloc(sizeof *loan);
    if (loan == NULL) {
        luaL_unref(L, LUA_REGISTRYINDEX, reference);
        luaL_error(L, "not enough memory");
        return;
    }
    *loan = (struct loan){.runtime = self->runtime, .reference = reference};
    *lent = (struct mj__lent){
        .bytes = call->value, .size = call->value_size, .release = return_loan, .arg = loan};
}

/* ---- one call --------------------------------------------------------------------------- */

/* The hot path's end: the answer goes onto the stack of the task that waits for it. */
static void on_answer(void *arg, uint32_t index, const struct mj__answer *answer) {
    struct mj__task *task = arg;
    const struct mj__lua_conn *self = answer->owner;
    lua_State *L = mj__runtime_lua(self->runtime);
    (void)index;
    int count = mj__lua_push_answer(L, self, answer);
    lua_xmove(L, mj__task_stack(task), count);
    mj__task_wake(task, count);
}

static void abandon_call(struct mj__task *task, void *arg, uint64_t seq,
                         struct mj__interrupted *out) {
    struct mj__lua_conn *self = arg;
    (void)task;
    const struct mj__command *command =
        mj__conn_request(self->conn, seq, &out->key, &out->key_size);
    out->op = command != NULL ? command->name : NULL;
    out->server = mj__lua_conn_name(self);
    mj__conn_abandon(self->conn, seq, &out->error);
}

static const struct mj__wait_ops call_wait = {.abandon = abandon_call};

static int fail_call(lua_State *L, const struct mj__lua_conn *self, const struct mj__call *call,
                     const struct mj__error *error) {
    int count = mj__lua_fail(L, error, mj__command(call->id)->name,
                             call->key_size > 0 ? call->key : NULL, call->key_size,
                             mj__lua_conn_name(self));
    if (call->given & MJ__WITH_QUIET) {
        mj__lua_never_again(L);
    }
    return count;
}

/* core.connection.NAME(conn, ...): the command is the closure's own. */
static int call_command(lua_State *L) {
    enum mj__command_id id = (enum mj__command_id)lua_tointeger(L, lua_upvalueindex(1));
    const char *name = mj__command(id)->name;
    struct mj__lua_conn *self = mj__lua_conn_at(L, 1, name);
    struct mj__task *task = mj__task_here(L, name);
    struct mj__lent lent, *by_reference = NULL;
    struct mj__call call;
    struct mj__error error;
    uint64_t seq;
    int into;
    struct mj__error refusal;
    bool refused = self->granted != NULL && mj__lua_redeem(self, task, &refusal) != 0;
    if (mj__task_interrupted(task)) {
        struct mj__interrupted what = {.op = name, .server = mj__lua_conn_name(self)};
        mj__conn_return_ticket(self->conn);
        return mj__task_refuse_as(L, task, &what);
    }
    if (mj__lua_read_call(L, 2, id, "conn", self, &call, &into, &error) != 0) {
        mj__conn_return_ticket(self->conn);
        return fail_call(L, self, &call, &error);
    }
    if (refused) {
        return fail_call(L, self, &call, &refusal);
    }
    if (into != 0) {
        return mj__lua_submit_into(L, self, task, &call, into);
    }
    if (call.value_size > MJ__COPY_MAX) {
        mj__lua_lend(L, id == MJ__META_COMMAND ? 5 : 3, self, &call, &lent);
        by_reference = &lent;
    }
    bool quiet = (call.given & MJ__WITH_QUIET) != 0;
    int status = mj__conn_submit(self->conn, &call, by_reference, NULL,
                                 quiet ? NULL : on_answer, task, 0, &seq, &error);
    if (status == MJ__SUBMITTED && !quiet) {
        return mj__task_wait(L, task, &call_wait, self, seq);
    }
    if (status == MJ__SUBMITTED) {
        lua_pushboolean(L, 1);
        return 1;
    }
    if (by_reference != NULL) {
        lent.release(lent.arg);
    }
    return status == MJ__FULL ? mj__lua_park(L, self, task, name, NULL)
                              : fail_call(L, self, &call, &error);
}

/* ---- what the connection tells ---------------------------------------------------------- */

/* Memory ran out while an answer was made: its task hears of that instead. */
static void answer_lost(mj__done_fn *done, void *arg, bool more) {
    if (done == on_answer) {
        mj__lua_wake_with(arg, MJ__NO_MEMORY_TOKEN);
    } else if (done == mj__lua_sink_done) {
        mj__lua_sink_lost(arg);
    } else {
        mj__lua_batch_lost(arg, more);
    }
}

static void hand_over(lua_State *L, void *batch) {
    (void)L;
    mj__batch_hand_over(batch);
}

/* A finalizer of the script's may throw where an answer is made, which is no fault of the answer:
 * it is made again, unless that goes on for ever. */
static void on_deliver(void *arg, struct mj__conn *conn, struct mj__batch *batch) {
    enum { TRIES = 16 };
    struct mj__lua_conn *self = arg;
    mj__done_fn *done;
    void *done_arg;
    bool more;
    int status, tries = 0;
    (void)conn;
    while ((status = mj__runtime_protect(self->runtime, hand_over, batch)) != 0 &&
           mj__batch_interrupted(batch, &done, &done_arg, &more)) {
        if (status > 0 && done == on_answer && ++tries < TRIES) {
            mj__batch_again(batch);
        } else {
            answer_lost(done, done_arg, more);
            tries = 0;
        }
    }
}

static void on_opened(void *arg, struct mj__conn *conn, const struct mj__error *error) {
    struct mj__lua_conn *self = arg;
    struct mj__task *task = self->connecting;
    (void)conn;
    if (task == NULL) {
        return;
    }
    if (error == NULL) {
        lua_rawgeti(mj__task_stack(task), LUA_REGISTRYINDEX, self->self_ref);
        mj__task_wake(task, 1);
    } else {
        mj__lua_wake_failed(self, task, "connect", error);
    }
    self->connecting = NULL;
    luaL_unref(mj__runtime_lua(self->runtime), LUA_REGISTRYINDEX, self->self_ref);
    self->self_ref = LUA_NOREF;
}

struct quiet_failure {
    struct mj__lua_conn *self;
    const struct mj__error *error;
    const struct mj__command *command;
    size_t key_size;
    char key
        [MJ__KEY_MAX]; /* a copy: a collection may end the connection, and with it its keys */
};

/* An on_error may well speak of its connection, so it is kept by that alone: kept by the registry
 * it would keep the connection for ever. Called with the function on top, which is taken off, and
 * the connection below it. */
static void keep_on_error(lua_State *L, struct mj__lua_conn *self) {
    lua_createtable(L, 1, 0);
    lua_insert(L, -2);
    lua_rawseti(L, -2, 1);
    lua_setfenv(L, -2);
    lua_pushlightuserdata(L, (void *)(uintptr_t)&handlers_key);
    lua_rawget(L, LUA_REGISTRYINDEX);
    lua_pushlightuserdata(L, self);
    lua_pushvalue(L, -3);
    lua_rawset(L, -3);
    lua_pop(L, 1);
    self->has_on_error = true;
}

/* Pushes it, above the connection, which lives as long as that stays there. False: that has been
 * collected. */
static bool push_on_error(lua_State *L, struct mj__lua_conn *self) {
    lua_pushlightuserdata(L, (void *)(uintptr_t)&handlers_key);
    lua_rawget(L, LUA_REGISTRYINDEX);
    lua_pushlightuserdata(L, self);
    lua_rawget(L, -2);
    if (lua_isnil(L, -1)) {
        return false;
    }
    lua_getfenv(L, -1);
    lua_rawgeti(L, -1, 1);
    return true;
}

/* The handler runs as a task of its own: it may wait, and it never meets a half-parsed buffer. */
static void notify(lua_State *L, void *arg) {
    const struct quiet_failure *failure = arg;
    if (!push_on_error(L, failure->self) || failure->self->conn == NULL) {
        return; /* it was collected meanwhile: then no on_error is called */
    }
    lua_pushlightuserdata(L, (void *)(uintptr_t)&notify_key);
    lua_rawget(L, LUA_REGISTRYINDEX);
    lua_insert(L, -2);
    mj__lua_push_error(L, failure->error,
                       failure->command != NULL ? failure->command->name : NULL,
                       failure->key_size > 0 ? failure->key : NULL, failure->key_size,
                       mj__lua_conn_name(failure->self));
    mj__lua_never_again(L);
    lua_call(L, 2, 0);
}

static void on_quiet_failed(void *arg, struct mj__conn *conn, const struct mj__error *error,
                            const struct mj__command *command, const char *key,
                            size_t key_size) {
    struct mj__lua_conn *self = arg;
    struct quiet_failure failure = {.self = self, .error = error, .command = command};
    (void)conn;
    if (self->has_on_error) {
        failure.key_size = key_size < MJ__KEY_MAX ? key_size : MJ__KEY_MAX;
        if (key_size > 0) {
            memcpy(failure.key, key, failure.key_size);
        }
        (void)mj__runtime_insist(self->runtime, notify, &failure);
    }
}

/* ---- connect ---------------------------------------------------------------------------- */

static void abandon_connect(struct mj__task *task, void *arg, uint64_t tag,
                            struct mj__interrupted *out) {
    struct mj__lua_conn *self = arg;
    (void)task;
    (void)tag;
    out->op = "connect";
    out->server = mj__lua_conn_name(self);
    out->error.kind = MJ__CONNECT_TIMEOUT;
    out->error.phase = mj__conn_phase(self->conn);
    self->connecting = NULL;
    mj__conn_close(self->conn);
    luaL_unref(mj__runtime_lua(self->runtime), LUA_REGISTRYINDEX, self->self_ref);
    self->self_ref = LUA_NOREF;
}

static const struct mj__wait_ops connect_wait = {.abandon = abandon_connect};

/* The options of mj.connect: on_error alone. True: pushed; false: there is none. */
static bool read_on_error(lua_State *L, int index) {
    if (lua_isnoneornil(L, index)) {
        return false;
    }
    if (!lua_istable(L, index)) {
        mj__lua_misuse(L, "connect", "options must be a table, got %s",
                       luaL_typename(L, index));
    }
    lua_pushnil(L);
    while (lua_next(L, index) != 0) {
        if (lua_type(L, -2) != LUA_TSTRING || strcmp(lua_tostring(L, -2), "on_error") != 0) {
            lua_pushvalue(L, -2);
            mj__lua_misuse(L, "connect",
                           "unknown option '%s': its only one is on_error, the rest stands in "
                           "the URL",
                           lua_tostring(L, -1) != NULL ? lua_tostring(L, -1) : "?");
        }
        if (!lua_isfunction(L, -1)) {
            mj__lua_misuse(L, "connect", "on_error must be a function, got %s",
                           luaL_typename(L, -1));
        }
        lua_pop(L, 1);
    }
    lua_getfield(L, index, "on_error");
    if (lua_isnil(L, -1)) {
        lua_pop(L, 1);
        return false;
    }
    return true;
}

static struct mj__lua_conn *new_userdata(lua_State *L) {
    struct mj__lua_conn *self = lua_newuserdata(L, sizeof *self);
    memset(self, 0, sizeof *self);
    self->magic = &conn_magic;
    self->runtime = mj__runtime_of(L);
    self->self_ref = LUA_NOREF;
    self->granted_tail = &self->granted;
    luaL_getmetatable(L, CONN_META);
    lua_setmetatable(L, -2);
    return self;
}

static struct mj__conn *open_endpoint(struct mj__lua_conn *self,
                                      const struct mj__endpoint *endpoint,
                                      struct mj__error *error) {
    const struct mj__conn_owner owner = {.opened = on_opened,
                                         .deliver = on_deliver,
                                         .quiet_failed = on_quiet_failed,
                                         .arg = self};
    struct mj__resolver *resolver = NULL;
    if (endpoint->transport != MJ__UNIX) {
        resolver = mj__runtime_resolver(self->runtime, error);
        if (resolver == NULL) {
            return NULL;
        }
    }
    return mj__conn_open(mj__runtime_loop(self->runtime), mj__runtime_pool(self->runtime),
                         resolver, endpoint, &owner, error);
}

/* The URL's only server; nothing of it is kept. */
static int open_url(struct mj__lua_conn *self, const char *text, size_t size,
                    struct mj__error *error, char *name, size_t name_size) {
    struct mj__url url;
    if (mj__url_parse(text, size, &url, error) != 0) {
        return -1;
    }
    snprintf(name, name_size, "%s", url.endpoints[0].name);
    if (url.count != 1) {
        mj__fail(error, MJ__BAD_URL, "a connection goes to one server, and the URL names %zu",
                 url.count);
    } else {
        self->conn = open_endpoint(self, &url.endpoints[0], error);
    }
    mj__url_free(&url);
    return self->conn != NULL ? 0 : -1;
}

/* core.connect(url [, options]) */
static int connect_url(lua_State *L) {
    struct mj__task *task = mj__task_here(L, "connect");
    struct mj__error error;
    char name[160] = "";
    size_t size;
    if (lua_type(L, 1) != LUA_TSTRING) {
        mj__lua_misuse(L, "connect", "url must be a string, got %s", luaL_typename(L, 1));
    }
    const char *text = lua_tolstring(L, 1, &size);
    if (mj__task_interrupted(task)) {
        return mj__task_refuse(L, task);
    }
    struct mj__lua_conn *self = new_userdata(L);
    if (read_on_error(L, 2)) {
        keep_on_error(L, self);
    }
    lua_pushvalue(L, -1);
    self->self_ref = luaL_ref(L, LUA_REGISTRYINDEX);
    if (open_url(self, text, size, &error, name, sizeof name) != 0) {
        luaL_unref(L, LUA_REGISTRYINDEX, self->self_ref);
        self->self_ref = LUA_NOREF;
        return mj__lua_fail(L, &error, "connect", NULL, 0, name[0] != '\0' ? name : NULL);
    }
    self->connecting = task;
    return mj__task_wait(L, task, &connect_wait, self, 0);
}

/* ---- the rest --------------------------------------------------------------------------- */

/* From a finalizer, it may be in the middle of an answer, or of a read into a script's buffer. */
static int close_conn(lua_State *L) {
    struct mj__lua_conn *self = mj__lua_conn_at(L, 1, "conn:close");
    if (mj__runtime_protecting(self->runtime)) {
        mj__conn_close_soon(self->conn);
    } else {
        mj__conn_close(self->conn);
    }
    return 0;
}

static int has_unfenced(lua_State *L) {
    struct mj__lua_conn *self = mj__lua_conn_at(L, 1, "conn:close");
    lua_pushboolean(L, mj__conn_is_open(self->conn) && mj__conn_has_unfenced(self->conn));
    return 1;
}

static int is_open(lua_State *L) {
    lua_pushboolean(L, mj__conn_is_open(mj__lua_conn_at(L, 1, "conn:is_open")->conn));
    return 1;
}

static int protocol(lua_State *L) {
    struct mj__lua_conn *self = mj__lua_conn_at(L, 1, "conn:protocol");
    lua_pushstring(L, mj__conn_protocol(self->conn) == MJ__META ? "meta" : "ascii");
    return 1;
}

static int server(lua_State *L) {
    lua_pushstring(L, mj__lua_conn_name(mj__lua_conn_at(L, 1, "conn:server")));
    return 1;
}

/* The descriptor's number, for whoever wants to look at the socket; nil once closed. */
static int descriptor(lua_State *L) {
    int fd = mj__conn_fd(mj__lua_conn_at(L, 1, "conn:fd")->conn);
    if (fd < 0) {
        lua_pushnil(L);
    } else {
        lua_pushinteger(L, fd);
    }
    return 1;
}

static int counters(lua_State *L) {
    struct mj__lua_conn *self = mj__lua_conn_at(L, 1, "conn:counters");
    const struct mj__conn_counters *all = mj__conn_counters(self->conn);
    const struct {
        const char *name;
        uint64_t value;
    } fields[] = {
        {"requests", all->requests},
        {"replies", all->replies},
        {"reads", all->reads},
        {"writes", all->writes},
        {"bytes_read", all->bytes_read},
        {"bytes_written", all->bytes_written},
        {"arms", all->arms},
        {"timeouts", all->timeouts},
        {"abandoned", all->abandoned},
        {"late", all->late},
        {"quiet", all->quiet},
        {"quiet_failed", all->quiet_failed},
        {"fences", all->fences},
        {"parked", all->parked},
        {"hits", all->hits},
        {"misses", all->misses},
        {"inflight", mj__conn_inflight(self->conn)},
    };
    lua_createtable(L, 0, sizeof fields / sizeof *fields);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        lua_pushnumber(L, (lua_Number)fields[i].value);
        lua_setfield(L, -2, fields[i].name);
    }
    return 1;
}

static int to_string(lua_State *L) {
    struct mj__lua_conn *self = mj__lua_conn_at(L, 1, "tostring");
    lua_pushfstring(L, "connection to %s (%s)", mj__lua_conn_name(self),
                    mj__conn_is_open(self->conn) ? "open" : "closed");
    return 1;
}

/* No task waits for it any more: a waiting one keeps it. What is in line still leaves. */
static int finalize(lua_State *L) {
    struct mj__lua_conn *self = lua_touserdata(L, 1);
    if (self->conn == NULL) { /* it was refused before it began */
        return 0;
    }
    struct mj__conn *conn = self->conn;
    self->conn = NULL;
    mj__conn_release(conn);
    mj__lua_forget_granted(self);
    return 0;
}

static int set_notify(lua_State *L) {
    lua_pushlightuserdata(L, (void *)(uintptr_t)&notify_key);
    lua_pushvalue(L, 1);
    lua_rawset(L, LUA_REGISTRYINDEX);
    return 0;
}

/* core.connection: one function a command, each bound once. */
static void push_commands(lua_State *L) {
    lua_createtable(L, 0, MJ__COMMANDS);
    for (int id = 0; id < MJ__COMMANDS; id++) {
        if (id != MJ__GET_MANY && id != MJ__STATS && id != MJ__LOGIN) {
            lua_pushinteger(L, id);
            lua_pushcclosure(L, call_command, 1);
            lua_setfield(L, -2, mj__command((enum mj__command_id)id)->name);
        }
    }
}

void mj__lua_open_conn(lua_State *L) {
    static const luaL_Reg functions[] = {{"connect", connect_url},
                                         {"close", close_conn},
                                         {"has_unfenced", has_unfenced},
                                         {"is_open", is_open},
                                         {"protocol", protocol},
                                         {"server", server},
                                         {"fd", descriptor},
                                         {"counters_of", counters},
                                         {"set_notify", set_notify},
                                         {NULL, NULL}};
    lua_pushlightuserdata(L, (void *)(uintptr_t)&handlers_key);
    lua_newtable(L);
    lua_createtable(L, 0, 1);
    lua_pushliteral(L, "v");
    lua_setfield(L, -2, "__mode");
    lua_setmetatable(L, -2);
    lua_rawset(L, LUA_REGISTRYINDEX);
    luaL_newmetatable(L, CONN_META);
    lua_pushcfunction(L, finalize);
    lua_setfield(L, -2, "__gc");
    lua_pushcfunction(L, to_string);
    lua_setfield(L, -2, "__tostring");
    lua_pushboolean(L, false); /* a script that called __gc itself would free what is in use */
    lua_setfield(L, -2, "__metatable");
    lua_setfield(L, -2, "connection_meta");
    push_commands(L);
    lua_setfield(L, -2, "connection");
    lua_pushlightuserdata(L, MJ__NO_MEMORY_TOKEN);
    lua_setfield(L, -2, "NO_MEMORY");
    luaL_register(L, NULL, functions);
    mj__lua_open_sink(L);
    mj__lua_open_batch(L);
}
