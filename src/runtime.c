#include "runtime_parts.h"

#include "buffer.h"
#include "lua_modules.h"
#include "lua_open.h"
#include "resolve.h"

#include <errno.h>
#include <luajit.h>
#include <lualib.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* Its address is the registry's key for the runtime, in states that do not use our allocator. */
static const char registry_key;

enum { TRIES = 100 }; /* finalizers in a row that throw into one call */

/* ---- a turn ---- */

static bool work(void *arg) {
    struct mj__runtime *runtime = arg;
    bool more = mj__tasks_work(runtime);
    if (runtime->ended.first == NULL) {
        mj__memory_relieve(runtime); /* else once what those tasks held is garbage */
    }
    return more;
}

/* ---- what other rooms ask for ---- */

struct mj__runtime *mj__runtime_of(lua_State *L) {
    void *arg;
    if (lua_getallocf(L, &arg) == mj__memory_allocate) {
        return arg;
    }
    lua_pushlightuserdata(L, (void *)(uintptr_t)&registry_key);
    lua_rawget(L, LUA_REGISTRYINDEX);
    arg = lua_touserdata(L, -1);
    lua_pop(L, 1);
    return arg;
}

struct mj__loop *mj__runtime_loop(struct mj__runtime *runtime) {
    return runtime->loop;
}

lua_State *mj__runtime_lua(struct mj__runtime *runtime) {
    return runtime->L;
}

struct mj__pool *mj__runtime_pool(struct mj__runtime *runtime) {
    return runtime->pool;
}

bool mj__runtime_closing(const struct mj__runtime *runtime) {
    return runtime->closing;
}

struct mj__resolver *mj__runtime_resolver(struct mj__runtime *runtime,
                                          struct mj__error *error) {
    if (runtime->resolver == NULL) {
        runtime->resolver = mj__resolver_open(runtime->loop, error);
    }
    return runtime->resolver;
}

/* A closure made once: lua_cpcall would make one for every call. */
static int trampoline(lua_State *L) {
    struct mj__runtime *runtime = mj__runtime_of(L);
    runtime->protected_fn(L, runtime->protected_arg);
    return 0;
}

/* What is called is not pushed as light userdata: LuaJIT may allocate for an address from a part
 * of memory that it has not met yet, and throw, which only the call itself may. */
int mj__runtime_protect(struct mj__runtime *runtime, mj__protected_fn *fn, void *arg) {
    lua_State *L = runtime->L;
    if (L == NULL) {
        return -1;
    }
    runtime->protected_fn = fn;
    runtime->protected_arg = arg;
    runtime->protecting++;
    lua_rawgeti(L, LUA_REGISTRYINDEX, runtime->trampoline);
    int status = lua_pcall(L, 0, 0, 0);
    if (status == 0) {
        runtime->protecting--;
        return 0;
    }
    const char *text = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : NULL;
    if (runtime->options.error != NULL && !runtime->closing) {
        runtime->options.error(runtime, text != NULL ? text : "an error that is no text",
                               runtime->options.error_arg);
    }
    runtime->protecting--;
    lua_pop(L, 1);
    return status == LUA_ERRMEM ? -1 : 1;
}

bool mj__runtime_protecting(const struct mj__runtime *runtime) {
    return runtime->protecting > 0;
}

int mj__runtime_insist(struct mj__runtime *runtime, mj__protected_fn *fn, void *arg) {
    int status, tries = 0;
    do {
        status = mj__runtime_protect(runtime, fn, arg);
    } while (status > 0 && ++tries < TRIES);
    return status;
}

void mj__runtime_fail(struct mj__runtime *runtime, const char *text) {
    free(runtime->error);
    runtime->error = strdup(text);
    runtime->error_text = runtime->error != NULL ? runtime->error : "out of memory";
}

const char *mj_error(mj_runtime *runtime) {
    return runtime->error_text;
}

/* ---- the Lua state ---- */

/* Tells that the state is gone, also when it was os.exit that closed it. */
static int state_closed(lua_State *L) {
    struct mj__runtime *runtime = *(struct mj__runtime **)lua_touserdata(L, 1);
    runtime->closing = true;
    runtime->L = NULL;
    return 0;
}

static void watch_end_of_state(lua_State *L, struct mj__runtime *runtime) {
    struct mj__runtime **end = lua_newuserdata(L, sizeof *end);
    *end = runtime;
    lua_createtable(L, 0, 1);
    lua_pushcfunction(L, state_closed);
    lua_setfield(L, -2, "__gc");
    lua_setmetatable(L, -2);
    luaL_ref(L, LUA_REGISTRYINDEX);
}

static int give_core(lua_State *L) {
    lua_pushvalue(L, lua_upvalueindex(1));
    return 1;
}

/* Makes the table of primitives, and lets `require "moonjay.core"` find it: always the same one,
 * however often package.loaded is emptied. */
static void open_core(lua_State *L) {
    lua_createtable(L, 0, 64);
    mj__lua_open_error(L);
    mj__lua_open_url(L);
    mj__lua_open_task(L);
    mj__lua_open_conn(L);
    lua_getglobal(L, "package");
    lua_getfield(L, -1, "preload");
    lua_pushvalue(L, -3);
    lua_pushcclosure(L, give_core, 1);
    lua_setfield(L, -2, "moonjay.core");
    lua_pop(L, 2);
}

/* LuaJIT may crash when memory runs out in compiled code: its own on-trace errors were mended bit
 * by bit after Debian 12's version. So a state with a limit interprets, and cannot be told not to. */
static void forbid_jit(lua_State *L) {
    luaJIT_setmode(L, 0, LUAJIT_MODE_ENGINE | LUAJIT_MODE_OFF);
    lua_pushnil(L);
    lua_setglobal(L, "jit");
    lua_getglobal(L, "package");
    lua_getfield(L, -1, "loaded");
    lua_pushnil(L);
    lua_setfield(L, -2, "jit");
    lua_pop(L, 2);
}

/* A get into a buffer needs it. Later it would be loaded without the reserve. */
static void load_ffi(lua_State *L) {
    lua_getglobal(L, "require");
    lua_pushliteral(L, "ffi");
    lua_call(L, 1, 0);
}

static int open_state(lua_State *L) {
    struct mj__runtime *runtime = lua_touserdata(L, 1);
    luaL_openlibs(L);
    load_ffi(L);
    mj__memory_close_reserve(runtime);
    if (runtime->options.memory_limit != 0) {
        forbid_jit(L);
    }
    lua_pushlightuserdata(L, (void *)(uintptr_t)&registry_key);
    lua_pushlightuserdata(L, runtime);
    lua_rawset(L, LUA_REGISTRYINDEX);
    watch_end_of_state(L, runtime);
    lua_pushcfunction(L, trampoline);
    runtime->trampoline = luaL_ref(L, LUA_REGISTRYINDEX);
    runtime->globals = lua_topointer(L, LUA_GLOBALSINDEX);
    mj__tasks_open(L, runtime);
    mj__lua_modules_open(L);
    open_core(L);
    mj__lua_modules_push(L, "moonjay.relay");
    lua_pushvalue(L, -2);
    lua_call(L, 1, 0);
    return 0;
}

/* The allocator is refused where it may give addresses that LuaJIT cannot store; then the state
 * has LuaJIT's own, and no limit holds. */
static lua_State *new_state(struct mj__runtime *runtime) {
    lua_State *L = lua_newstate(mj__memory_allocate, runtime);
    runtime->counts_memory = L != NULL;
    if (L == NULL && !runtime->refused) {
        L = luaL_newstate();
        if (runtime->options.memory_limit != 0) {
            mj__runtime_fail(runtime, "no memory limit holds: this LuaJIT takes no allocator");
        }
    }
    return L;
}

static int open_lua(struct mj__runtime *runtime, struct mj__error *error) {
    lua_State *L = NULL;
    if (mj__memory_open_reserve(runtime) == 0) {
        L = runtime->L = new_state(runtime);
    }
    if (L == NULL) {
        return mj__fail(error, MJ__NO_MEMORY, "no memory for a Lua state");
    }
    if (lua_cpcall(L, open_state, runtime) != 0) {
        const char *text = lua_tostring(L, -1);
        return mj__fail(error, MJ__NO_MEMORY, "cannot set up the Lua state: %s",
                        text != NULL ? text : "no memory");
    }
    return 0;
}

/* ---- posted functions ---- */

static struct mj__posted *take_posted(struct mj__runtime *runtime) {
    pthread_mutex_lock(&runtime->post_lock);
    struct mj__posted *posted = runtime->posted;
    runtime->posted = NULL;
    runtime->posted_end = &runtime->posted;
    pthread_mutex_unlock(&runtime->post_lock);
    return posted;
}

static void run_posted(struct mj__runtime *runtime) {
    struct mj__posted *posted = take_posted(runtime);
    while (posted != NULL) {
        struct mj__posted *next = posted->next;
        posted->fn(runtime, posted->arg);
        free(posted);
        posted = next;
    }
}

static void post_ready(struct mj__watch *watch, bool readable, bool writable) {
    (void)readable;
    (void)writable;
    size_t offset = offsetof(struct mj__runtime, post_watch);
    struct mj__runtime *runtime = (struct mj__runtime *)((char *)watch - offset);
    uint64_t count;
    mj__watch_be_urgent(watch); /* where one comes, more will */
    if (read(runtime->post_fd, &count, sizeof count) == sizeof count) {
        run_posted(runtime);
    }
}

static int open_post(struct mj__runtime *runtime, struct mj__error *error) {
    runtime->post_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (runtime->post_fd < 0) {
        return mj__fail(error, MJ__UNREACHABLE, "no event descriptor: %s", strerror(errno));
    }
    runtime->post_watch.ready = post_ready;
    runtime->post_watch.patient = true;
    if (mj__watch_open(runtime->loop, &runtime->post_watch, runtime->post_fd) != 0 ||
        mj__watch_arm(&runtime->post_watch, true, false) != 0) {
        return mj__fail(error, MJ__NO_MEMORY, "no memory for an event");
    }
    return 0;
}

/* A function that posts itself again for ever would otherwise keep the runtime from closing. */
static void close_post(struct mj__runtime *runtime) {
    pthread_mutex_lock(&runtime->post_lock);
    runtime->post_closed = true;
    pthread_mutex_unlock(&runtime->post_lock);
}

static bool has_posted(struct mj__runtime *runtime) {
    pthread_mutex_lock(&runtime->post_lock);
    bool some = runtime->posted != NULL;
    pthread_mutex_unlock(&runtime->post_lock);
    return some;
}

int mj_post(mj_runtime *runtime, void (*fn)(mj_runtime *, void *), void *arg) {
    struct mj__posted *posted = malloc(sizeof *posted);
    if (posted == NULL) {
        return MJ_NOMEM;
    }
    *posted = (struct mj__posted){.fn = fn, .arg = arg};
    pthread_mutex_lock(&runtime->post_lock);
    if (runtime->post_closed) {
        pthread_mutex_unlock(&runtime->post_lock);
        free(posted);
        return MJ_USAGE;
    }
    bool first = runtime->posted == NULL;
    *runtime->posted_end = posted;
    runtime->posted_end = &posted->next;
    /* Under the lock: the runtime may run the function, and close, as soon as it is released. */
    ssize_t written = first ? write(runtime->post_fd, &(uint64_t){1}, sizeof(uint64_t)) : 0;
    (void)
        written; /* it can only fail when the counter is full, and then the loop wakes anyway */
    pthread_mutex_unlock(&runtime->post_lock);
    return MJ_OK;
}

/* ---- open and close ---- */

static int open_parts(struct mj__runtime *runtime, struct mj__error *error) {
    runtime->loop = mj__loop_open(error);
    if (runtime->loop == NULL || open_post(runtime, error) != 0) {
        return -1;
    }
    runtime->pool = mj__pool_open(&runtime->memory, runtime->options.memory_limit);
    if (runtime->pool == NULL) {
        return mj__fail(error, MJ__NO_MEMORY, "no memory for buffers");
    }
    mj__loop_work(runtime->loop, work, runtime);
    return open_lua(runtime, error);
}

static struct mj__runtime *open_runtime(const mj_options *options, struct mj__error *error) {
    if (options != NULL && options->size < sizeof options->size) {
        mj__fail(error, MJ__BAD_VALUE, "mj_options.size must be sizeof(mj_options)");
        return NULL;
    }
    struct mj__runtime *runtime = calloc(1, sizeof *runtime);
    if (runtime == NULL || pthread_mutex_init(&runtime->post_lock, NULL) != 0) {
        free(runtime);
        mj__fail(error, MJ__NO_MEMORY, "no memory for a runtime");
        return NULL;
    }
    if (options != NULL) {
        size_t known = sizeof runtime->options;
        memcpy(&runtime->options, options, options->size < known ? options->size : known);
    }
    runtime->error_text = "";
    runtime->post_fd = -1;
    runtime->posted_end = &runtime->posted;
    runtime->settle.run = mj__tasks_settle;
    if (open_parts(runtime, error) != 0) {
        mj_close(runtime);
        return NULL;
    }
    return runtime;
}

mj_runtime *mj_open(const mj_options *options, char *error, size_t error_size) {
    struct mj__error why = {.kind = MJ__KIND_NONE};
    struct mj__runtime *runtime = open_runtime(options, &why);
    if (error_size > 0 && error != NULL) {
        snprintf(error, error_size, "%s", runtime == NULL ? why.text : "");
    }
    return runtime;
}

/* What the host and the tasks are told before anything is taken away. */
static void part(struct mj__runtime *runtime) {
    runtime->closing = true;
    close_post(runtime);
    run_posted(runtime);
    if (runtime->L == NULL) {
        return;
    }
    mj__tasks_silence(runtime);
    mj__tasks_settle(&runtime->settle);
    for (size_t i = 0; i < runtime->slot_count; i++) {
        mj__call_cancelled(runtime, runtime->slots[i]);
    }
}

void mj_close(mj_runtime *runtime) {
    if (runtime == NULL) {
        return;
    }
    part(runtime);
    if (runtime->loop != NULL) {
        mj__loop_run_before_close(runtime->loop); /* what these still send is Lua's */
    }
    if (runtime->L != NULL) {
        lua_close(runtime->L); /* closes connections, which are freed in the turn below */
        runtime->L = NULL;
    }
    mj__memory_close(runtime);
    mj__tasks_close(runtime);
    if (runtime->loop != NULL) {
        mj__loop_work(runtime->loop, NULL, NULL);
        mj__watch_close(&runtime->post_watch);
        mj__loop_cancel(runtime->loop, &runtime->settle);
        mj__loop_turn(runtime->loop, false);
    }
    if (runtime->resolver != NULL) {
        mj__resolver_close(runtime->resolver);
    }
    mj__loop_close(runtime->loop);
    if (runtime->pool != NULL) {
        mj__pool_close(runtime->pool);
    }
    if (runtime->post_fd >= 0) {
        close(runtime->post_fd);
    }
    pthread_mutex_destroy(&runtime->post_lock);
    free(runtime->error);
    free(runtime);
}

/* ---- run ---- */

static bool has_ready(const struct mj__runtime *runtime) {
    return runtime->ready.first != NULL || runtime->later.first != NULL;
}

int mj_run(mj_runtime *runtime) {
    if (runtime->inside || runtime->closing) {
        return MJ_USAGE;
    }
    uint64_t failures = runtime->failures;
    int status = 0;
    runtime->inside = true;
    runtime->step_limit = MJ__NEVER;
    while (status == 0 &&
           (runtime->live > 0 || has_posted(runtime) || mj__loop_owes(runtime->loop))) {
        status = mj__loop_turn(runtime->loop, !has_ready(runtime));
    }
    runtime->inside = false;
    return status == 0 && runtime->failures == failures ? MJ_OK : MJ_ERROR;
}

/* A host may mean "no limit" by the largest number there is. */
static mj__time nanoseconds(long microseconds) {
    static const long longest = 86400L * 1000000; /* a day */
    microseconds = microseconds > 0 ? microseconds : 0;
    return (mj__time)(microseconds < longest ? microseconds : longest) * 1000;
}

int mj_poll(mj_runtime *runtime, long budget_us) {
    if (runtime->inside || runtime->closing) {
        return MJ_USAGE;
    }
    int status;
    bool busy;
    runtime->inside = true;
    runtime->step_limit = mj__clock() + nanoseconds(budget_us);
    do {
        uint64_t resumes = runtime->resumes;
        status = mj__loop_turn(runtime->loop, false);
        busy = runtime->resumes != resumes || has_ready(runtime);
    } while (status == 0 && busy && mj__clock() < runtime->step_limit);
    runtime->inside = false;
    return status == 0 ? (int)runtime->live : MJ_ERROR;
}
