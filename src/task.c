#include "runtime_parts.h"

#include <stdio.h>
#include <string.h>

const char mj__tokens[2] = {0, 1};

static struct mj__task *task_of_timer(struct mj__timer *timer) {
    return (struct mj__task *)((char *)timer - offsetof(struct mj__task, timer));
}

/* ---- where a wait may be ---- */

struct mj__task *mj__task_here(lua_State *L, const char *what) {
    const struct mj__runtime *runtime = mj__runtime_of(L);
    struct mj__task *task = runtime->current;
    if (task == NULL) {
        mj__lua_misuse(L, what,
                       "only a task can wait: call it inside mj.spawn(function() ... end)");
    }
    if (lua_isyieldable(L) == 0) {
        mj__lua_misuse(L, what,
                       "cannot wait inside table.sort, string.gsub, require, dofile or another "
                       "C function that calls back: fetch before it, or after it");
    }
    if (runtime->waits_forbidden) {
        mj__lua_misuse(L, what,
                       "cannot wait in a coroutine that is resumed inside table.sort, "
                       "string.gsub, require, dofile, a finalizer or another C function that "
                       "calls back");
    }
    return task;
}

bool mj__task_interrupted(const struct mj__task *task) {
    return task->cancelled || task->passed > 0;
}

int mj__task_wait(lua_State *L, struct mj__task *task, const struct mj__wait_ops *ops,
                  void *arg, uint64_t tag) {
    task->ops = ops;
    task->arg = arg;
    task->tag = tag;
    task->state = MJ__TASK_WAITING;
    return lua_yield(L, 0);
}

lua_State *mj__task_stack(struct mj__task *task) {
    return task->L;
}

void mj__task_wake(struct mj__task *task, int count) {
    task->count = count;
    task->state = MJ__TASK_READY;
    mj__list_push(&task->runtime->ready, task);
}

/* ---- interruptions ---- */

/* `deadline` NULL: the task was cancelled. */
static void describe(struct mj__interrupted *what, const struct mj__deadline *deadline) {
    struct mj__error *error = &what->error;
    if (deadline == NULL) {
        error->kind = MJ__CANCELLED;
        snprintf(error->text, sizeof error->text, "the task was cancelled");
    } else if (error->text[0] == '\0') {
        snprintf(error->text, sizeof error->text, "the deadline of %g s passed",
                 deadline->seconds);
    }
}

/* Leaves the error as what the task's wrapper will raise. */
static void keep_error(lua_State *L, struct mj__task *task, const struct mj__interrupted *what,
                       const struct mj__deadline *deadline) {
    struct mj__runtime *runtime = task->runtime;
    luaL_checkstack(L, 8, NULL);
    lua_rawgeti(L, LUA_REGISTRYINDEX, runtime->interrupts);
    mj__lua_push_error(L, &what->error, what->op, what->key, what->key_size, what->server);
    if (deadline != NULL) {
        lua_rawgeti(L, LUA_REGISTRYINDEX, runtime->owned);
        lua_pushvalue(L, -2);
        lua_pushnumber(L, (lua_Number)deadline->id);
        lua_rawset(L, -3);
        lua_pop(L, 1);
    }
    lua_rawseti(L, -2, (int)task->slot + 1);
    lua_pop(L, 1);
    task->traced = true;
}

struct interruption {
    struct mj__task *task;
    const struct mj__deadline *deadline;
    struct mj__interrupted what;
};

static void keep_interruption(lua_State *L, void *arg) {
    struct interruption *interruption = arg;
    keep_error(L, interruption->task, &interruption->what, interruption->deadline);
}

static void abandon_nothing(struct mj__task *task, void *arg, uint64_t tag,
                            struct mj__interrupted *out) {
    (void)task;
    (void)arg;
    (void)tag;
    (void)out;
}

static const struct mj__wait_ops nothing_ops = {abandon_nothing};

/* The wait is abandoned once, though a finalizer that runs meanwhile may interrupt it too. */
static void interrupt(struct mj__task *task, const struct mj__deadline *deadline) {
    struct interruption interruption = {
        .task = task,
        .deadline = deadline,
        .what.error.kind = MJ__TIMEOUT,
    };
    if (task->state == MJ__TASK_WAITING) {
        task->ops->abandon(task, task->arg, task->tag, &interruption.what);
        task->ops = &nothing_ops;
    }
    describe(&interruption.what, deadline);
    mj__runtime_insist(task->runtime, keep_interruption, &interruption);
    if (task->state == MJ__TASK_WAITING) {
        lua_pushnil(task->L);
        lua_pushlightuserdata(task->L, MJ__INTERRUPT);
        mj__task_wake(task, 2);
    }
}

void mj__task_cancel(struct mj__task *task) {
    bool ended = task->state == MJ__TASK_ENDED || task->state == MJ__TASK_SPARE;
    if (ended || task->cancelled || task->runtime->closing) {
        return;
    }
    task->cancelled = true;
    if (task->state == MJ__TASK_WAITING && task->runtime->protecting > 0) {
        task->runtime->late_cancels = true;
        mj__loop_wake(task->runtime->loop);
    } else if (task->state == MJ__TASK_WAITING || !task->started) {
        interrupt(task, NULL);
    }
}

void mj__tasks_cancel_late(struct mj__runtime *runtime) {
    if (!runtime->late_cancels) {
        return;
    }
    runtime->late_cancels = false;
    for (size_t i = 0; i < runtime->slot_count; i++) {
        struct mj__task *task = runtime->slots[i];
        if (task->cancelled && task->state == MJ__TASK_WAITING) {
            interrupt(task, NULL);
        }
    }
}

/* The outermost: what passed there makes the inner ones moot. */
static const struct mj__deadline *passed_deadline(const struct mj__task *task) {
    const struct mj__deadline *passed = NULL;
    for (const struct mj__deadline *at = task->deadlines; at != NULL; at = at->outer) {
        passed = at->passed ? at : passed;
    }
    return passed;
}

int mj__task_refuse_as(lua_State *L, struct mj__task *task, struct mj__interrupted *what) {
    const struct mj__deadline *deadline = task->cancelled ? NULL : passed_deadline(task);
    what->error.kind = MJ__TIMEOUT;
    describe(what, deadline);
    keep_error(L, task, what, deadline);
    lua_pushnil(L);
    lua_pushlightuserdata(L, MJ__INTERRUPT);
    return 2;
}

int mj__task_refuse(lua_State *L, struct mj__task *task) {
    struct mj__interrupted what = {0};
    return mj__task_refuse_as(L, task, &what);
}

void mj__task_push_interrupt(lua_State *L, struct mj__task *task) {
    lua_rawgeti(L, LUA_REGISTRYINDEX, task->runtime->interrupts);
    lua_rawgeti(L, -1, (int)task->slot + 1);
    if (lua_isnil(L, -1)) {
        lua_pop(L, 2);
        lua_pushliteral(L, "interrupted, and not enough memory to say by what");
        return;
    }
    lua_pushnil(L);
    lua_rawseti(L, -3, (int)task->slot + 1);
    lua_remove(L, -2);
}

/* ---- deadlines ---- */

static void deadline_passed(struct mj__timer *timer) {
    struct mj__deadline *deadline =
        (struct mj__deadline *)((char *)timer - offsetof(struct mj__deadline, timer));
    deadline->passed = true;
    if (deadline->task == NULL) {
        return;
    }
    deadline->task->passed++;
    if (deadline->task->state == MJ__TASK_WAITING) {
        interrupt(deadline->task, deadline);
    }
}

int mj__deadline_begin(lua_State *L, struct mj__deadline *deadline, struct mj__task *task,
                       double seconds) {
    *deadline = (struct mj__deadline){
        .timer.fire = deadline_passed,
        .runtime = task->runtime,
        .seconds = seconds,
        .id = ++task->runtime->deadline_ids,
    };
    mj__time when = mj__clock() + (mj__time)(seconds * (double)MJ__SECOND);
    if (mj__timer_set(task->runtime->loop, &deadline->timer, when) != 0) {
        return -1;
    }
    deadline->task = task;
    deadline->coroutine = L;
    deadline->outer = task->deadlines;
    task->deadlines = deadline;
    return 0;
}

void mj__deadline_end(struct mj__deadline *deadline) {
    struct mj__task *task = deadline->task;
    if (deadline->coroutine == NULL) {
        return;
    }
    mj__timer_stop(deadline->runtime->loop, &deadline->timer);
    /* Not always the innermost: memory may have run out where one was to be ended. */
    struct mj__deadline **link = task != NULL ? &task->deadlines : &deadline->runtime->parked;
    while (*link != deadline) {
        link = &(*link)->outer;
    }
    *link = deadline->outer;
    if (task != NULL) {
        task->passed -= deadline->passed;
    }
    deadline->task = NULL;
    deadline->coroutine = NULL;
}

/* Moves the deadlines of a coroutine to the front of another list, in their order. */
static bool move_deadlines(struct mj__deadline **from, struct mj__deadline **to,
                           const lua_State *coroutine, struct mj__task *task) {
    struct mj__deadline *rest = *to, **end = to;
    while (*from != NULL) {
        struct mj__deadline *deadline = *from;
        if (deadline->coroutine != coroutine) {
            from = &deadline->outer;
            continue;
        }
        *from = deadline->outer;
        deadline->task = task;
        *end = deadline;
        end = &deadline->outer;
    }
    bool some = end != to;
    *end = rest;
    return some;
}

static int count_passed(const struct mj__task *task) {
    int passed = 0;
    for (const struct mj__deadline *at = task->deadlines; at != NULL; at = at->outer) {
        passed += at->passed;
    }
    return passed;
}

bool mj__deadlines_park(struct mj__task *task, const lua_State *coroutine) {
    if (task->deadlines == NULL) {
        return false;
    }
    bool some = move_deadlines(&task->deadlines, &task->runtime->parked, coroutine, NULL);
    task->passed = count_passed(task);
    return some;
}

void mj__deadlines_resume(struct mj__task *task, const lua_State *coroutine) {
    move_deadlines(&task->runtime->parked, &task->deadlines, coroutine, task);
    task->passed = count_passed(task);
}

/* ---- sleep ---- */

int mj__task_pause(lua_State *L, struct mj__task *task) {
    task->count = 0;
    task->state = MJ__TASK_READY;
    mj__list_push(&task->runtime->later, task);
    return lua_yield(L, 0);
}

static void slept(struct mj__timer *timer) {
    mj__task_wake(task_of_timer(timer), 0);
}

static void abandon_sleep(struct mj__task *task, void *arg, uint64_t tag,
                          struct mj__interrupted *out) {
    (void)arg;
    (void)tag;
    mj__timer_stop(task->runtime->loop, &task->timer);
    out->op = "sleep";
}

static const struct mj__wait_ops sleep_ops = {abandon_sleep};

static void set_timer(lua_State *L, struct mj__task *task, mj__time span,
                      void (*fire)(struct mj__timer *)) {
    task->timer.fire = fire;
    if (mj__timer_set(task->runtime->loop, &task->timer, mj__clock() + span) != 0) {
        luaL_error(L, "not enough memory");
    }
}

int mj__task_sleep(lua_State *L, struct mj__task *task, mj__time span) {
    set_timer(L, task, span, slept);
    return mj__task_wait(L, task, &sleep_ops, NULL, 0);
}

/* ---- waiting for another task ---- */

static struct mj__task *task_of_waiter(struct mj__waiter *waiter) {
    return (struct mj__task *)((char *)waiter - offsetof(struct mj__task, waiter));
}

void mj__task_add_waiter(struct mj__task *other, struct mj__waiter *waiter) {
    waiter->next = other->waiters;
    waiter->link = &other->waiters;
    if (waiter->next != NULL) {
        waiter->next->link = &waiter->next;
    }
    other->waiters = waiter;
}

static void joined(struct mj__waiter *waiter) {
    struct mj__task *task = task_of_waiter(waiter);
    mj__timer_stop(task->runtime->loop, &task->timer);
    lua_pushboolean(task->L, true);
    mj__task_wake(task, 1);
}

static void join_timed_out(struct mj__timer *timer) {
    struct mj__task *task = task_of_timer(timer);
    mj__waiter_leave(&task->waiter);
    lua_pushboolean(task->L, false);
    mj__task_wake(task, 1);
}

static void abandon_join(struct mj__task *task, void *arg, uint64_t tag,
                         struct mj__interrupted *out) {
    (void)arg;
    (void)tag;
    mj__timer_stop(task->runtime->loop, &task->timer);
    mj__waiter_leave(&task->waiter);
    out->op = "task:wait";
}

static const struct mj__wait_ops join_ops = {abandon_join};

int mj__task_join(lua_State *L, struct mj__task *task, struct mj__task *other, mj__time span) {
    if (span != MJ__NEVER) {
        set_timer(L, task, span, join_timed_out);
    }
    task->waiter.ended = joined;
    mj__task_add_waiter(other, &task->waiter);
    return mj__task_wait(L, task, &join_ops, NULL, 0);
}
