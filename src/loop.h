/* loop.h: descriptors, time, and the order of things within one turn.
 *
 * A turn is: wait for descriptors and call what they woke; fire due timers; run the runtime's
 * ready tasks (its `work`); flush what was written to; free what was closed. All of a loop is
 * used by one thread. */
#ifndef MJ_LOOP_H
#define MJ_LOOP_H

#include "error.h"
#include "span.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct event_base;

struct mj__loop;

/* A moment to be called at. Embedded in its owner; all zero is an idle timer. Timers of the
 * same moment fire in the order in which they were set. */
struct mj__timer {
    mj__time when;
    size_t slot; /* 1 + its place in the loop's heap; 0: idle */
    void (*fire)(struct mj__timer *);
};

/* A call that is due at the end of this turn. Embedded in its owner; all zero is idle. One
 * serves either for flushes or for a free, not for both at a time. */
struct mj__deferred {
    struct mj__deferred *next, *prev;
    bool queued;
    void (*run)(struct mj__deferred *);
};

/* A descriptor that is watched. Embedded in its owner, through which `ready` finds it. All zero
 * is one that is not open. */
struct mj__watch {
    struct mj__loop *loop; /* NULL: not open */
    int fd;
    uint32_t armed; /* EPOLLIN and EPOLLOUT, as they are armed now */
    bool patient;   /* it does not mind to wait for a sleep in a read: see mj__loop_expect */
    void (*ready)(struct mj__watch *, bool readable, bool writable);
};

#define MJ__PATIENCE (10 * (MJ__SECOND / 1000)) /* the longest sleep in a read */

struct mj__loop_counters {
    uint64_t turns;       /* passes over the watched descriptors: calls of epoll_wait */
    uint64_t clock_reads; /* for mj__loop_now */
    uint64_t timer_arms;  /* timerfd_settime */
};

/* Makes a loop: an epoll, a timerfd, and an event_base (EVENT_BASE_FLAG_NOLOCK) for others. Probes
 * for descriptors before it calls libevent, which would exit the process when there are too few.
 * NULL: *error says why. */
struct mj__loop *mj__loop_open(struct mj__error *error);
/* Runs the deferred frees that are due and frees the loop. No watch or timer may be active, no
 * flush queued. Not from inside a turn. NULL is harmless. */
void mj__loop_close(struct mj__loop *);

/* The base, for the events of others, which every turn serves from now on: it then goes through
 * libevent, which costs about 520 instructions and 100 ns of the kernel's more. NULL: the kernel
 * or memory refused. */
struct event_base *mj__loop_base(struct mj__loop *);
const struct mj__loop_counters *mj__loop_counters(const struct mj__loop *);

/* The time of this turn: read once, at the first call in a turn, and again when the flushes
 * begin. Between turns every call reads it. */
mj__time mj__loop_now(struct mj__loop *);
/* The time now: a fresh reading (about 20 ns). */
mj__time mj__clock(void);

/* Arms or moves a timer; `fire` is called once, with the timer idle again, no sooner than
 * `when`. Timers fire only after everything that had come to the watched descriptors by then
 * was handed out: what arrived with its deadline, or while the process was stopped, was seen
 * first. One that is set for the past by a timer's own `fire` waits for the next turn. 0, or -1
 * when memory ran out (the timer is then as it was). A timer whose slot is not 0 always moves
 * without failing. */
int mj__timer_set(struct mj__loop *, struct mj__timer *, mj__time when);
void mj__timer_stop(struct mj__loop *, struct mj__timer *);

/* Queues a call for the flush at the end of this turn (or of the next, when called from a
 * flush); once, however often it is asked for. Never fails. */
void mj__loop_flush(struct mj__loop *, struct mj__deferred *);
/* Takes a queued call back; harmless when it is not queued. */
void mj__loop_cancel(struct mj__loop *, struct mj__deferred *);
/* Queues a call for the very end of this turn, after all flushes: for frees. Never fails. */
void mj__loop_free_later(struct mj__loop *, struct mj__deferred *);

/* Queues a call for mj__loop_run_before_close; false: that was called already. Never fails
 * otherwise. */
bool mj__loop_before_close(struct mj__loop *, struct mj__deferred *);
/* The loop is about to be closed: runs those calls. */
void mj__loop_run_before_close(struct mj__loop *);

/* Somebody has bytes that are still to leave, or quiet requests that are still to be fenced (+1),
 * or no longer has (-1): who runs the loop to its end asks mj__loop_owes whether turns are still
 * needed for that. */
void mj__loop_owe(struct mj__loop *, int change);
bool mj__loop_owes(const struct mj__loop *);

/* The runtime's part of a turn: runs the ready tasks, returns true when more are ready already,
 * so that the next turn does not wait. */
void mj__loop_work(struct mj__loop *, bool (*work)(void *arg), void *arg);
/* Something became ready for `work` when its part of the turn was over (in a flush, or between
 * turns): the next turn does not wait. */
void mj__loop_wake(struct mj__loop *);

/* Watches fd from now on (level-triggered, persistent); nothing is armed yet. Returns 0: arming
 * is what may be refused. */
int mj__watch_open(struct mj__loop *, struct mj__watch *, int fd);
/* Says what to wait for. Cheap when nothing changes. -1: the kernel or memory refused, and
 * nothing is armed any more. */
int mj__watch_arm(struct mj__watch *, bool readable, bool writable);
/* Stops watching, which must come before the descriptor is closed: it stays open here. No `ready` comes after it, not even when it is
 * called from some watch's `ready`; the watch may be freed at once. Harmless on one that is all
 * zero. */
void mj__watch_close(struct mj__watch *);

/* What comes next is expected on this watch, which waits to be readable: the next turn that sleeps
 * may call its `ready` at once, to sleep in the read itself, where all else that is watched is
 * patient and no timer is near. That read is to wait no longer than MJ__PATIENCE; mj__loop_sleeps_in_read tells
 * it. Forgotten with the next turn that sleeps, and when the watch is closed. */
void mj__loop_expect(struct mj__loop *, struct mj__watch *);
bool mj__loop_sleeps_in_read(const struct mj__loop *);
/* A patient watch, open, is so no longer. */
void mj__watch_be_urgent(struct mj__watch *);

/* One turn. With `wait` it sleeps until something happens, unless something is due already.
 * 0, or -1 when the system failed (no timer fires then), or inside a turn (a callback must not
 * start another). */
int mj__loop_turn(struct mj__loop *, bool wait);

#endif
