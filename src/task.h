/* task.h: coroutines that the runtime resumes.
 *
 * A primitive that waits is a C function: it starts something, calls mj__task_wait as its return
 * value, and whoever completes the thing pushes the results onto the task's stack and calls
 * mj__task_wake. Results become the return values of the primitive. A wait that is interrupted
 * (cancel, a deadline of the script) returns nil and the token MJ__INTERRUPT: the Lua wrapper
 * around every primitive (moonjay.wait) then raises the error that the runtime kept. */
#ifndef MJ_TASK_H
#define MJ_TASK_H

#include "error.h"
#include "loop.h"

#include <lua.h>
#include <stdbool.h>
#include <stdint.h>

struct mj__runtime;
struct mj__task;

struct mj__interrupted {
    struct mj__error error;
    const char *op, *key, *server;
    size_t key_size;
};

/* What a task waits for, seen from the task. */
struct mj__wait_ops {
    /* The wait is interrupted: forget the task (a late completion must not touch it any more) and
     * fill *out, which comes all zero but for kind MJ__TIMEOUT: kind MJ__CONNECT_TIMEOUT while
     * connecting; phase; sent; what op, key and server are known (borrowed until the next call
     * into the same room, may stay NULL). The text is the runtime's, unless one is set. */
    void (*abandon)(struct mj__task *, void *arg, uint64_t tag, struct mj__interrupted *out);
};

/* The second value (behind nil) of a primitive that did not do its work: light userdata. Scripts
 * know them as core.INTERRUPT and core.RETRY. */
extern const char mj__tokens[2];
#define MJ__INTERRUPT ((void *)(uintptr_t)&mj__tokens[0]) /* raise core.take_interrupt() */
#define MJ__RETRY ((void *)(uintptr_t)&mj__tokens[1])     /* call again, same arguments */

/* First call of every primitive that waits. Returns the current task; throws (moonjay error text
 * that names the cause) outside any task, or where a yield cannot pass (a sort comparator, gsub,
 * require). `what` names the primitive for the message: "conn:get". */
struct mj__task *mj__task_here(lua_State *L, const char *what);
/* True when the task is already cancelled or past a deadline: the primitive must start nothing and
 * `return mj__task_refuse(L, task)`, which pushes nil and the token. */
bool mj__task_interrupted(const struct mj__task *);
int mj__task_refuse(lua_State *L, struct mj__task *);
/* The same with what the caller knows of the wait: op, server, phase, sent. */
int mj__task_refuse_as(lua_State *L, struct mj__task *, struct mj__interrupted *what);
/* Suspends the task. `return mj__task_wait(...)` is the last thing a primitive does. ops must live
 * as long as the program; arg and tag are handed back to abandon. */
int mj__task_wait(lua_State *L, struct mj__task *, const struct mj__wait_ops *ops, void *arg,
                  uint64_t tag);
/* The stack that results go to: push elsewhere, under protection, then lua_xmove here. There is
 * room for 16 values, and pushing what allocates nothing (nil, a boolean, a number, the tokens)
 * needs no protection. */
lua_State *mj__task_stack(struct mj__task *);
/* The wait is over and `count` results are on the task's stack: it runs in this turn (or the next,
 * when called from a flush). Allocates nothing. */
void mj__task_wake(struct mj__task *, int count);

/* The runtime of a Lua state. */
struct mj__runtime *mj__runtime_of(lua_State *L);

#endif
