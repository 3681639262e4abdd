#include "lua_open.h"
#include "runtime_parts.h"

#include <string.h>

static const double longest = 1e9; /* seconds: 31 years, well below what nanoseconds can hold */

/* ---- check ---- */

static double check_seconds(lua_State *L, int index, const char *function) {
    if (lua_type(L, index) != LUA_TNUMBER) {
        mj__lua_misuse(L, function, "seconds: a number is wanted, got %s",
                       luaL_typename(L, index));
    }
    double seconds = lua_tonumber(L, index);
    if (!(seconds >= 0 && seconds <= longest)) {
        mj__lua_misuse(L, function, "seconds: a number from 0 to %g is wanted, got %g", longest,
                       seconds);
    }
    return seconds;
}

static mj__time nanoseconds(double seconds) {
    double exact = seconds * (double)MJ__SECOND;
    mj__time whole = (mj__time)exact;
    return (double)whole < exact ? whole + 1 : whole;
}

static bool has_meta(lua_State *L, int index, int meta) {
    if (lua_type(L, index) != LUA_TUSERDATA || !lua_getmetatable(L, index)) {
        return false;
    }
    lua_rawgeti(L, LUA_REGISTRYINDEX, meta);
    bool same = lua_rawequal(L, -1, -2) != 0;
    lua_pop(L, 2);
    return same;
}

static struct mj__handle *check_handle(lua_State *L, int index, const char *function) {
    if (!has_meta(L, index, mj__runtime_of(L)->task_meta)) {
        mj__lua_misuse(L, function, "a task is wanted (call it with a colon), got %s",
                       luaL_typename(L, index));
    }
    return lua_touserdata(L, index);
}

/* Somebody else sees to the task's error, so it is not reported. */
static void claim(struct mj__handle *handle) {
    if (handle->task != NULL) {
        handle->task->claimed = true;
    }
}

/* ---- spawn, sleep, now ---- */

/* spawn(fn, ...): a handle. */
static int spawn(lua_State *L) {
    struct mj__runtime *runtime = mj__runtime_of(L);
    if (lua_type(L, 1) != LUA_TFUNCTION) {
        return mj__lua_misuse(L, "spawn", "a function is wanted, got %s", luaL_typename(L, 1));
    }
    if (runtime->closing) {
        return mj__lua_misuse(L, "spawn", "the runtime is closing");
    }
    struct mj__handle *handle = lua_newuserdata(L, sizeof *handle);
    *handle = (struct mj__handle){.count = MJ__LIVE};
    lua_rawgeti(L, LUA_REGISTRYINDEX, runtime->task_meta);
    lua_setmetatable(L, -2);
    lua_insert(L, 1);
    mj__task_start(L, runtime, lua_gettop(L) - 2, 1);
    return 1;
}

/* sleep(seconds): nothing, or nil and a token. */
static int task_sleep(lua_State *L) {
    double seconds = check_seconds(L, 1, "sleep");
    struct mj__task *task = mj__task_here(L, "sleep");
    if (mj__task_interrupted(task)) {
        return mj__task_refuse(L, task);
    }
    return seconds > 0 ? mj__task_sleep(L, task, nanoseconds(seconds))
                       : mj__task_pause(L, task);
}

static int now(lua_State *L) {
    lua_pushnumber(L, (lua_Number)mj__clock() / (lua_Number)MJ__SECOND);
    return 1;
}

/* ---- handles ---- */

/* task_wait(handle [, seconds]): true when it has ended, false when time is up, or a token. */
static int task_wait(lua_State *L) {
    struct mj__handle *handle = check_handle(L, 1, "task:wait");
    bool limited = !lua_isnoneornil(L, 2);
    mj__time span = limited ? nanoseconds(check_seconds(L, 2, "task:wait")) : MJ__NEVER;
    if (handle->count != MJ__LIVE) {
        claim(handle);
        lua_pushboolean(L, true);
        return 1;
    }
    struct mj__task *task = mj__task_here(L, "task:wait");
    if (handle->task == task) {
        return mj__lua_misuse(L, "task:wait", "a task cannot wait for itself");
    }
    if (mj__task_interrupted(task)) {
        return mj__task_refuse(L, task);
    }
    return mj__task_join(L, task, handle->task, span);
}

/* task_results(handle): what the ended task returned, or nil and its error. */
static int task_results(lua_State *L) {
    const struct mj__handle *handle = check_handle(L, 1, "task:wait");
    if (handle->count == MJ__LOST) {
        struct mj__error error;
        mj__fail(&error, MJ__NO_MEMORY,
                 "the task has ended, but there was no memory to keep its results");
        return mj__lua_fail(L, &error, "task:wait", NULL, 0, NULL);
    }
    if (handle->count < 0) {
        lua_pushnil(L);
    }
    lua_getfenv(L, 1);
    int count = handle->count < 0 ? 1 : handle->count;
    luaL_checkstack(L, count + 1, "too many results");
    int place = lua_gettop(L);
    for (int i = 1; i <= count; i++) {
        lua_rawgeti(L, place, i);
    }
    if (handle->count < 0) {
        if (lua_isnil(L, -1)) {
            lua_pushliteral(L, "the task ended in an error of nil");
        }
        lua_replace(L, place);
        lua_settop(L, place);
        return 2;
    }
    return count;
}

/* task_cancel(handle) */
static int task_cancel(lua_State *L) {
    const struct mj__handle *handle = check_handle(L, 1, "task:cancel");
    if (handle->task != NULL) {
        mj__task_cancel(handle->task);
    }
    return 0;
}

static int task_tostring(lua_State *L) {
    const struct mj__handle *handle = check_handle(L, 1, "tostring");
    const char *state = handle->count == MJ__LIVE     ? "live"
                        : handle->count == MJ__FAILED ? "failed"
                                                      : "ended";
    lua_pushfstring(L, "task: %p (%s)", (const void *)handle, state);
    return 1;
}

/* ---- groups: waiting for the first of many ---- */

struct member {
    struct mj__waiter waiter;
    struct group *group;
    int next; /* the one that ended after it */
};

struct group {
    struct mj__task *task; /* who waits; NULL: nobody */
    const char *name;      /* of the function that waits */
    int count, told;       /* members; those that group_wait has told of */
    int first, last;       /* ended, not yet told of; 0: none */
    struct member members[];
};

static int take_ended(struct group *group) {
    int index = group->first;
    group->first = index == group->last ? 0 : group->members[index - 1].next;
    group->told++;
    return index;
}

static void add_ended(struct group *group, int index) {
    if (group->first == 0) {
        group->first = index;
    } else {
        group->members[group->last - 1].next = index;
    }
    group->last = index;
}

static void member_ended(struct mj__waiter *waiter) {
    struct member *member = (struct member *)waiter;
    struct group *group = member->group;
    add_ended(group, (int)(member - group->members) + 1);
    if (group->task != NULL) {
        struct mj__task *task = group->task;
        group->task = NULL;
        lua_pushinteger(task->L, take_ended(group));
        mj__task_wake(task, 1);
    }
}

static int group_close(lua_State *L) {
    struct group *group = lua_touserdata(L, 1);
    for (int i = 0; i < group->count; i++) {
        mj__waiter_leave(&group->members[i].waiter);
    }
    return 0;
}

static struct mj__handle *check_member(lua_State *L, int index, const char *function) {
    lua_rawgeti(L, 1, index);
    struct mj__runtime *runtime = mj__runtime_of(L);
    if (!has_meta(L, -1, runtime->task_meta)) {
        mj__lua_misuse(L, function, "[%d]: a task is wanted, got %s", index,
                       luaL_typename(L, -1));
    }
    struct mj__handle *handle = lua_touserdata(L, -1);
    if (handle->task != NULL && handle->task == runtime->current) {
        mj__lua_misuse(L, function, "[%d]: a task cannot wait for itself", index);
    }
    lua_pop(L, 1);
    return handle;
}

/* group(list of handles, name): userdata for group_wait. The members' errors are the group's from
 * now on. */
static int new_group(lua_State *L) {
    const char *function = luaL_checkstring(L, 2);
    if (!lua_istable(L, 1)) {
        return mj__lua_misuse(L, function, "a list of tasks is wanted, got %s",
                              luaL_typename(L, 1));
    }
    int count = (int)lua_objlen(L, 1);
    for (int i = 1; i <= count; i++) {
        check_member(L, i, function);
    }
    size_t size = sizeof(struct group) + (size_t)count * sizeof(struct member);
    struct group *group = lua_newuserdata(L, size);
    *group = (struct group){
        .name = strcmp(function, "all") == 0 ? "all" : "any",
        .count = count,
    };
    for (int i = 1; i <= count; i++) {
        struct mj__handle *handle = check_member(L, i, function);
        struct member *member = &group->members[i - 1];
        *member = (struct member){.waiter.ended = member_ended, .group = group};
        claim(handle);
        if (handle->count == MJ__LIVE) {
            mj__task_add_waiter(handle->task, &member->waiter);
        } else {
            add_ended(group, i);
        }
    }
    lua_rawgeti(L, LUA_REGISTRYINDEX, mj__runtime_of(L)->group_meta);
    lua_setmetatable(L, -2);
    return 1;
}

static void abandon_group(struct mj__task *task, void *arg, uint64_t tag,
                          struct mj__interrupted *out) {
    (void)task;
    (void)tag;
    struct group *group = arg;
    group->task = NULL;
    out->op = group->name;
}

static const struct mj__wait_ops group_ops = {abandon_group};

/* group_wait(group): the place in the list of the next task to end, nothing after the last, or a
 * token. */
static int group_wait(lua_State *L) {
    struct group *group = lua_touserdata(L, 1);
    struct mj__task *task = mj__task_here(L, group->name);
    if (group->first != 0) {
        lua_pushinteger(L, take_ended(group));
        return 1;
    }
    if (group->told == group->count) {
        return 0;
    }
    if (mj__task_interrupted(task)) {
        return mj__task_refuse(L, task);
    }
    group->task = task;
    return mj__task_wait(L, task, &group_ops, group, 0);
}

/* ---- deadlines ---- */

/* deadline_begin(seconds): userdata for deadline_end. */
static int deadline_begin(lua_State *L) {
    double seconds = check_seconds(L, 1, "deadline");
    struct mj__runtime *runtime = mj__runtime_of(L);
    if (runtime->current == NULL) {
        return mj__lua_misuse(L, "deadline",
                              "only a task can have a deadline: call it inside mj.spawn");
    }
    struct mj__deadline *deadline = lua_newuserdata(L, sizeof *deadline);
    *deadline = (struct mj__deadline){.task = NULL};
    lua_rawgeti(L, LUA_REGISTRYINDEX, runtime->deadline_meta);
    lua_setmetatable(L, -2);
    if (mj__deadline_begin(L, deadline, runtime->current, seconds) != 0) {
        return luaL_error(L, "not enough memory");
    }
    return 1;
}

static int deadline_close(lua_State *L) {
    mj__deadline_end(lua_touserdata(L, 1));
    return 0;
}

/* Pushes the id of the deadline that the error at `index` belongs to, or nil. */
static void push_owner(lua_State *L, int index) {
    lua_rawgeti(L, LUA_REGISTRYINDEX, mj__runtime_of(L)->owned);
    lua_pushvalue(L, index);
    lua_rawget(L, -2);
    lua_remove(L, -2);
}

/* deadline_end(deadline, ok, error): whether the error is this deadline's own. */
static int deadline_end(lua_State *L) {
    struct mj__deadline *deadline = lua_touserdata(L, 1);
    mj__deadline_end(deadline);
    bool own = false;
    if (!lua_toboolean(L, 2) && lua_istable(L, 3)) {
        push_owner(L, 3);
        own = lua_tonumber(L, -1) == (lua_Number)deadline->id;
    }
    lua_pushboolean(L, own);
    return 1;
}

/* Pushes the traceback of the dead coroutine `inner`, if there is one, and of L behind it. */
static void push_traces(lua_State *L, lua_State *inner) {
    luaL_traceback(L, L, NULL, 1);
    if (inner != NULL) {
        luaL_traceback(L, inner, NULL, 0);
        lua_insert(L, -2);
        lua_pushliteral(L, "\n");
        lua_insert(L, -2);
        lua_concat(L, 3);
    }
}

/* keep_trace(error [, coroutine]): the error. The traceback of an error that is caught and thrown
 * again, by mj.deadline (whose message handler this is) or coroutine.wrap, is kept for the report,
 * should nobody else catch it. */
static int keep_trace(lua_State *L) {
    struct mj__runtime *runtime = mj__runtime_of(L);
    struct mj__task *task = runtime->current;
    lua_settop(L, 2);
    if (task == NULL || lua_isnil(L, 1)) {
        lua_settop(L, 1);
        return 1;
    }
    push_owner(L, 1);
    lua_rawgeti(L, LUA_REGISTRYINDEX, runtime->traces);
    lua_rawgeti(L, 4, (int)task->slot + 1);
    bool kept = false;
    if (lua_istable(L, 5)) {
        lua_rawgeti(L, 5, 1);
        kept = lua_rawequal(L, 6, 1) != 0;
    }
    if (lua_isnil(L, 3) && !kept) {
        lua_createtable(L, 2, 0);
        lua_pushvalue(L, 1);
        lua_rawseti(L, -2, 1);
        push_traces(L, lua_tothread(L, 2));
        lua_rawseti(L, -2, 2);
        lua_rawseti(L, 4, (int)task->slot + 1);
        task->traced = true;
    }
    lua_settop(L, 1);
    return 1;
}

/* ---- interruptions, and coroutines of the script's own ---- */

static struct mj__task *check_current(lua_State *L) {
    struct mj__task *task = mj__runtime_of(L)->current;
    if (task == NULL) {
        luaL_error(L, "not inside a task");
    }
    return task;
}

/* take_interrupt(): the error of the wait that has just been interrupted. */
static int take_interrupt(lua_State *L) {
    mj__task_push_interrupt(L, check_current(L));
    return 1;
}

/* waiting(coroutine): whether the current task has begun to wait; if not, whether the coroutine
 * has parked deadlines, for `rejoin`. What is asked by the relays only: the code that runs then
 * stands between the wait and the runtime. */
static int waiting(lua_State *L) {
    struct mj__task *task = mj__runtime_of(L)->current;
    bool waits = task != NULL && task->state != MJ__TASK_RUNNING;
    lua_pushboolean(L, waits);
    lua_pushboolean(L, task != NULL && !waits && mj__deadlines_park(task, lua_tothread(L, 1)));
    return 2;
}

/* rejoin(coroutine): its deadlines bind the current task from now on. False outside a task. */
static int rejoin(lua_State *L) {
    struct mj__task *task = mj__runtime_of(L)->current;
    if (task != NULL) {
        mj__deadlines_resume(task, lua_tothread(L, 1));
    }
    lua_pushboolean(L, task != NULL);
    return 1;
}

/* can_wait(): whether a wait can pass from here on to the runtime. */
static int can_wait(lua_State *L) {
    lua_pushboolean(L, lua_isyieldable(L));
    return 1;
}

/* forbid_waits(on): whether they were forbidden before. */
static int forbid_waits(lua_State *L) {
    struct mj__runtime *runtime = mj__runtime_of(L);
    bool before = runtime->waits_forbidden;
    runtime->waits_forbidden = lua_toboolean(L, 1) != 0;
    lua_pushboolean(L, before);
    return 1;
}

/* silence(): the state is about to be closed by os.exit. */
static int silence(lua_State *L) {
    mj__tasks_silence(mj__runtime_of(L));
    return 0;
}

/* ---- counters ---- */

static void set_count(lua_State *L, const char *name, uint64_t count) {
    lua_pushnumber(L, (lua_Number)count);
    lua_setfield(L, -2, name);
}

static int counters(lua_State *L) {
    const struct mj__runtime *runtime = mj__runtime_of(L);
    const struct mj__loop_counters *loop = mj__loop_counters(runtime->loop);
    size_t memory =
        (size_t)lua_gc(L, LUA_GCCOUNT, 0) * 1024 + (size_t)lua_gc(L, LUA_GCCOUNTB, 0);
    lua_createtable(L, 0, 8);
    set_count(L, "turns", loop->turns);
    set_count(L, "clock_reads", loop->clock_reads);
    set_count(L, "timer_arms", loop->timer_arms);
    set_count(L, "tasks_live", runtime->live);
    set_count(L, "tasks_started", runtime->started);
    set_count(L, "tasks_reused", runtime->reused);
    set_count(L, "resumes", runtime->resumes);
    set_count(L, "memory", runtime->counts_memory ? runtime->memory : memory);
    return 1;
}

/* ---- open ---- */

/* A metatable with these functions, in the registry. */
static int new_meta(lua_State *L, const luaL_Reg *functions) {
    lua_createtable(L, 0, 4);
    luaL_setfuncs(L, functions, 0);
    return luaL_ref(L, LUA_REGISTRYINDEX);
}

static void open_metas(lua_State *L) {
    static const luaL_Reg task_meta[] = {{"__tostring", task_tostring}, {NULL, NULL}};
    static const luaL_Reg group_meta[] = {{"__gc", group_close}, {NULL, NULL}};
    static const luaL_Reg deadline_meta[] = {{"__gc", deadline_close}, {NULL, NULL}};
    struct mj__runtime *runtime = mj__runtime_of(L);
    runtime->task_meta = new_meta(L, task_meta);
    runtime->group_meta = new_meta(L, group_meta);
    runtime->deadline_meta = new_meta(L, deadline_meta);
}

void mj__lua_open_task(lua_State *L) {
    static const luaL_Reg functions[] = {
        {"spawn", spawn},
        {"sleep", task_sleep},
        {"now", now},
        {"task_wait", task_wait},
        {"task_results", task_results},
        {"task_cancel", task_cancel},
        {"group", new_group},
        {"group_wait", group_wait},
        {"deadline_begin", deadline_begin},
        {"deadline_end", deadline_end},
        {"keep_trace", keep_trace},
        {"take_interrupt", take_interrupt},
        {"waiting", waiting},
        {"rejoin", rejoin},
        {"can_wait", can_wait},
        {"forbid_waits", forbid_waits},
        {"silence", silence},
        {"counters", counters},
        {NULL, NULL},
    };
    struct mj__runtime *runtime = mj__runtime_of(L);
    luaL_setfuncs(L, functions, 0);
    lua_pushlightuserdata(L, MJ__INTERRUPT);
    lua_setfield(L, -2, "INTERRUPT");
    lua_pushlightuserdata(L, MJ__RETRY);
    lua_setfield(L, -2, "RETRY");
    lua_pushliteral(L, MOONJAY_VERSION);
    lua_setfield(L, -2, "version");
    lua_rawgeti(L, LUA_REGISTRYINDEX, runtime->anchors);
    lua_setfield(L, -2, "held");
    open_metas(L);
    lua_rawgeti(L, LUA_REGISTRYINDEX, runtime->task_meta);
    lua_newtable(L); /* the methods, which moonjay.task defines */
    lua_pushvalue(L, -1);
    lua_setfield(L, -4, "task");
    lua_setfield(L, -2, "__index");
    lua_pop(L, 1);
}
