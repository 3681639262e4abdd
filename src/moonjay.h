/* moonjay.h: a runtime for Lua scripts that talk to memcached, inside your own program.
 *
 * Create, use, destroy, in that order; everything of a runtime belongs to the thread that opened
 * it, except mj_post. Many runtimes may live in one process and share nothing. The library prints
 * nothing, never exits, installs no signal handler and keeps no global. */
#ifndef MOONJAY_H
#define MOONJAY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mj__runtime mj_runtime;
typedef uint64_t mj_task; /* an id; 0 is none; a stale one is harmless */
typedef struct mj__results mj_results;

enum mj_status {
    MJ_OK = 0,
    MJ_ERROR = -1,
    MJ_CANCELLED = -2,
    MJ_NOMEM = -3,
    MJ_USAGE = -4,
    MJ_LIMIT = -5
};

/* A task's end. Called once, on the runtime's thread, at the end of a turn; results are borrowed
 * for the length of the call. status is MJ_OK with what the function returned, MJ_ERROR with the
 * error (1 result: its text) and a traceback, or MJ_CANCELLED. */
typedef void (*mj_done_fn)(mj_runtime *, mj_task, int status, const mj_results *, void *arg);

/* All fields but size may be zero. Set size to sizeof(mj_options). */
typedef struct mj_options {
    size_t size;
    /* Bytes the Lua state and the buffers of its connections may hold; 0: no limit. Beyond it
     * scripts meet the error "not enough memory", or one of kind no_memory. With a limit they run
     * without the JIT, and find no `jit`: LuaJIT may crash when memory runs out in compiled code,
     * also where malloc fails and there is no limit.
     * Where LuaJIT takes no allocator no limit holds: mj_error says so after mj_open. */
    size_t memory_limit;
    /* An error in a task that nobody waited for by the end of the turn: "task failed: ERROR" and
     * its traceback. text is terminated and borrowed. NULL: such errors are only counted. */
    void (*error)(mj_runtime *, const char *text, void *arg);
    void *error_arg;
} mj_options;

/* NULL when it fails: then error (of error_size bytes, may be NULL) holds one line that says why.
 * It makes sure that there are descriptors, since libevent ends the process where it finds none;
 * other threads must not take the last ones in that very moment. */
mj_runtime *mj_open(const mj_options *options, char *error, size_t error_size);

/* Compiles and runs a text chunk, to define functions; it may spawn tasks, but not wait. name is
 * shown in tracebacks ("@file.lua", "=what"). MJ_OK, MJ_ERROR (mj_error says what), MJ_NOMEM. */
int mj_load(mj_runtime *, const char *name, const char *text, size_t size);

/* Starts a task: calls the global function with that name. types is one letter an argument: `s`
 * const char *, `b` const char * and size_t, `n` double, `i` int64_t, `t` int as boolean. done may
 * be NULL. The task first runs in the next turn. 0: not started, mj_error says why. */
mj_task mj_call(mj_runtime *, const char *function, mj_done_fn done, void *arg,
                const char *types, ...);
/* The task's present wait, and every later one, throws an error of kind cancelled; a task that
 * never ran will not. It ends in a turn to come, as MJ_CANCELLED unless its script catches that. */
void mj_cancel(mj_runtime *, mj_task);

/* Runs turns without ever blocking, until nothing is ready or budget_us microseconds have passed;
 * returns within the budget plus one task step, of which it runs at least one. The number of live
 * tasks, or a negative status: MJ_ERROR when the event loop failed, MJ_USAGE from a callback. */
int mj_poll(mj_runtime *, long budget_us);
/* Runs until no task is left, no posted function waits, what was queued on connections has left,
 * and quiet requests are fenced, whatever connections are open. MJ_OK; MJ_ERROR when some task
 * failed and nobody waited for it; MJ_USAGE from a callback. */
int mj_run(mj_runtime *);

/* From any thread: fn is called once, in a turn of the runtime or, at the latest, when it closes,
 * on its thread; the first one up to 10 ms late, if mj_run sleeps in a read of its only connection.
 * The caller sees to it that the runtime is not closed meanwhile. MJ_OK, MJ_NOMEM;
 * MJ_USAGE once it closes, from what it calls then: fn will not be called. */
int mj_post(mj_runtime *, void (*fn)(mj_runtime *, void *), void *arg);

/* The last failure of mj_load or mj_call, in words; "" if none. Borrowed until the next call. */
const char *mj_error(mj_runtime *);

/* Ends everything, in this order: posted functions run; every pending done is called once with
 * MJ_CANCELLED (mj_call, mj_load and mj_post refuse by now); the Lua state is closed, and with it the
 * connections; all memory is given back. Not from inside a callback of the runtime. NULL is
 * harmless. A script may end the process by os.exit(code, true): then the state is closed at once,
 * no done is called, and closing the runtime in an atexit function is safe. */
void mj_close(mj_runtime *);

/* Results: how many, and each by its place from 0. A string is borrowed; NULL where it is none. */
int mj_results_count(const mj_results *);
const char *mj_results_string(const mj_results *, int index, size_t *size);
/* The number, or fallback where it is none. Booleans are 1 and 0. */
double mj_results_number(const mj_results *, int index, double fallback);
/* After MJ_ERROR: the traceback, terminated; "" if there is none. */
const char *mj_results_traceback(const mj_results *);

#ifdef __cplusplus
}
#endif

#endif
