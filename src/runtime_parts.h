/* runtime_parts.h: what a runtime and its tasks are made of. For runtime.c, call.c, task.c,
 * tasks.c and lua_task.c only; other rooms use runtime.h and task.h.
 *
 * A task's life: taken from the spare ones (mj__task_start), READY, RUNNING, WAITING and READY by
 * turns, ENDED until the end of the turn (mj__tasks_settle), spare again. */
#ifndef MJ_RUNTIME_PARTS_H
#define MJ_RUNTIME_PARTS_H

#include "lua_error.h"
#include "runtime.h"

#include <lauxlib.h>
#include <pthread.h>

enum {
    MJ__TASK_ROOM = 16,  /* values that can be pushed onto a waiting task's stack */
    MJ__SPARE_MAX = 1024 /* finished coroutines that are kept for the next task */
};

/* A place among those who wait for a task's end. Embedded; all zero waits for nothing. */
struct mj__waiter {
    struct mj__waiter *next, **link; /* link NULL: in no list */
    void (*ended)(struct mj__waiter *);
};

/* One mj.deadline under way: userdata, on the stack of the coroutine that called it. While a
 * generator of the script's own is suspended inside it, it is parked: it binds no task. */
struct mj__deadline {
    struct mj__timer timer;
    struct mj__runtime *runtime;
    struct mj__task *task;      /* NULL: parked, or over */
    const lua_State *coroutine; /* NULL: over. Only compared: it may be dead */
    struct mj__deadline *outer; /* of the task's, or the next of the parked ones */
    double seconds;
    uint64_t id; /* by which errors know whose they are */
    bool passed;
};

/* What a script holds of a task: userdata. Results stand in its environment, from 1. */
struct mj__handle {
    struct mj__task *task; /* NULL: settled */
    mj_task id;
    int count; /* results; or one of these */
};
enum {
    MJ__LIVE = -1,   /* it has not ended */
    MJ__FAILED = -2, /* the error stands at 1 */
    MJ__LOST = -3    /* there was no memory to keep the results */
};

enum mj__task_state {
    MJ__TASK_SPARE,
    MJ__TASK_READY,
    MJ__TASK_RUNNING,
    MJ__TASK_WAITING,
    MJ__TASK_ENDED
};

struct mj__task {
    struct mj__task *next; /* in the list of its state */
    struct mj__runtime *runtime;
    lua_State *L; /* NULL: its coroutine was dropped */
    const struct mj__wait_ops *ops;
    void *arg;
    uint64_t tag;
    struct mj__timer timer;         /* of a sleep, or of a wait with a limit */
    struct mj__waiter waiter;       /* of a wait for another task */
    struct mj__waiter *waiters;     /* who waits for this one */
    struct mj__deadline *deadlines; /* innermost first */
    struct mj__handle *handle;      /* NULL: no script has one */
    mj_done_fn done;
    void *done_arg;
    uint32_t slot, generation;
    int count;     /* values on the stack for the next resume; once ended, results */
    int passed;    /* deadlines that have passed and whose scope has not ended */
    uint8_t state; /* enum mj__task_state */
    bool started;  /* has run */
    bool cancelled;
    bool failed;  /* ended in an error, which is on top of the stack */
    bool claimed; /* somebody waits for it as it ends, or right after: its error is theirs */
    bool traced;  /* something stands for it in runtime->traces or ->interrupts */
};

struct mj__task_list {
    struct mj__task *first, *last;
};

struct mj__posted {
    struct mj__posted *next;
    void (*fn)(mj_runtime *, void *);
    void *arg;
};

struct mj__runtime {
    lua_State *L; /* NULL: not open, or closed already */
    struct mj__loop *loop;
    struct mj__resolver *resolver;
    struct mj__pool *pool;
    struct mj_options options;

    size_t memory, relieved; /* bytes now, and after the last collection near the limit */
    bool counts_memory;      /* the state uses our allocator */
    bool refused;            /* which has refused it something */
    char *reserve;           /* NULL: none */
    size_t reserve_used;
    bool reserve_open; /* something may be taken from it */

    struct mj__task *current;
    struct mj__task_list ready, later, ended;
    struct mj__task *spare, *bare; /* stacks: those with a coroutine, those without */
    size_t spares;
    struct mj__deadline *parked;
    struct mj__task **slots;
    size_t slot_count, slot_capacity;
    uint64_t live, started, reused, resumes, failures, deadline_ids;
    mj__time step_limit; /* no task step begins after it; MJ__NEVER while mj_run runs */
    struct mj__deferred settle;

    int anchors, handles, interrupts, traces,
        owned; /* registry references, see mj__tasks_open */
    int task_meta, group_meta, deadline_meta, trampoline;
    mj__protected_fn *protected_fn; /* what mj__runtime_protect is about to call */
    void *protected_arg;
    const void *globals;

    bool closing, inside;
    bool waits_forbidden; /* in a coroutine that was resumed where a wait cannot pass */
    unsigned protecting;  /* calls of mj__runtime_protect under way */
    bool late_cancels;    /* some task was cancelled inside one, while it waited */

    char *error; /* the last failure in words; NULL: error_text */
    const char *error_text;

    pthread_mutex_t post_lock; /* guards what follows, but for the watch */
    bool post_closed;
    struct mj__posted *posted, **posted_end;
    struct mj__watch post_watch; /* on an eventfd */
    int post_fd;
};

static inline void mj__list_push(struct mj__task_list *list, struct mj__task *task) {
    task->next = NULL;
    if (list->first == NULL) {
        list->first = task;
    } else {
        list->last->next = task;
    }
    list->last = task;
}

static inline struct mj__task *mj__list_pop(struct mj__task_list *list) {
    struct mj__task *task = list->first;
    if (task != NULL) {
        list->first = task->next;
    }
    return task;
}

static inline void mj__waiter_leave(struct mj__waiter *waiter) {
    if (waiter->link == NULL) {
        return;
    }
    *waiter->link = waiter->next;
    if (waiter->next != NULL) {
        waiter->next->link = waiter->link;
    }
    waiter->link = NULL;
}

/* ---- tasks.c: the set of tasks ---- */

/* Makes the tables that tasks need, in the registry. Throws when out of memory. */
void mj__tasks_open(lua_State *L, struct mj__runtime *);
/* Frees the tasks; the Lua state is closed. */
void mj__tasks_close(struct mj__runtime *);

/* Takes a function and `count` arguments off the top of L's stack into a new task, which is ready.
 * `handle`, or 0, is the place on L's stack of the userdata that will stand for it. Throws when
 * out of memory; nothing has started then. */
struct mj__task *mj__task_start(lua_State *L, struct mj__runtime *, int count, int handle);
mj_task mj__task_id(const struct mj__task *);
/* NULL: none, or no longer. */
struct mj__task *mj__task_find(const struct mj__runtime *, mj_task);
/* A turn's work: resumes what is ready. True when more is. */
bool mj__tasks_work(void *runtime);
/* Tells of the tasks that ended in this turn, and makes them spare. */
void mj__tasks_settle(struct mj__deferred *);
/* Abandons every wait and stops every timer, before the Lua state is closed. */
void mj__tasks_silence(struct mj__runtime *);

/* ---- task.c: waits, interruptions, deadlines ---- */

/* Its present wait, and every later one, is interrupted. Harmless on a task that has ended. */
void mj__task_cancel(struct mj__task *);
/* Interrupts those that were cancelled inside a protected call: a finalizer may cancel while a
 * connection hands over answers, and one of them may be that task's. */
void mj__tasks_cancel_late(struct mj__runtime *);
/* Pushes the error of the task's interrupted wait, and forgets it. */
void mj__task_push_interrupt(lua_State *L, struct mj__task *);
/* Suspends the current task until the next turn. */
int mj__task_pause(lua_State *L, struct mj__task *);
int mj__task_sleep(lua_State *L, struct mj__task *, mj__time span);
/* Waits until `other` has ended: true; or for at most `span`: false. MJ__NEVER is no limit. */
int mj__task_join(lua_State *L, struct mj__task *, struct mj__task *other, mj__time span);
void mj__task_add_waiter(struct mj__task *other, struct mj__waiter *);
/* A deadline of the current task, for what L runs. 0, or -1 when out of memory. */
int mj__deadline_begin(lua_State *L, struct mj__deadline *, struct mj__task *, double seconds);
/* Harmless on one that is over. */
void mj__deadline_end(struct mj__deadline *);
/* The coroutine stopped to yield to its caller: its deadlines bind the task no longer. True when
 * there are some, and mj__deadlines_resume is to be called before it goes on, in whatever task. */
bool mj__deadlines_park(struct mj__task *, const lua_State *coroutine);
void mj__deadlines_resume(struct mj__task *, const lua_State *coroutine);

/* ---- call.c: what the host hears of a task's end ---- */

/* Calls done, or reports an error that nobody waited for. */
void mj__call_ended(struct mj__runtime *, struct mj__task *);
void mj__call_cancelled(struct mj__runtime *, struct mj__task *);

/* ---- runtime.c ---- */

/* Keeps the words for mj_error. */
void mj__runtime_fail(struct mj__runtime *, const char *text);

/* ---- memory.c: what the Lua state holds ---- */

/* The state's allocator; its argument is the runtime. */
void *mj__memory_allocate(void *runtime, void *block, size_t old_size, size_t size);
/* From here until the reserve is closed the allocator has a little more than there is. -1: no
 * memory. */
int mj__memory_open_reserve(struct mj__runtime *);
void mj__memory_close_reserve(struct mj__runtime *);
/* Collects garbage where the memory limit is near, or was met. */
void mj__memory_relieve(struct mj__runtime *);
/* The state is closed: gives back what is left. */
void mj__memory_close(struct mj__runtime *);

#endif
