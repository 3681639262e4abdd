#include "runtime_parts.h"

#include <stdlib.h>

enum {
    FIRST_SLOTS = 64,
    ROUNDS = 8 /* how often tasks that were woken by tasks run in the same turn */
};

/* ---- tables ---- */

static int new_table(lua_State *L) {
    lua_newtable(L);
    return luaL_ref(L, LUA_REGISTRYINDEX);
}

/* anchors: [coroutine] = true for those of tasks, and for those that wait inside one, so that
 * nobody else resumes them. By slot: handles; interrupts (the error of an interrupted wait);
 * traces ({ error, traceback } of an error on its way through mj.deadline). owned: [error] = id of
 * the deadline that it belongs to. */
void mj__tasks_open(lua_State *L, struct mj__runtime *runtime) {
    runtime->anchors = new_table(L);
    runtime->handles = new_table(L);
    runtime->interrupts = new_table(L);
    runtime->traces = new_table(L);
    runtime->owned = new_table(L);
    lua_rawgeti(L, LUA_REGISTRYINDEX, runtime->owned);
    lua_createtable(L, 0, 1);
    lua_pushliteral(L, "k");
    lua_setfield(L, -2, "__mode");
    lua_setmetatable(L, -2);
    lua_pop(L, 1);
}

void mj__tasks_close(struct mj__runtime *runtime) {
    for (size_t i = 0; i < runtime->slot_count; i++) {
        free(runtime->slots[i]);
    }
    free(runtime->slots);
}

mj_task mj__task_id(const struct mj__task *task) {
    return (mj_task)task->generation << 32 | (task->slot + 1);
}

struct mj__task *mj__task_find(const struct mj__runtime *runtime, mj_task id) {
    uint32_t slot = (uint32_t)id - 1;
    if (slot >= runtime->slot_count) {
        return NULL;
    }
    struct mj__task *task = runtime->slots[slot];
    return task->generation == id >> 32 && task->state != MJ__TASK_SPARE ? task : NULL;
}

/* Sets table[slot], which exists already, to nil: allocates nothing. */
static void forget(struct mj__runtime *runtime, int table, const struct mj__task *task) {
    lua_State *L = runtime->L;
    lua_rawgeti(L, LUA_REGISTRYINDEX, table);
    lua_rawgeti(L, -1, (int)task->slot + 1);
    if (!lua_isnil(L, -1)) {
        lua_pushnil(L);
        lua_rawseti(L, -3, (int)task->slot + 1);
    }
    lua_pop(L, 2);
}

/* ---- taken and given back ---- */

/* The one that was used last is taken first: it is still in the processor's cache. */
static void stack_push(struct mj__task **stack, struct mj__task *task) {
    task->next = *stack;
    *stack = task;
}

static struct mj__task *stack_pop(struct mj__task **stack) {
    struct mj__task *task = *stack;
    if (task != NULL) {
        *stack = task->next;
    }
    return task;
}

/* A task without a coroutine joins the bare ones. */
static void add_slot(lua_State *L, struct mj__runtime *runtime) {
    if (runtime->slot_count == runtime->slot_capacity) {
        size_t capacity = runtime->slot_capacity > 0 ? runtime->slot_capacity * 2 : FIRST_SLOTS;
        struct mj__task **slots = realloc(runtime->slots, capacity * sizeof *slots);
        if (slots == NULL) {
            luaL_error(L, "not enough memory");
            return;
        }
        runtime->slots = slots;
        runtime->slot_capacity = capacity;
    }
    struct mj__task *task = calloc(1, sizeof *task);
    if (task == NULL) {
        luaL_error(L, "not enough memory");
        return;
    }
    task->runtime = runtime;
    task->slot = (uint32_t)runtime->slot_count;
    task->generation = 1;
    runtime->slots[runtime->slot_count++] = task;
    stack_push(&runtime->bare, task);
}

/* Adds a spare task. The coroutine is made first: collecting garbage for it may call finalizers,
 * which may start tasks themselves. */
static void add_spare(lua_State *L, struct mj__runtime *runtime) {
    lua_State *coroutine = lua_newthread(L);
    if (lua_checkstack(coroutine, MJ__TASK_ROOM) == 0) {
        luaL_error(L, "not enough memory");
    }
    if (runtime->bare == NULL) {
        add_slot(L, runtime);
    }
    lua_rawgeti(L, LUA_REGISTRYINDEX, runtime->anchors);
    lua_insert(L, -2);
    lua_pushboolean(L, true);
    lua_rawset(L, -3);
    lua_pop(L, 1);
    struct mj__task *task = stack_pop(&runtime->bare);
    task->L = coroutine;
    stack_push(&runtime->spare, task);
    runtime->spares++;
}

static void drop_coroutine(struct mj__runtime *runtime, struct mj__task *task) {
    lua_State *L = runtime->L;
    lua_rawgeti(L, LUA_REGISTRYINDEX, runtime->anchors);
    lua_pushthread(task->L);
    lua_xmove(task->L, L, 1);
    lua_pushnil(L);
    lua_rawset(L, -3);
    lua_pop(L, 1);
    task->L = NULL;
}

struct mj__task *mj__task_start(lua_State *L, struct mj__runtime *runtime, int count,
                                int handle) {
    luaL_checkstack(L, 8, "too many values");
    bool reused = runtime->spare != NULL;
    if (!reused) {
        add_spare(L, runtime);
    }
    struct mj__task *task = runtime->spare;
    if (lua_checkstack(task->L, count + 1 + MJ__TASK_ROOM) == 0) {
        luaL_error(L, "too many arguments");
    }
    if (handle != 0) {
        lua_rawgeti(L, LUA_REGISTRYINDEX, runtime->handles);
        lua_pushvalue(L, handle);
        lua_rawseti(L, -2, (int)task->slot + 1);
        lua_pop(L, 1);
        task->handle = lua_touserdata(L, handle);
        task->handle->task = task;
        task->handle->id = mj__task_id(task);
    }
    lua_xmove(L, task->L, count + 1);
    stack_pop(&runtime->spare);
    runtime->spares--;
    runtime->reused += reused;
    runtime->started++;
    runtime->live++;
    task->count = count;
    task->state = MJ__TASK_READY;
    mj__list_push(&runtime->ready, task);
    return task;
}

/* The task's id becomes stale. A coroutine is kept for the next task unless it died, or its
 * script gave it other globals. */
static void make_spare(struct mj__runtime *runtime, struct mj__task *task) {
    if (task->handle != NULL) {
        task->handle->task = NULL;
        forget(runtime, runtime->handles, task);
    }
    if (task->traced) {
        forget(runtime, runtime->traces, task);
        forget(runtime, runtime->interrupts, task);
    }
    if (task->failed || runtime->spares >= MJ__SPARE_MAX ||
        lua_topointer(task->L, LUA_GLOBALSINDEX) != runtime->globals) {
        drop_coroutine(runtime, task);
    } else {
        lua_settop(task->L, 0);
    }
    *task = (struct mj__task){
        .runtime = runtime,
        .L = task->L,
        .slot = task->slot,
        .generation = task->generation + 1,
    };
    runtime->live--;
    if (task->L != NULL) {
        runtime->spares++;
        stack_push(&runtime->spare, task);
    } else {
        stack_push(&runtime->bare, task);
    }
}

/* ---- the end of a task ---- */

/* Puts the results, or the error, into the environment of the task's handle. What may throw
 * comes before anything is moved. */
static void keep_results(lua_State *L, void *arg) {
    struct mj__task *task = arg;
    int count = task->failed ? 1 : task->count;
    if (lua_checkstack(L, count + 8) == 0) {
        return;
    }
    lua_rawgeti(L, LUA_REGISTRYINDEX, task->runtime->handles);
    lua_rawgeti(L, -1, (int)task->slot + 1);
    lua_createtable(L, count, 0);
    if (task->failed) {
        lua_pushvalue(task->L, -1); /* the report needs it too */
    }
    lua_xmove(task->L, L, count);
    for (int i = count; i > 0; i--) {
        lua_rawseti(L, 3, i);
    }
    lua_setfenv(L, 2);
    task->handle->count = task->failed ? MJ__FAILED : count;
}

static void fill_handle(struct mj__runtime *runtime, struct mj__task *task) {
    task->handle->count = 0;
    if (task->failed || task->count > 0) {
        task->handle->count = MJ__LOST;
        mj__runtime_insist(runtime, keep_results, task);
    }
}

/* In the order in which they began to wait: the list has the last one first. */
static void tell_waiters(struct mj__task *task) {
    struct mj__waiter *turned = NULL, *waiter;
    while ((waiter = task->waiters) != NULL) {
        mj__waiter_leave(waiter);
        waiter->next = turned;
        turned = waiter;
    }
    while ((waiter = turned) != NULL) {
        turned = waiter->next;
        waiter->ended(waiter);
    }
}

static void end(struct mj__runtime *runtime, struct mj__task *task, bool failed) {
    task->state = MJ__TASK_ENDED;
    task->failed = failed;
    task->count = failed ? 0 : lua_gettop(task->L);
    while (task->deadlines != NULL) {
        mj__deadline_end(task->deadlines);
    }
    if (task->handle != NULL) {
        fill_handle(runtime, task);
    }
    task->claimed = task->claimed || task->waiters != NULL;
    tell_waiters(task);
    if (failed || task->done != NULL) {
        mj__list_push(&runtime->ended, task);
        mj__loop_flush(runtime->loop, &runtime->settle);
    } else {
        make_spare(runtime, task);
    }
}

void mj__tasks_settle(struct mj__deferred *settle) {
    size_t offset = offsetof(struct mj__runtime, settle);
    struct mj__runtime *runtime = (struct mj__runtime *)((char *)settle - offset);
    struct mj__task *task;
    while ((task = mj__list_pop(&runtime->ended)) != NULL) {
        mj__call_ended(runtime, task);
        make_spare(runtime, task);
    }
    mj__memory_relieve(runtime);
}

/* ---- running ---- */

/* A task that yields outside any coroutine of its own, and not to wait, yields to nobody. */
static void push_stray_yield(lua_State *L, void *arg) {
    struct mj__task *task = arg;
    lua_pushliteral(L, "coroutine.yield outside a coroutine: to let other tasks run, "
                       "call mj.sleep(0)");
    lua_xmove(L, task->L, 1);
}

static void end_stray(struct mj__runtime *runtime, struct mj__task *task) {
    lua_settop(task->L, 0);
    if (mj__runtime_protect(runtime, push_stray_yield, task) != 0) {
        lua_pushnil(task->L);
    }
    end(runtime, task, true);
}

static void step(struct mj__runtime *runtime, struct mj__task *task) {
    runtime->current = task;
    runtime->waits_forbidden = false;
    runtime->resumes++;
    task->state = MJ__TASK_RUNNING;
    task->started = true;
    int status = lua_resume(task->L, task->count);
    runtime->current = NULL;
    if (status != LUA_YIELD) {
        end(runtime, task, status != 0);
    } else if (task->state == MJ__TASK_RUNNING) {
        end_stray(runtime, task);
    }
}

/* A task that was cancelled before it first ran never runs. */
static void refuse_to_start(struct mj__runtime *runtime, struct mj__task *task) {
    lua_settop(task->L, 0);
    lua_rawgeti(task->L, LUA_REGISTRYINDEX, runtime->interrupts);
    lua_rawgeti(task->L, -1, (int)task->slot + 1);
    end(runtime, task, true);
}

bool mj__tasks_work(void *arg) {
    struct mj__runtime *runtime = arg;
    struct mj__task *task;
    mj__tasks_cancel_late(runtime);
    while ((task = mj__list_pop(&runtime->later)) != NULL) {
        mj__list_push(&runtime->ready, task);
    }
    bool limited = runtime->step_limit != MJ__NEVER, over = false;
    for (int round = 0; round < ROUNDS && runtime->ready.first != NULL && !over; round++) {
        struct mj__task *last = runtime->ready.last;
        do {
            task = mj__list_pop(&runtime->ready);
            if (task->cancelled && !task->started) {
                refuse_to_start(runtime, task);
            } else {
                step(runtime, task);
            }
            over = limited && mj__clock() >= runtime->step_limit;
        } while (task != last && !over);
    }
    return runtime->ready.first != NULL || runtime->later.first != NULL ||
           runtime->late_cancels;
}

void mj__tasks_silence(struct mj__runtime *runtime) {
    runtime->closing = true;
    for (size_t i = 0; i < runtime->slot_count; i++) {
        struct mj__task *task = runtime->slots[i];
        if (task->state == MJ__TASK_WAITING) {
            struct mj__interrupted ignored = {.error.kind = MJ__TIMEOUT};
            task->ops->abandon(task, task->arg, task->tag, &ignored);
            task->state = MJ__TASK_READY;
        }
        while (task->deadlines != NULL) {
            mj__deadline_end(task->deadlines);
        }
    }
    while (runtime->parked != NULL) {
        mj__deadline_end(runtime->parked);
    }
}
