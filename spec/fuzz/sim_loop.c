/* sim_loop.c: loop.h without descriptors and clocks, for few timers and watches. */
#include "sim.h"

#include <stdlib.h>

enum { TIMERS = 64, WATCHES = 4, READ = 1, WRITE = 2 };

struct mj__loop {
    struct mj__timer *timers[TIMERS]; /* a timer's slot is 1 + its place here */
    struct mj__watch *watches[WATCHES];
    struct mj__deferred flushes, frees, closes; /* heads of rings */
    struct mj__loop_counters counters;
    mj__time horizon;
    int owing;
    bool (*work)(void *arg);
    void *work_arg;
    bool in_turn, firing, closing;
};

static mj__time now;

void sim_pass(mj__time span) {
    now += span;
}

mj__time mj__clock(void) {
    return now;
}

mj__time mj__loop_now(struct mj__loop *loop) {
    loop->counters.clock_reads++;
    return now;
}

/* ---- timers ----------------------------------------------------------------------------- */

int mj__timer_set(struct mj__loop *loop, struct mj__timer *timer, mj__time when) {
    if (loop->firing && when <= loop->horizon) {
        when = loop->horizon + 1;
    }
    for (size_t i = 0; timer->slot == 0; i++) {
        HOLDS(i < TIMERS);
        if (loop->timers[i] == NULL) {
            loop->timers[i] = timer;
            timer->slot = i + 1;
        }
    }
    HOLDS(loop->timers[timer->slot - 1] == timer);
    timer->when = when;
    return 0;
}

void mj__timer_stop(struct mj__loop *loop, struct mj__timer *timer) {
    if (timer->slot != 0) {
        HOLDS(loop->timers[timer->slot - 1] == timer);
        loop->timers[timer->slot - 1] = NULL;
        timer->slot = 0;
    }
}

static void fire_timers(struct mj__loop *loop) {
    loop->firing = true;
    for (size_t i = 0; i < TIMERS; i++) {
        struct mj__timer *timer = loop->timers[i];
        if (timer != NULL && timer->when <= loop->horizon) {
            mj__timer_stop(loop, timer);
            timer->fire(timer);
        }
    }
    loop->firing = false;
}

/* ---- deferred calls --------------------------------------------------------------------- */

static void push(struct mj__deferred *head, struct mj__deferred *call) {
    if (!call->queued) {
        call->queued = true;
        call->next = head;
        call->prev = head->prev;
        head->prev->next = call;
        head->prev = call;
    }
}

void mj__loop_cancel(struct mj__loop *loop, struct mj__deferred *call) {
    (void)loop;
    if (call->queued) {
        call->queued = false;
        call->prev->next = call->next;
        call->next->prev = call->prev;
    }
}

static bool is_empty(const struct mj__deferred *head) {
    return head->next == head;
}

static void run_first(struct mj__loop *loop, const struct mj__deferred *head) {
    struct mj__deferred *call = head->next;
    mj__loop_cancel(loop, call);
    call->run(call);
}

/* Also those that are queued meanwhile. */
static void run_all(struct mj__loop *loop, const struct mj__deferred *head) {
    while (!is_empty(head)) {
        run_first(loop, head);
    }
}

/* What is queued by a flush waits for the next. */
static void run_flushes(struct mj__loop *loop) {
    const struct mj__deferred *head = &loop->flushes;
    size_t count = 0;
    for (const struct mj__deferred *at = head->next; at != head; at = at->next) {
        count++;
    }
    for (; count > 0 && !is_empty(head); count--) {
        run_first(loop, head);
    }
}

void mj__loop_flush(struct mj__loop *loop, struct mj__deferred *call) {
    push(&loop->flushes, call);
}

void mj__loop_free_later(struct mj__loop *loop, struct mj__deferred *call) {
    push(&loop->frees, call);
}

bool mj__loop_before_close(struct mj__loop *loop, struct mj__deferred *call) {
    if (!loop->closing) {
        push(&loop->closes, call);
    }
    return !loop->closing;
}

void mj__loop_run_before_close(struct mj__loop *loop) {
    loop->closing = true;
    run_all(loop, &loop->closes);
}

/* ---- watches ---------------------------------------------------------------------------- */

int mj__watch_open(struct mj__loop *loop, struct mj__watch *watch, int fd) {
    HOLDS(watch->loop == NULL);
    for (size_t i = 0; watch->loop == NULL; i++) {
        HOLDS(i < WATCHES);
        if (loop->watches[i] == NULL) {
            loop->watches[i] = watch;
            watch->loop = loop;
        }
    }
    watch->fd = fd;
    watch->armed = 0;
    return 0;
}

int mj__watch_arm(struct mj__watch *watch, bool readable, bool writable) {
    HOLDS(watch->loop != NULL);
    watch->armed = (short)((readable ? READ : 0) | (writable ? WRITE : 0));
    return 0;
}

void mj__watch_close(struct mj__watch *watch) {
    struct mj__loop *loop = watch->loop;
    for (size_t i = 0; loop != NULL && i < WATCHES; i++) {
        if (loop->watches[i] == watch) {
            loop->watches[i] = NULL;
            watch->loop = NULL;
        }
    }
}

/* The stream alone is ever ready: any other descriptor is the system's. */
static void look(struct mj__loop *loop) {
    for (size_t i = 0; i < WATCHES; i++) {
        struct mj__watch *watch = loop->watches[i];
        if (watch != NULL && watch->fd == SIM_DESCRIPTOR) {
            bool readable = watch->armed & READ && sim_readable();
            bool writable = watch->armed & WRITE && sim_writable();
            if (readable || writable) {
                watch->ready(watch, readable, writable);
            }
        }
    }
}

/* ---- the loop --------------------------------------------------------------------------- */

static void ring_init(struct mj__deferred *head) {
    head->next = head->prev = head;
}

struct mj__loop *mj__loop_open(struct mj__error *error) {
    struct mj__loop *loop = calloc(1, sizeof *loop);
    (void)error;
    HOLDS(loop != NULL);
    now = 1000 * MJ__SECOND;
    ring_init(&loop->flushes);
    ring_init(&loop->frees);
    ring_init(&loop->closes);
    return loop;
}

void mj__loop_close(struct mj__loop *loop) {
    run_all(loop, &loop->frees);
    HOLDS(loop->owing == 0);
    HOLDS(is_empty(&loop->flushes) && is_empty(&loop->closes));
    for (size_t i = 0; i < TIMERS; i++) {
        HOLDS(loop->timers[i] == NULL);
    }
    for (size_t i = 0; i < WATCHES; i++) {
        HOLDS(loop->watches[i] == NULL);
    }
    free(loop);
}

struct event_base *mj__loop_base(struct mj__loop *loop) {
    (void)loop;
    return NULL;
}

const struct mj__loop_counters *mj__loop_counters(const struct mj__loop *loop) {
    return &loop->counters;
}

void mj__loop_owe(struct mj__loop *loop, int change) {
    loop->owing += change;
    HOLDS(loop->owing >= 0);
}

bool mj__loop_owes(const struct mj__loop *loop) {
    return loop->owing > 0;
}

void mj__loop_work(struct mj__loop *loop, bool (*work)(void *arg), void *arg) {
    loop->work = work;
    loop->work_arg = arg;
}

void mj__loop_wake(struct mj__loop *loop) {
    (void)loop;
}

int mj__loop_turn(struct mj__loop *loop, bool wait) {
    (void)wait;
    HOLDS(!loop->in_turn);
    loop->in_turn = true;
    loop->counters.turns++;
    loop->horizon = now;
    look(loop);
    fire_timers(loop);
    if (loop->work != NULL) {
        loop->work(loop->work_arg);
    }
    run_flushes(loop);
    run_all(loop, &loop->frees);
    loop->in_turn = false;
    return 0;
}

void mj__loop_expect(struct mj__loop *loop, struct mj__watch *watch) {
    (void)loop, (void)watch;
}

bool mj__loop_sleeps_in_read(const struct mj__loop *loop) {
    (void)loop;
    return false;
}

void mj__watch_be_urgent(struct mj__watch *watch) {
    watch->patient = false;
}
