/* loop.c: the turns of a loop, on an epoll of its own.
 *
 * Watches and the timerfd are in an epoll that is ours, and a turn waits in it. On the event_base
 * is one event at most: that epoll's descriptor, which is readable when something in it is ready.
 * So
 * - a pass over what is ready is ours to bound. event_base_loopbreak would bound it too, but on a
 *   host's base it would end the host's dispatch;
 * - a connection costs no allocation here, and a change of what it waits for one system call;
 * - a turn in which nobody else has a part never enters libevent, whose dispatch takes about 520
 *   instructions, a quarter of what a whole request may take.
 * The one event is added when somebody asks for the base: the kernel needs about 100 ns for each
 * event that it has to pass on from one epoll to another. */
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
    BATCH = 64           /* descriptors that one pass takes at the most */
};

/* A heap's entry holds its own key, so that sifting touches no timer but those that move. */
struct entry {
    mj__time when;
    uint64_t order; /* first set, first fired */
    struct mj__timer *timer;
};

struct mj__loop {
    struct mj__loop_counters counters;

    mj__time clock; /* the last reading: what is due by it is surely due */
    bool fresh;     /* the reading stands for the present turn */
    bool in_turn;
    bool awake; /* more work is ready: the next turn does not wait */
    bool sleeps_in_read;

    struct mj__watch timerfd;
    mj__time armed;   /* what it is set for */
    mj__time horizon; /* timers due by this moment fire in this turn */
    bool firing;
    struct entry *heap;
    size_t timers, capacity;
    uint64_t order;

    struct mj__watch *expected; /* see mj__loop_expect */

    size_t owing; /* who has bytes that are still to leave */
    struct mj__deferred flushes, batch, frees, before_close; /* heads of rings */
    bool closing;
    bool (*work)(void *arg);
    void *work_arg;

    int epoll;
    size_t watched; /* descriptors in it */
    size_t urgent;  /* those of them that are not patient */
    int found;      /* what the last pass found: so many of `ready`; -1: it failed */
    struct epoll_event ready[BATCH];
    struct event_base *base;
    struct event *event; /* of the epoll, on the base; NULL: nobody has asked for the base */
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
    if (timerfd_settime(loop->timerfd.fd, TFD_TIMER_ABSTIME, &span, NULL) != 0) {
        return -1;
    }
    loop->counters.timer_arms++;
    loop->armed = when;
    return 0;
}

/* Only notes that time has come: what the pass found is handed out before any timer fires. */
static void time_came(struct mj__watch *watch, bool readable, bool writable) {
    (void)readable, (void)writable;
    struct mj__loop *loop = watch->loop;
    uint64_t expirations;
    if (read(watch->fd, &expirations, sizeof expirations) != sizeof expirations) {
        return;
    }
    if (loop->armed > loop->horizon) {
        loop->horizon = loop->armed;
    }
    loop->armed = MJ__NEVER;
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

/* The pass that is under way must not call a watch that is closed, nor take one that was opened
 * anew in the same place for what it was. */
static void forget(struct mj__loop *loop, const struct mj__watch *watch) {
    for (int i = 0; i < loop->found; i++) {
        if (loop->ready[i].data.ptr == watch) {
            loop->ready[i].data.ptr = NULL;
        }
    }
}

int mj__watch_open(struct mj__loop *loop, struct mj__watch *watch, int fd) {
    watch->loop = loop;
    watch->fd = fd;
    watch->armed = 0;
    return 0;
}

static void disarm(struct mj__watch *watch) {
    if (watch->armed != 0) {
        epoll_ctl(watch->loop->epoll, EPOLL_CTL_DEL, watch->fd, NULL);
        watch->loop->watched--;
        watch->loop->urgent -= !watch->patient;
        watch->armed = 0;
    }
}

/* What waits for nothing leaves the epoll, which would otherwise go on to report a hang-up. */
int mj__watch_arm(struct mj__watch *watch, bool readable, bool writable) {
    uint32_t wanted = (readable ? EPOLLIN : 0U) | (writable ? EPOLLOUT : 0U);
    if (wanted == watch->armed) {
        return 0;
    }
    if (wanted == 0) {
        disarm(watch);
        return 0;
    }
    int change = watch->armed != 0 ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    struct epoll_event event = {.events = wanted, .data.ptr = watch};
    if (epoll_ctl(watch->loop->epoll, change, watch->fd, &event) != 0) {
        disarm(watch);
        return -1;
    }
    if (change == EPOLL_CTL_ADD) {
        watch->loop->watched++;
        watch->loop->urgent += !watch->patient;
    }
    watch->armed = wanted;
    return 0;
}

void mj__watch_be_urgent(struct mj__watch *watch) {
    watch->loop->urgent += watch->patient && watch->armed != 0;
    watch->patient = false;
}

void mj__watch_close(struct mj__watch *watch) {
    if (watch->loop == NULL) {
        return;
    }
    if (watch->loop->expected == watch) {
        watch->loop->expected = NULL;
    }
    disarm(watch);
    forget(watch->loop, watch);
    watch->loop = NULL;
    watch->fd = -1;
}

/* One epoll_wait, and a call for each descriptor that it found ready. What a watch has been armed
 * for since is what counts: it hears of nothing else. An error or a hang-up is whatever it waits
 * for, as with libevent. */
static int look(struct mj__loop *loop, int timeout) {
    do {
        loop->counters.turns++;
        loop->found = epoll_wait(loop->epoll, loop->ready, BATCH, timeout);
    } while (loop->found < 0 && errno == EINTR);
    for (int i = 0; i < loop->found; i++) {
        struct mj__watch *watch = loop->ready[i].data.ptr;
        if (watch == NULL) {
            continue;
        }
        uint32_t what = loop->ready[i].events;
        if ((what & (EPOLLERR | EPOLLHUP)) != 0) {
            what |= EPOLLIN | EPOLLOUT;
        }
        what &= watch->armed;
        if (what != 0) {
            watch->ready(watch, (what & EPOLLIN) != 0, (what & EPOLLOUT) != 0);
        }
    }
    return loop->found < 0 ? -1 : 0;
}

/* ---- open and close ---- */

/* True when the descriptors are there that event_base_new takes (an epoll and a pair of sockets)
 * and one more for a first connection: without them libevent ends the process. */
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
    loop->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (loop->epoll >= 0) {
        loop->timerfd.fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    }
    if (loop->timerfd.fd < 0 || !descriptors_left()) {
        if (errno == ENOMEM) {
            return mj__fail(error, MJ__NO_MEMORY, "the system has no memory for an event loop");
        }
        return mj__fail(error, MJ__UNREACHABLE,
                        "no event loop: %s (it takes 5 descriptors, and each connection 1; see "
                        "ulimit -n)",
                        strerror(errno));
    }
    loop->base = base_new();
    if (loop->base == NULL || mj__watch_arm(&loop->timerfd, true, false) != 0) {
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
    loop->epoll = -1;
    loop->timerfd.ready = time_came;
    loop->timerfd.patient = true;
    mj__watch_open(loop, &loop->timerfd, -1);
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
    if (loop->event != NULL) {
        event_free(loop->event);
    }
    if (loop->base != NULL) {
        event_base_free(loop->base);
    }
    if (loop->timerfd.fd >= 0) {
        close(loop->timerfd.fd);
    }
    if (loop->epoll >= 0) {
        close(loop->epoll);
    }
    free(loop->heap);
    free(loop);
}

static void epoll_ready(evutil_socket_t fd, short what, void *arg) {
    (void)fd, (void)what;
    look(arg, 0);
}

struct event_base *mj__loop_base(struct mj__loop *loop) {
    if (loop->event != NULL) {
        return loop->base;
    }
    struct event *event =
        event_new(loop->base, loop->epoll, EV_READ | EV_PERSIST, epoll_ready, loop);
    if (event == NULL) {
        return NULL;
    }
    if (event_add(event, NULL) != 0) {
        event_free(event);
        return NULL;
    }
    loop->event = event;
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
    return loop->awake || earliest(loop) <= loop->clock || !ring_empty(&loop->flushes) ||
           !ring_empty(&loop->frees);
}

/* What is ready is called; with others on the base, theirs too. */
static int pass(struct mj__loop *loop, bool sleep) {
    if (loop->event == NULL) {
        return look(loop, sleep ? -1 : 0);
    }
    loop->found = 0;
    int status = event_base_loop(loop->base, EVLOOP_ONCE | (sleep ? 0 : EVLOOP_NONBLOCK));
    return status < 0 || loop->found < 0 ? -1 : 0;
}

void mj__loop_expect(struct mj__loop *loop, struct mj__watch *watch) {
    loop->expected = watch;
}

bool mj__loop_sleeps_in_read(const struct mj__loop *loop) {
    return loop->sleeps_in_read;
}

/* Nothing urgent is watched beside what is expected, and timers are far. */
static bool may_sleep_in_read(const struct mj__loop *loop) {
    const struct mj__watch *watch = loop->expected;
    return watch != NULL && watch->armed == EPOLLIN && loop->urgent == 1 &&
           loop->event == NULL && earliest(loop) > loop->clock + 2 * MJ__PATIENCE;
}

/* One request at a time on one connection is what most scripts do: this saves them a third of
 * their system calls. */
static void sleep_in_read(struct mj__loop *loop) {
    struct mj__watch *watch = loop->expected;
    loop->horizon = loop->clock;
    loop->found = 0;
    loop->sleeps_in_read = true;
    watch->ready(watch, true, false);
    loop->sleeps_in_read = false;
}

static int sleep_for_descriptors(struct mj__loop *loop) {
    bool in_read = may_sleep_in_read(loop);
    if (in_read) {
        sleep_in_read(loop);
    }
    loop->expected = NULL;
    if (in_read) {
        return 0;
    }
    if (arm(loop) != 0) {
        return -1;
    }
    loop->horizon = loop->clock;
    return pass(loop, true);
}

/* The clock is read first: a timer that is due by a later reading may belong to a reply that
 * came after this pass looked, and in time. */
static int look_for_descriptors(struct mj__loop *loop) {
    if (loop->timers > 0) {
        mj__loop_now(loop);
    }
    loop->horizon = loop->clock;
    return pass(loop, false);
}

/* A full pass may have left replies behind that must be seen before their deadlines are. The
 * kernel gives what was left first: after as many as it watches all have been seen, however many
 * of them stay ready. What the timerfd says meanwhile is the next turn's. */
static int look_again(struct mj__loop *loop) {
    mj__time horizon = loop->horizon;
    size_t unseen = loop->watched;
    while (loop->found == BATCH && unseen > 0 && earliest(loop) <= horizon) {
        unseen -= unseen < BATCH ? unseen : BATCH;
        if (look(loop, 0) != 0) {
            return -1;
        }
    }
    loop->horizon = horizon;
    return 0;
}

static int fire_timers(struct mj__loop *loop) {
    if (look_again(loop) != 0) {
        return -1;
    }
    loop->firing = true;
    while (earliest(loop) <= loop->horizon) {
        struct mj__timer *timer = loop->heap[0].timer;
        mj__timer_stop(loop, timer);
        timer->fire(timer);
    }
    loop->firing = false;
    return 0;
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
    if (status == 0 && earliest(loop) <= loop->horizon) {
        status = fire_timers(loop);
    }
    loop->awake = loop->work != NULL && loop->work(loop->work_arg);
    flush(loop);
    ring_run(&loop->frees);
    loop->in_turn = false;
    loop->fresh = false;
    return status;
}
