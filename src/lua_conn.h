/* lua_conn.h: what the bindings of connections share: lua_conn.c (connect, one call, close),
 * lua_park.c (waiting for room), lua_call.c (arguments to a call), lua_answer.c (an answer to values), lua_sink.c ({ into = buf }),
 * lua_batch.c (many calls answered in one wait). */
#ifndef MJ_LUA_CONN_H
#define MJ_LUA_CONN_H

#include "conn.h"
#include "runtime.h"

#include <lua.h>

/* The third token beside MJ__INTERRUPT and MJ__RETRY: memory ran out while the answer, or the error
 * in its place, was made. */
extern const char mj__no_memory_token;
#define MJ__NO_MEMORY_TOKEN ((void *)(uintptr_t)&mj__no_memory_token)

struct mj__lua_batch;

/* A task that waits for room, and then for its turn to use it. */
struct mj__lua_parked {
    struct mj__parked parked;
    struct mj__lua_parked *next; /* among those that were granted room */
    struct mj__lua_conn *self;
    struct mj__task *task;
    const char *op;
    struct mj__lua_batch *batch; /* NULL: it parks with one call */
    bool refused;                /* that call got no room */
    struct mj__error *refusal;   /* its own: why; NULL: there was no memory for it */
};

/* What a script holds of a connection: userdata. */
struct mj__lua_conn {
    const void *magic;
    struct mj__conn *conn; /* NULL: it was never made, or its finalizer ran */
    struct mj__runtime *runtime;
    struct mj__task *connecting; /* the task in mj.connect */
    int self_ref;                /* keeps it while that task waits */
    bool has_on_error;           /* it stands in the userdata's environment */
    struct mj__lua_parked *granted, **granted_tail;
};

/* The connection at `index`; throws a misuse that names the function. */
struct mj__lua_conn *mj__lua_conn_at(lua_State *L, int index, const char *function);
const char *mj__lua_conn_name(const struct mj__lua_conn *);

/* A value that goes by reference is kept in the registry until it is written. Throws when memory
 * runs out, with nothing kept. */
void mj__lua_lend(lua_State *L, int index, struct mj__lua_conn *, const struct mj__call *,
                  struct mj__lent *lent);

/* Wakes a task with nil and one of the tokens; allocates nothing. */
void mj__lua_wake_with(struct mj__task *, void *token);
/* Wakes it with nil and this error, or, where there is no memory for one, with the token. */
void mj__lua_wake_failed(struct mj__lua_conn *, struct mj__task *, const char *op,
                         const struct mj__error *error);

/* lua_park.c */
/* For a submit that was answered MJ__FULL: parks the task; `return` what this returns. The task is
 * woken with nil and MJ__RETRY, also when it got no room: mj__lua_redeem or the batch knows. */
int mj__lua_park(lua_State *L, struct mj__lua_conn *, struct mj__task *, const char *op,
                 struct mj__lua_batch *batch);
/* First thing in a primitive that submits: uses the room this task was granted, if it was. -1: it
 * parked with one call and got none; *error says why. */
int mj__lua_redeem(struct mj__lua_conn *, const struct mj__task *, struct mj__error *error);
/* Nobody will come for what was granted, or refused, any more. */
void mj__lua_forget_granted(struct mj__lua_conn *);

/* lua_call.c: reads the arguments of a command, first at `base`, into a call that borrows from the
 * stack (which may grow by a few values). Throws a misuse; -1: *error is bad_key, bad_value,
 * too_large or unsupported. *into is the index of a buffer, or 0. */
int mj__lua_read_call(lua_State *L, int base, enum mj__command_id id, const char *carrier,
                      const struct mj__lua_conn *, struct mj__call *call, int *into,
                      struct mj__error *error);
/* The checks that throw, alone: for a request that is recorded now and sent later. */
void mj__lua_check_call(lua_State *L, int base, enum mj__command_id id, const char *carrier);

/* lua_answer.c: pushes what a command gives for an answer: 1 value, or 2 (nil and an error; false
 * and why). Throws when memory runs out. */
int mj__lua_push_answer(lua_State *L, const struct mj__lua_conn *, const struct mj__answer *);
/* A number of 64 bits: a Lua number up to 2^53, its digits above. */
void mj__lua_push_number(lua_State *L, const char *digits, size_t size);

/* lua_sink.c */
void mj__lua_open_sink(lua_State *L);
/* True when the value at `index` is a string.buffer. */
bool mj__lua_is_buffer(lua_State *L, int index);
/* Submits a get whose value goes into the buffer at `into`, and waits: `return` what it returns. */
int mj__lua_submit_into(lua_State *L, struct mj__lua_conn *, struct mj__task *,
                        const struct mj__call *, int into);
mj__done_fn mj__lua_sink_done;
/* Memory ran out while its answer was made. */
void mj__lua_sink_lost(void *arg);

/* lua_batch.c */
void mj__lua_open_batch(lua_State *L);
mj__done_fn mj__lua_batch_done;
void mj__lua_batch_lost(void *arg, bool more);
/* Its one deadline, set by its first wait for room; 0: it has not waited yet. */
mj__time *mj__lua_batch_deadline(struct mj__lua_batch *);
/* It parked and was told no: the rest of its calls fail with this. */
void mj__lua_batch_refused(struct mj__lua_batch *, const struct mj__error *);
/* Its task was interrupted. */
void mj__lua_batch_abandon(struct mj__lua_batch *, struct mj__error *);

#endif
