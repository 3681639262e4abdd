/* lua_sink.c: conn:get(key, { into = buf }): a value read straight into a string.buffer.
 *
 * Each read reserves what is missing, reads, and commits; no pointer is kept across turns, for the
 * script may use its buffer meanwhile: then the get fails, since the value is no longer in one
 * piece. A buffer whose get failed otherwise holds what it held before. */
#include "lua_conn.h"
#include "lua_error.h"

#include <lauxlib.h>
#include <lualib.h>
#include <stdlib.h>
#include <string.h>

struct sink {
    struct mj__sink base;
    struct mj__lua_conn *self;
    struct mj__task *task;
    int buffer;               /* registry reference */
    size_t before, committed; /* its length when the value began, and what came since */
    bool disturbed;           /* somebody else changed it meanwhile */
    /* of the protected call under way */
    size_t want, got;
    char *room;
};

static const char methods_key; /* registry: LuaJIT's own methods of a buffer, by name */

/* A second set of them, which no script can reach: what a script gives as a buffer's method
 * must never decide where bytes are written to. They check their argument themselves. */
void mj__lua_open_sink(lua_State *L) {
    static const char *const names[] = {"reserve", "commit", "get", "reset", "put", "__len"};
    lua_pushlightuserdata(L, (void *)(uintptr_t)&methods_key);
    lua_createtable(L, 0, sizeof names / sizeof *names);
    lua_pushcfunction(L, luaopen_string_buffer);
    lua_call(L, 0, 1);
    lua_getfield(L, -1, "new");
    lua_call(L, 0, 1);
    lua_getmetatable(L, -1);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        lua_getfield(L, -1, names[i]);
        lua_setfield(L, -5, names[i]);
    }
    lua_pop(L, 3);
    lua_rawset(L, LUA_REGISTRYINDEX);
}

static void push_function(lua_State *L, const char *name) {
    lua_pushlightuserdata(L, (void *)(uintptr_t)&methods_key);
    lua_rawget(L, LUA_REGISTRYINDEX);
    lua_getfield(L, -1, name);
    lua_remove(L, -2);
}

bool mj__lua_is_buffer(lua_State *L, int index) {
    if (lua_type(L, index) != LUA_TUSERDATA) {
        return false;
    }
    push_function(L, "__len");
    lua_pushvalue(L, index);
    bool is = lua_pcall(L, 1, 1, 0) == 0;
    lua_pop(L, 1);
    return is;
}

/* Pushes the method and the buffer. */
static void push_method(lua_State *L, const struct sink *sink, const char *method) {
    push_function(L, method);
    lua_rawgeti(L, LUA_REGISTRYINDEX, sink->buffer);
}

static size_t length(lua_State *L, const struct sink *sink) {
    push_method(L, sink, "__len");
    lua_call(L, 1, 1);
    size_t size = (size_t)lua_tonumber(L, -1);
    lua_pop(L, 1);
    return size;
}

static bool is_disturbed(lua_State *L, const struct sink *sink) {
    return sink->disturbed ||
           (sink->committed > 0 && length(L, sink) != sink->before + sink->committed);
}

static void call_reserve(lua_State *L, void *arg) {
    struct sink *sink = arg;
    sink->disturbed = is_disturbed(L, sink);
    if (sink->disturbed) {
        return;
    }
    if (sink->committed == 0) {
        sink->before = length(L, sink);
    }
    push_method(L, sink, "reserve");
    lua_pushnumber(L, (lua_Number)sink->want);
    lua_call(L, 2, 2);
    sink->room = *(char *const *)lua_topointer(L, -2); /* a cdata that holds the pointer */
    sink->got = (size_t)lua_tonumber(L, -1);
}

static void call_commit(lua_State *L, void *arg) {
    struct sink *sink = arg;
    push_method(L, sink, "commit");
    lua_pushnumber(L, (lua_Number)sink->got);
    lua_call(L, 2, 0);
    sink->committed += sink->got;
}

static char *reserve(struct mj__sink *base, size_t want, size_t *got) {
    struct sink *sink = (struct sink *)base;
    sink->want = want;
    if (mj__runtime_protect(sink->self->runtime, call_reserve, sink) != 0 || sink->disturbed) {
        return NULL;
    }
    *got = sink->got;
    return sink->room;
}

static void commit(struct mj__sink *base, size_t count) {
    struct sink *sink = (struct sink *)base;
    sink->got = count;
    (void)mj__runtime_protect(sink->self->runtime, call_commit, sink);
}

/* Takes back what was committed. */
static void restore(lua_State *L, void *arg) {
    struct sink *sink = arg;
    if (is_disturbed(L, sink)) {
        return;
    }
    push_method(L, sink, "get");
    lua_pushnumber(L, (lua_Number)sink->before);
    lua_call(L, 2, 1);
    push_method(L, sink, "reset");
    lua_call(L, 1, 0);
    push_method(L, sink, "put");
    lua_pushvalue(L, -3);
    lua_call(L, 2, 0);
}

static void release(struct sink *sink, bool failed) {
    if (failed && sink->committed > 0) {
        (void)mj__runtime_protect(sink->self->runtime, restore, sink);
    }
    luaL_unref(mj__runtime_lua(sink->self->runtime), LUA_REGISTRYINDEX, sink->buffer);
    free(sink);
}

/* A value that came whole with its line was not read into the buffer yet. */
static void take_whole(lua_State *L, struct sink *sink, const struct mj__answer *answer) {
    int top = lua_gettop(L);
    sink->want = (size_t)answer->reply.value_size;
    call_reserve(L, sink);
    memcpy(sink->room, answer->value, sink->want);
    sink->got = sink->want;
    call_commit(L, sink);
    lua_settop(L, top);
}

static int push_disturbed(lua_State *L, const struct sink *sink,
                          const struct mj__answer *answer) {
    struct mj__error error;
    mj__fail(
        &error, MJ__BAD_VALUE,
        "the buffer was changed while the value was read into it: it holds no whole value");
    error.phase = MJ__PHASE_READ;
    error.sent = MJ__SENT_YES;
    return mj__lua_fail(L, &error, answer->command->name, answer->key, answer->key_size,
                        mj__lua_conn_name(sink->self));
}

/* A piece that could not be committed, for want of memory, is missing in the buffer. */
static int push_hole(lua_State *L, const struct sink *sink, const struct mj__answer *answer) {
    struct mj__error error;
    mj__fail(&error, MJ__NO_MEMORY, "the buffer could not take all of the value");
    error.phase = MJ__PHASE_READ;
    error.sent = MJ__SENT_YES;
    return mj__lua_fail(L, &error, answer->command->name, answer->key, answer->key_size,
                        mj__lua_conn_name(sink->self));
}

void mj__lua_sink_done(void *arg, uint32_t index, const struct mj__answer *answer) {
    struct sink *sink = arg;
    struct mj__lua_conn *self = sink->self;
    struct mj__task *task = sink->task;
    lua_State *L = mj__runtime_lua(self->runtime);
    (void)index;
    int count = 1;
    bool hit = answer->error == NULL && answer->reply.code == MJ__VA &&
               !mj__reply_is_stub(&answer->reply);
    if (is_disturbed(L, sink)) {
        count = push_disturbed(L, sink, answer);
    } else if (hit && answer->value == NULL && sink->committed != answer->reply.value_size) {
        hit = false;
        count = push_hole(L, sink, answer);
    } else if (hit) {
        if (answer->value != NULL && answer->reply.value_size > 0) {
            take_whole(L, sink, answer);
        }
        lua_rawgeti(L, LUA_REGISTRYINDEX, sink->buffer);
    } else if (answer->error == NULL) {
        lua_pushnil(L);
    } else {
        count = mj__lua_push_answer(L, self, answer);
    }
    lua_xmove(L, mj__task_stack(task), count);
    release(sink, !hit);
    mj__task_wake(task, count);
}

void mj__lua_sink_lost(void *arg) {
    struct sink *sink = arg;
    struct mj__task *task = sink->task;
    release(sink, true);
    mj__lua_wake_with(task, MJ__NO_MEMORY_TOKEN);
}

static void abandon(struct mj__task *task, void *arg, uint64_t seq,
                    struct mj__interrupted *out) {
    struct sink *sink = arg;
    struct mj__lua_conn *self = sink->self;
    (void)task;
    const struct mj__command *command =
        mj__conn_request(self->conn, seq, &out->key, &out->key_size);
    out->op = command != NULL ? command->name : NULL;
    out->server = mj__lua_conn_name(self);
    mj__conn_abandon(self->conn, seq, &out->error);
    release(sink, true);
}

static const struct mj__wait_ops sink_wait = {.abandon = abandon};

static struct sink *sink_new(lua_State *L, int index, struct mj__lua_conn *self,
                             struct mj__task *task) {
    lua_pushvalue(L, index);
    int buffer = luaL_ref(L, LUA_REGISTRYINDEX);
    struct sink *sink = calloc(1, sizeof *sink);
    if (sink == NULL) {
        luaL_unref(L, LUA_REGISTRYINDEX, buffer);
        luaL_error(L, "not enough memory");
        return NULL;
    }
    *sink = (struct sink){.base = {.reserve = reserve, .commit = commit},
                          .self = self,
                          .task = task,
                          .buffer = buffer};
    return sink;
}

int mj__lua_submit_into(lua_State *L, struct mj__lua_conn *self, struct mj__task *task,
                        const struct mj__call *call, int into) {
    struct mj__error error;
    uint64_t seq;
    const char *op = mj__command(call->id)->name;
    struct sink *sink = sink_new(L, into, self, task);
    switch (mj__conn_submit(self->conn, call, NULL, &sink->base, mj__lua_sink_done, sink, 0,
                            &seq, &error)) {
    case MJ__SUBMITTED:
        return mj__task_wait(L, task, &sink_wait, sink, seq);
    case MJ__FULL:
        release(sink, false);
        return mj__lua_park(L, self, task, op, NULL);
    default:
        release(sink, false);
        return mj__lua_fail(L, &error, op, call->key, call->key_size, mj__lua_conn_name(self));
    }
}
