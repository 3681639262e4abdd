#include "loop.h"

#include <errno.h>
#include <event2/event.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum {
    FIRST_CAPACITY = 64, /* timers in the first heap */
    SMALLEST_BATCH = 32, /* descriptors that libevent takes from one epoll_wait at the least */
    EXTRA_PASSES = 8     /* its batch doubles up to 4096 */
};

/* A heap's entry holds its own key, so that sifting touches no timer but those that move. */
struct entry {
    mj__time when;
    uint64_t order; /* first set, first fired */
    struct mj__timer *timer;
};

struct mj__loop {
    struct event_base *base;
    struct mj__loop_counters counters;

    mj__time clock; /* the last reading: what is due by it is surely due */
    bool fresh;     /* the reading stands for the present turn */
    bool in_turn;
    bool awake; /* more work is ready: the next turn does not wait */

    int timerfd;
    struct event *timer_event;
    mj__time armed;   /* what the timerfd is set for */
    mj__time horizon; /* timers due by this moment fire in this turn */
    bool firing;
    struct entry *heap;
    size_t timers, capacity;
    uint64_t order;

    size_t owing; /* who has bytes that are still to leave */
    size_t woken; /* callbacks of the last pass */
    struct mj__deferred flushes, batch, frees, before_close; /* heads of rings */
    bool closing;
    bool (*work)(void *arg);
    void *work_arg;
};

/* ---- time ---- */

mj__time mj__clock(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (mj__time)now.tv_sec * MJ__SECOND + now.tv_nsec;
}

mj__time mj__loop_now(struct mj__loop *loop) {
    if (!loop->fresh) {
        loop->clock = mj__clock();
        loop->counters.clock_reads++;
        loop->fresh = loop->in_turn;
    }
    return loop->clock;
}

/* ---- the heap of timers ---- */

static bool before(const struct entry *a, const struct entry *b) {
    return a->when != b->when ? a->when < b->when : a->order < b->order;
}

static void place(struct mj__loop *loop, size_t at, struct entry entry) {
    loop->heap[at] = entry;
    entry.timer->slot = at + 1;
}

/* Puts an entry where it belongs, starting from the free place `at`. */
static void sift(struct mj__loop *loop, size_t at, struct entry entry) {
    struct entry *heap = loop->heap;
    while (at > 0 && before(&entry, &heap[(at - 1) / 2])) {
        place(loop, at, heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    for (;;) {
        size_t child = 2 * at + 1;
        if (child + 1 < loop->timers && before(&heap[child + 1], &heap[child])) {
            child++;
        }
        if (child >= loop->timers || !before(&heap[child], &entry)) {
            break;
        }
        place(loop, at, heap[child]);
        at = child;
    }
    place(loop, at, entry);
}

static int reserve(struct mj__loop *loop) {
    if (loop->timers < loop->capacity) {
        return 0;
    }
    size_t capacity = loop->capacity > 0 ? loop->capacity * 2 : FIRST_CAPACITY;
    struct entry *heap = realloc(loop->heap, capacity * sizeof *heap);
    if (heap == NULL) {
        return -1;
    }
    loop->heap = heap;
    loop->capacity = capacity;
    return 0;
}

int mj__timer_set(struct mj__loop *loop, struct mj__timer *timer, mj__time when) {
    if (timer->slot == 0 && reserve(loop) != 0) {
        return -1;
    }
    /* Otherwise a timer that sets itself for the past would hold the turn for ever. */
    if (loop->firing && when <= loop->horizon) {
        when = loop->horizon + 1;
    }
    size_t at = timer->slot != 0 ? timer->slot - 1 : loop->timers++;
    timer->when = when;
    sift(loop, at, (struct entry){.when = when, .order = loop->order++, .timer = timer});
    return 0;
}

void mj__timer_stop(struct mj__loop *loop, struct mj__timer *timer) {
    if (timer->slot == 0) {
        return;
    }
    size_t at = timer->slot - 1;
    struct entry last = loop->heap[--loop->timers];
    timer->slot = 0;
    if (last.timer != timer) {
        sift(loop, at, last);
    }
}

static mj__time earliest(const struct mj__loop *loop) {
    return loop->timers > 0 ? loop->heap[0].when : MJ__NEVER;
}

/* Sets the timerfd for the earliest timer, unless it wakes the loop by then anyway: a wake-up
 * for a timer that was stopped meanwhile is cheaper than a system call for each that moves. */
static int arm(struct mj__loop *loop) {
    mj__time when = earliest(loop);
    if (when >= loop->armed) {
        return 0;
    }
    struct itimerspec span = {
        .it_value = {.tv_sec = when / MJ__SECOND, .tv_nsec = when % MJ__SECOND},
    };
    if (timerfd_settime(loop->timerfd, TFD_TIMER_ABSTIME, &span, NULL) != 0) {
        return -1;
    }
    loop->counters.timer_arms++;
    loop->armed = when;
    return 0;
}

/* Only notes that time has come: what the pass found is handed out before any timer fires. */
static void time_came(evutil_socket_t fd, short what, void *arg) {
    (void)what;
    struct mj__loop *loop = arg;
    uint64_t expirations;
    if (read(fd, &expirations, sizeof expirations) != sizeof expirations) {
        return;
    }
    if (loop->armed > loop->horizon) {
        loop->horizon = loop->armed;
    }
    loop->armed = MJ__NEVER;
}

static void fire_timers(struct mj__loop *loop) {
    loop->firing = true;
    while (loop->timers > 0 && loop->heap[0].when <= loop->horizon) {
        struct mj__timer *timer = loop->heap[0].timer;
        mj__timer_stop(loop, timer);
        timer->fire(timer);
    }
    loop->firing = false;
}

/* ---- deferred calls ---- */

static void ring_init(struct mj__deferred *head) {
    head->next = head->prev = head;
}

static bool ring_empty(const struct mj__deferred *head) {
    return head->next == head;
}

static void ring_push(struct mj__deferred *head, struct mj__deferred *call) {
    if (call->queued) {
        return;
    }
    call->queued = true;
    call->next = head;
    call->prev = head->prev;
    head->prev->next = call;
    head->prev = call;
}

static void ring_remove(struct mj__deferred *call) {
    if (!call->queued) {
        return;
    }
    call->queued = false;
    call->prev->next = call->next;
    call->next->prev = call->prev;
    call->next = call->prev = NULL;
}

/* Moves everything of `from` to `to`, which is empty. */
static void ring_move(struct mj__deferred *to, struct mj__deferred *from) {
    if (ring_empty(from)) {
        return;
    }
    to->next = from->next;
    to->prev = from->prev;
    to->next->prev = to;
    to->prev->next = to;
    ring_init(from);
}

/* Runs the calls, also those that are queued meanwhile. */
static void ring_run(struct mj__deferred *head) {
    while (!ring_empty(head)) {
        struct mj__deferred *call = head->next;
        ring_remove(call);
        call->run(call);
    }
}

void mj__loop_flush(struct mj__loop *loop, struct mj__deferred *call) {
    ring_push(&loop->flushes, call);
}

void mj__loop_cancel(struct mj__loop *loop, struct mj__deferred *call) {
    (void)loop;
    ring_remove(call);
}

void mj__loop_free_later(struct mj__loop *loop, struct mj__deferred *call) {
    ring_push(&loop->frees, call);
}

bool mj__loop_before_close(struct mj__loop *loop, struct mj__deferred *call) {
    if (!loop->closing) {
        ring_push(&loop->before_close, call);
    }
    return !loop->closing;
}

void mj__loop_run_before_close(struct mj__loop *loop) {
    loop->closing = true;
    ring_run(&loop->before_close);
}

/* ---- watched descriptors ---- */

static void woke(evutil_socket_t fd, short what, void *arg) {
    (void)fd;
    struct mj__watch *watch = arg;
    watch->loop->woken++;
    watch->ready(watch, (what & EV_READ) != 0, (what & EV_WRITE) != 0);
}

int mj__watch_open(struct mj__loop *loop, struct mj__watch *watch, int fd) {
    watch->event = event_new(loop->base, fd, EV_PERSIST, woke, watch);
    if (watch->event == NULL) {
        return -1;
    }
    watch->loop = loop;
    watch->fd = fd;
    watch->armed = 0;
    return 0;
}

int mj__watch_arm(struct mj__watch *watch, bool readable, bool writable) {
    short wanted = (short)((readable ? EV_READ : 0) | (writable ? EV_WRITE : 0));
    if (wanted == watch->armed) {
        return 0;
    }
    if (watch->armed != 0) {
        event_del(watch->event);
        watch->armed = 0;
    }
    if (wanted == 0) {
        return 0;
    }
    short events = (short)(wanted | EV_PERSIST);
    if (event_assign(watch->event, watch->loop->base, watch->fd, events, woke, watch) != 0 ||
        event_add(watch->event, NULL) != 0) {
        return -1;
    }
    watch->armed = wanted;
    return 0;
}

void mj__watch_close(struct mj__watch *watch) {
    if (watch->event == NULL) {
        return;
    }
    event_free(watch->event);
    watch->event = NULL;
    watch->armed = 0;
    watch->fd = -1;
}

/* ---- open and close ---- */

/* True when the descriptors are there that event_base_new takes (an epoll and a pipe) and one
 * more for a first connection: without them libevent ends the process. */
static bool descriptors_left(void) {
    int pipe_ends[2] = {-1, -1};
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    int spare = eventfd(0, EFD_CLOEXEC);
    bool enough = epoll >= 0 && spare >= 0 && pipe2(pipe_ends, O_CLOEXEC) == 0;
    int code = errno;
    int opened[] = {epoll, spare, pipe_ends[0], pipe_ends[1]};
    for (size_t i = 0; i < sizeof opened / sizeof *opened; i++) {
        if (opened[i] >= 0) {
            close(opened[i]);
        }
    }
    errno = code;
    return enough;
}

/* libevent's own clock is never asked for, so it need not be read in every turn. */
static struct event_base *base_new(void) {
    struct event_config *config = event_config_new();
    if (config == NULL) {
        return NULL;
    }
    event_config_set_flag(config, EVENT_BASE_FLAG_NOLOCK | EVENT_BASE_FLAG_NO_CACHE_TIME);
    struct event_base *base = event_base_new_with_config(config);
    event_config_free(config);
    return base;
}

static int open_parts(struct mj__loop *loop, struct mj__error *error) {
    loop->timerfd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (loop->timerfd < 0 || !descriptors_left()) {
        if (errno == ENOMEM) {
            return mj__fail(error, MJ__NO_MEMORY, "the system has no memory for an event loop");
        }
        return mj__fail(error, MJ__UNREACHABLE,
                        "no event loop: %s (it takes 4 descriptors, and each connection 1; see "
                        "ulimit -n)",
                        strerror(errno));
    }
    loop->base = base_new();
    if (loop->base != NULL) {
        loop->timer_event =
            event_new(loop->base, loop->timerfd, EV_READ | EV_PERSIST, time_came, loop);
    }
    if (loop->timer_event == NULL || event_add(loop->timer_event, NULL) != 0) {
        return mj__fail(error, MJ__NO_MEMORY, "no memory for an event loop");
    }
    return 0;
}

struct mj__loop *mj__loop_open(struct mj__error *error) {
    struct mj__loop *loop = calloc(1, sizeof *loop);
    if (loop == NULL) {
        mj__fail(error, MJ__NO_MEMORY, "no memory for an event loop");
        return NULL;
    }
    loop->timerfd = -1;
    loop->armed = MJ__NEVER;
    loop->clock = mj__clock();
    ring_init(&loop->flushes);
    ring_init(&loop->batch);
    ring_init(&loop->frees);
    ring_init(&loop->before_close);
    if (open_parts(loop, error) != 0) {
        mj__loop_close(loop);
        return NULL;
    }
    return loop;
}

void mj__loop_close(struct mj__loop *loop) {
    if (loop == NULL) {
        return;
    }
    ring_run(&loop->frees);
    if (loop->timer_event != NULL) {
        event_free(loop->timer_event);
    }
    if (loop->base != NULL) {
        event_base_free(loop->base);
    }
    if (loop->timerfd >= 0) {
        close(loop->timerfd);
    }
    free(loop->heap);
    free(loop);
}

struct event_base *mj__loop_base(struct mj__loop *loop) {
    return loop->base;
}

const struct mj__loop_counters *mj__loop_counters(const struct mj__loop *loop) {
    return &loop->counters;
}

/* ---- a turn ---- */

void mj__loop_owe(struct mj__loop *loop, int change) {
    loop->owing += (size_t)change;
}

bool mj__loop_owes(const struct mj__loop *loop) {
    return loop->owing > 0;
}

void mj__loop_work(struct mj__loop *loop, bool (*work)(void *arg), void *arg) {
    loop->work = work;
    loop->work_arg = arg;
}

void mj__loop_wake(struct mj__loop *loop) {
    loop->awake = true;
}

static bool is_due(const struct mj__loop *loop) {
    return loop->awake || !ring_empty(&loop->flushes) || !ring_empty(&loop->frees) ||
           (loop->timers > 0 && earliest(loop) <= loop->clock);
}

/* One epoll_wait, and a call for each descriptor that it found ready. */
static int pass(struct mj__loop *loop, int flags) {
    loop->woken = 0;
    loop->counters.turns++;
    return event_base_loop(loop->base, EVLOOP_ONCE | flags) < 0 ? -1 : 0;
}

static int sleep_for_descriptors(struct mj__loop *loop) {
    if (arm(loop) != 0) {
        return -1;
    }
    loop->horizon = loop->clock;
    return pass(loop, 0);
}

/* The clock is read first: a timer that is due by a later reading may belong to a reply that
 * came after this pass looked, and in time. */
static int look_for_descriptors(struct mj__loop *loop) {
    if (loop->timers > 0) {
        mj__loop_now(loop);
    }
    loop->horizon = loop->clock;
    return pass(loop, EVLOOP_NONBLOCK);
}

/* A crowded pass may have left replies behind that must be seen before their deadlines are. */
static int look_again_before_timers(struct mj__loop *loop) {
    int status = 0;
    for (int i = 0; i < EXTRA_PASSES && status == 0; i++) {
        if (loop->woken + 1 < SMALLEST_BATCH || earliest(loop) > loop->horizon) {
            break;
        }
        status = pass(loop, EVLOOP_NONBLOCK);
    }
    return status;
}

/* Flushes find a fresh clock: it is they who give requests their deadlines. */
static void flush(struct mj__loop *loop) {
    loop->fresh = false;
    ring_move(&loop->batch, &loop->flushes);
    ring_run(&loop->batch);
}

int mj__loop_turn(struct mj__loop *loop, bool wait) {
    if (loop->in_turn) {
        return -1;
    }
    loop->in_turn = true;
    bool sleep = wait && !is_due(loop);
    int status = sleep ? sleep_for_descriptors(loop) : look_for_descriptors(loop);
    if (status == 0) {
        status = look_again_before_timers(loop);
    }
    fire_timers(loop);
    loop->awake = loop->work != NULL && loop->work(loop->work_arg);
    flush(loop);
    ring_run(&loop->frees);
    loop->in_turn = false;
    loop->fresh = false;
    return status;
}
