/* What a host calls to start tasks, and what it hears of their end. */
#include "runtime_parts.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

struct mj__results {
    lua_State *L; /* the task's: results stand at the bottom of its stack */
    int count;
    const char *text; /* of an error; then L is NULL */
    size_t text_size;
    const char *traceback;
};

int mj_results_count(const mj_results *results) {
    return results->count;
}

const char *mj_results_string(const mj_results *results, int index, size_t *size) {
    const char *text = NULL;
    size_t length = 0;
    if (index >= 0 && index < results->count) {
        if (results->L == NULL) {
            text = results->text;
            length = results->text_size;
        } else if (lua_type(results->L, index + 1) == LUA_TSTRING) {
            text = lua_tolstring(results->L, index + 1, &length);
        }
    }
    if (size != NULL) {
        *size = length;
    }
    return text;
}

double mj_results_number(const mj_results *results, int index, double fallback) {
    if (results->L == NULL || index < 0 || index >= results->count) {
        return fallback;
    }
    switch (lua_type(results->L, index + 1)) {
    case LUA_TNUMBER:
        return lua_tonumber(results->L, index + 1);
    case LUA_TBOOLEAN:
        return lua_toboolean(results->L, index + 1);
    default:
        return fallback;
    }
}

const char *mj_results_traceback(const mj_results *results) {
    return results->traceback;
}

/* ---- an error in words ---- */

struct words {
    struct mj__task *task;
    char *text, *traceback; /* allocated; NULL: there are none */
    size_t text_size;
    const char *instead; /* of the text */
};

/* Pushes the error at `index` as text. Throws where its own __tostring does. */
static void push_text(lua_State *L, int index) {
    int top = lua_gettop(L);
    if (lua_isstring(L, index)) {
        lua_pushvalue(L, index);
        lua_tostring(L, -1);
    } else if (!luaL_callmeta(L, index, "__tostring") || lua_type(L, -1) != LUA_TSTRING) {
        lua_settop(L, top);
        lua_pushfstring(L, "(error object is a %s value)", luaL_typename(L, index));
    }
}

static char *copy(lua_State *L, int index, size_t *size) {
    const char *text = lua_tolstring(L, index, size);
    char *block = malloc(*size + 1);
    return block != NULL ? memcpy(block, text, *size + 1) : NULL;
}

/* Pushes "TEXT\nstack traceback:..." for the error and its text at 1 and 2: the traceback that
 * was kept when the error passed through mj.deadline, or that of the dead coroutine. */
static void push_traceback(lua_State *L, struct mj__task *task) {
    if (task->traced) {
        lua_rawgeti(L, LUA_REGISTRYINDEX, task->runtime->traces);
        lua_rawgeti(L, -1, (int)task->slot + 1);
        if (lua_istable(L, -1)) {
            lua_rawgeti(L, -1, 1);
            if (lua_rawequal(L, -1, 1)) {
                lua_pushvalue(L, 2);
                lua_pushliteral(L, "\n");
                lua_rawgeti(L, -4, 2);
                lua_concat(L, 3);
                return;
            }
        }
    }
    luaL_traceback(L, task->L, lua_tostring(L, 2), 0);
}

static void find_words(lua_State *L, void *arg) {
    struct words *words = arg;
    lua_pushvalue(words->task->L, -1);
    lua_xmove(words->task->L, L, 1);
    push_text(L, 1);
    words->text = copy(L, 2, &words->text_size);
    push_traceback(L, words->task);
    size_t ignored;
    words->traceback = copy(L, -1, &ignored);
}

/* An error whose own __tostring fails has no words; for others there may be no memory. */
static void take_words(struct mj__runtime *runtime, struct words *words) {
    int status = mj__runtime_protect(runtime, find_words, words);
    words->instead = status > 0 ? "an error that cannot be told in words"
                                : "not enough memory to tell the error";
}

static void free_words(struct words *words) {
    free(words->text);
    free(words->traceback);
}

/* ---- the end of a task ---- */

static int status_of(const struct mj__task *task) {
    if (!task->failed) {
        return MJ_OK;
    }
    bool told = task->cancelled && mj__lua_is_kind(task->L, -1, MJ__CANCELLED);
    return told ? MJ_CANCELLED : MJ_ERROR;
}

static void call_done(struct mj__runtime *runtime, struct mj__task *task, int status,
                      const struct words *words) {
    mj_results results = {.L = task->L, .count = task->count, .traceback = ""};
    if (status == MJ_ERROR) {
        bool some = words->text != NULL;
        results.L = NULL;
        results.count = 1;
        results.text = some ? words->text : words->instead;
        results.text_size = some ? words->text_size : strlen(words->instead);
        results.traceback = words->traceback != NULL ? words->traceback : "";
    }
    mj_done_fn done = task->done;
    task->done = NULL;
    done(runtime, mj__task_id(task), status, &results, task->done_arg);
}

static void report(struct mj__runtime *runtime, const struct words *words) {
    static const char prefix[] = "task failed: ";
    runtime->failures++;
    if (runtime->options.error == NULL) {
        return;
    }
    const char *text = words->traceback != NULL ? words->traceback : words->instead;
    char *line = malloc(sizeof prefix + strlen(text));
    if (line != NULL) {
        stpcpy(stpcpy(line, prefix), text);
    }
    runtime->options.error(runtime, line != NULL ? line : text, runtime->options.error_arg);
    free(line);
}

void mj__call_ended(struct mj__runtime *runtime, struct mj__task *task) {
    int status = status_of(task);
    struct words words = {.task = task, .instead = ""};
    bool silent = task->done == NULL && (task->claimed || status == MJ_CANCELLED);
    if (status == MJ_ERROR && !silent) {
        take_words(runtime, &words);
    }
    if (task->done != NULL) {
        call_done(runtime, task, status, &words);
    } else if (!silent) {
        report(runtime, &words);
    }
    free_words(&words);
}

void mj__call_cancelled(struct mj__runtime *runtime, struct mj__task *task) {
    if (task->done != NULL) {
        task->count = 0;
        call_done(runtime, task, MJ_CANCELLED, NULL);
    }
}

/* ---- load ---- */

struct chunk {
    const char *name, *text;
    size_t size;
    int status; /* Lua's */
};

static int add_traceback(lua_State *L) {
    push_text(L, 1);
    luaL_traceback(L, L, lua_tostring(L, -1), 1);
    return 1;
}

/* Runs the chunk in a coroutine of its own: the main thread runs no scripts. */
static int load_chunk(lua_State *L) {
    struct chunk *chunk = lua_touserdata(L, 1);
    lua_State *coroutine = lua_newthread(L);
    lua_pushcfunction(coroutine, add_traceback);
    chunk->status = luaL_loadbufferx(coroutine, chunk->text, chunk->size, chunk->name, "t");
    if (chunk->status == 0) {
        chunk->status = lua_pcall(coroutine, 0, 0, 1);
    }
    if (chunk->status != 0) {
        lua_xmove(coroutine, L, 1);
        return lua_error(L);
    }
    return 0;
}

/* Calls fn under protection on the main thread; what it throws becomes mj_error. */
static int attempt(struct mj__runtime *runtime, lua_CFunction fn, void *arg) {
    mj__runtime_fail(runtime, "");
    if (runtime->closing) {
        mj__runtime_fail(runtime, "the runtime is closing");
        return MJ_ERROR;
    }
    mj__memory_relieve(runtime);
    lua_State *L = runtime->L;
    struct mj__task *current = runtime->current;
    runtime->current = NULL;
    int status = lua_cpcall(L, fn, arg);
    runtime->current = current;
    if (status == 0) {
        return MJ_OK;
    }
    const char *text = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : NULL;
    mj__runtime_fail(runtime, text != NULL ? text : "an error that is no text");
    lua_pop(L, 1);
    return status == LUA_ERRMEM ? MJ_NOMEM : MJ_ERROR;
}

int mj_load(mj_runtime *runtime, const char *name, const char *text, size_t size) {
    struct chunk chunk = {.name = name, .text = text, .size = size};
    int status = attempt(runtime, load_chunk, &chunk);
    return chunk.status == LUA_ERRMEM ? MJ_NOMEM : status;
}

/* ---- call ---- */

struct call {
    struct mj__runtime *runtime;
    const char *function, *types;
    va_list *args;
    mj_task id;
    mj_done_fn done;
    void *done_arg;
};

/* The analyzer does not see that mj_call started the list.
 * NOLINTBEGIN(clang-analyzer-valist.Uninitialized) */
static void push_argument(lua_State *L, struct call *call, char type) {
    switch (type) {
    case 's':
        lua_pushstring(L, va_arg(*call->args, const char *));
        break;
    case 'b': {
        const char *bytes = va_arg(*call->args, const char *);
        lua_pushlstring(L, bytes, va_arg(*call->args, size_t));
        break;
    }
    case 'n':
        lua_pushnumber(L, va_arg(*call->args, double));
        break;
    case 'i':
        lua_pushnumber(L, (lua_Number)va_arg(*call->args, int64_t));
        break;
    case 't':
        lua_pushboolean(L, va_arg(*call->args, int));
        break;
    default:
        luaL_error(L, "mj_call of %s: no type letter '%c' (s, b, n, i or t)", call->function,
                   type);
    }
}
/* NOLINTEND(clang-analyzer-valist.Uninitialized) */

static int start_call(lua_State *L) {
    struct call *call = lua_touserdata(L, 1);
    lua_getglobal(L, call->function);
    if (!lua_isfunction(L, -1)) {
        luaL_error(L, "mj_call: no global function %s (it is a %s value)", call->function,
                   luaL_typename(L, -1));
    }
    int count = (int)strlen(call->types);
    luaL_checkstack(L, count, "too many arguments");
    for (int i = 0; i < count; i++) {
        push_argument(L, call, call->types[i]);
    }
    struct mj__task *task = mj__task_start(L, call->runtime, count, 0);
    task->done = call->done;
    task->done_arg = call->done_arg;
    call->id = mj__task_id(task);
    return 0;
}

mj_task mj_call(mj_runtime *runtime, const char *function, mj_done_fn done, void *arg,
                const char *types, ...) {
    struct call call = {
        .runtime = runtime,
        .function = function,
        .types = types != NULL ? types : "",
        .done = done,
        .done_arg = arg,
    };
    va_list args;
    va_start(args, types);
    call.args = &args;
    attempt(runtime, start_call, &call);
    va_end(args);
    return call.id;
}

void mj_cancel(mj_runtime *runtime, mj_task id) {
    struct mj__task *task = runtime->closing ? NULL : mj__task_find(runtime, id);
    if (task != NULL) {
        mj__task_cancel(task);
    }
}
