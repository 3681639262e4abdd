/* The loop on real descriptors: the order within a turn, time, and what closes under way. */
#include "loop.h"

#include "check.h"

#include <event2/event.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <time.h>

static struct mj__loop *loop_open(void) {
    struct mj__error error;
    struct mj__loop *loop = mj__loop_open(&error);
    NEED(loop != NULL);
    return loop;
}

/* ---- timers ---- */

enum { MANY = 10000 };

struct alarm {
    struct mj__timer timer;
    struct mj__loop *loop;
    size_t fired; /* 1 + its place in the order of firing */
    mj__time at;
};

static size_t fired;
static struct alarm *order[MANY];

static void alarm_fire(struct mj__timer *timer) {
    struct alarm *alarm = (struct alarm *)timer;
    alarm->at = mj__loop_now(alarm->loop);
    order[fired++] = alarm;
    alarm->fired = fired;
}

static struct alarm alarm_of(struct mj__loop *loop) {
    return (struct alarm){.timer.fire = alarm_fire, .loop = loop};
}

static void timers_fire_in_order(void) {
    struct mj__loop *loop = loop_open();
    struct alarm *alarms = calloc(MANY, sizeof *alarms);
    NEED(alarms != NULL);
    unsigned seed = 1;
    mj__time start = mj__clock();
    size_t stopped = 0;
    for (size_t i = 0; i < MANY; i++) {
        alarms[i] = alarm_of(loop);
        mj__time when = start + rand_r(&seed) % 500 * (MJ__SECOND / 10000);
        CHECK(mj__timer_set(loop, &alarms[i].timer, when) == 0);
    }
    for (size_t i = 0; i < MANY; i += 3) {
        mj__time when = start + rand_r(&seed) % 500 * (MJ__SECOND / 10000);
        CHECK(mj__timer_set(loop, &alarms[i].timer, when) == 0);
    }
    for (size_t i = 0; i < MANY; i += 7) {
        mj__timer_stop(loop, &alarms[i].timer);
        CHECK(alarms[i].timer.slot == 0);
        stopped++;
    }
    fired = 0;
    while (fired < MANY - stopped) {
        NEED(mj__loop_turn(loop, true) == 0);
    }
    for (size_t i = 0; i < MANY; i++) {
        CHECK((alarms[i].fired == 0) == (i % 7 == 0));
        CHECK(alarms[i].timer.slot == 0);
        CHECK(alarms[i].fired == 0 || alarms[i].at >= alarms[i].timer.when);
    }
    for (size_t i = 1; i < fired; i++) {
        CHECK(order[i - 1]->timer.when <= order[i]->timer.when);
    }
    free(alarms);
    mj__loop_close(loop);
}

static void equal_timers_fire_as_set(void) {
    struct mj__loop *loop = loop_open();
    struct alarm alarms[100];
    mj__time when = mj__clock() + MJ__SECOND / 1000;
    for (size_t i = 0; i < 100; i++) {
        alarms[i] = alarm_of(loop);
        CHECK(mj__timer_set(loop, &alarms[i].timer, when) == 0);
    }
    fired = 0;
    while (fired < 100) {
        NEED(mj__loop_turn(loop, true) == 0);
    }
    for (size_t i = 0; i < 100; i++) {
        CHECK(alarms[i].fired == i + 1);
    }
    mj__loop_close(loop);
}

static void later_moments_arm_nothing(void) {
    struct mj__loop *loop = loop_open();
    struct alarm first = alarm_of(loop), second = alarm_of(loop);
    mj__time start = mj__clock();
    CHECK(mj__timer_set(loop, &first.timer, start + MJ__SECOND / 100) == 0);
    fired = 0;
    while (fired == 0) {
        NEED(mj__loop_turn(loop, true) == 0);
    }
    CHECK(mj__loop_counters(loop)->timer_arms == 1);

    /* Two moves later, one earlier: the last alone is worth a system call. */
    int pair[2];
    NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    CHECK(mj__timer_set(loop, &first.timer, start + 3600 * MJ__SECOND) == 0);
    CHECK(mj__timer_set(loop, &first.timer, start + 7200 * MJ__SECOND) == 0);
    CHECK(mj__timer_set(loop, &second.timer, mj__clock() + MJ__SECOND / 100) == 0);
    while (fired == 1) {
        NEED(mj__loop_turn(loop, true) == 0);
    }
    CHECK(second.fired == 2);
    CHECK(mj__loop_counters(loop)->timer_arms == 2);
    mj__timer_stop(loop, &first.timer);
    mj__timer_stop(loop, &first.timer);
    close(pair[0]);
    close(pair[1]);
    mj__loop_close(loop);
}

static void fire_again(struct mj__timer *timer) {
    struct alarm *alarm = (struct alarm *)timer;
    alarm->fired++;
    CHECK(mj__timer_set(alarm->loop, timer, 0) == 0);
}

static void a_timer_cannot_hold_the_turn(void) {
    struct mj__loop *loop = loop_open();
    struct alarm alarm = {.timer.fire = fire_again, .loop = loop};
    CHECK(mj__timer_set(loop, &alarm.timer, 0) == 0);
    for (size_t turn = 1; turn <= 10; turn++) {
        NEED(mj__loop_turn(loop, true) == 0);
        CHECK(alarm.fired <= turn);
    }
    CHECK(alarm.fired >= 5);
    mj__timer_stop(loop, &alarm.timer);
    mj__loop_close(loop);
}

static void polling_needs_no_timerfd(void) {
    struct mj__loop *loop = loop_open();
    struct alarm alarm = alarm_of(loop);
    CHECK(mj__timer_set(loop, &alarm.timer, mj__clock() + MJ__SECOND / 200) == 0);
    fired = 0;
    while (fired == 0) {
        NEED(mj__loop_turn(loop, false) == 0);
    }
    CHECK(alarm.at >= alarm.timer.when);
    CHECK(mj__loop_counters(loop)->timer_arms == 0);
    mj__loop_close(loop);
}

/* ---- descriptors ---- */

enum { CROWD = 200 }; /* more than three passes take */

struct guest {
    struct mj__watch watch;
    int pair[2];
    unsigned calls;
    bool readable, writable;
};

static struct guest *crowd[CROWD];
static size_t called;

static void guest_ready(struct mj__watch *watch, bool readable, bool writable) {
    struct guest *guest = (struct guest *)watch;
    guest->calls++;
    guest->readable = readable;
    guest->writable = writable;
    called++;
    char byte;
    if (readable) {
        CHECK(read(guest->pair[0], &byte, 1) == 1);
    }
}

static void guest_enter(struct mj__loop *loop, struct guest *guest) {
    NEED(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, guest->pair) == 0);
    NEED(mj__watch_open(loop, &guest->watch, guest->pair[0]) == 0);
}

static void guest_leave(struct guest *guest) {
    mj__watch_close(&guest->watch);
    close(guest->pair[0]);
    close(guest->pair[1]);
}

static struct guest *guest_new(struct mj__loop *loop) {
    struct guest *guest = calloc(1, sizeof *guest);
    NEED(guest != NULL);
    guest->watch.ready = guest_ready;
    guest_enter(loop, guest);
    return guest;
}

static void guest_free(struct guest *guest) {
    guest_leave(guest);
    free(guest);
}

static void crowd_come(struct mj__loop *loop) {
    called = 0;
    for (size_t i = 0; i < CROWD; i++) {
        crowd[i] = guest_new(loop);
        NEED(mj__watch_arm(&crowd[i]->watch, true, false) == 0);
    }
}

static void crowd_write(size_t first) {
    for (size_t i = first; i < CROWD; i++) {
        NEED(write(crowd[i]->pair[1], "x", 1) == 1);
    }
}

static void wait_until(mj__time moment) {
    struct timespec until = {
        .tv_sec = moment / MJ__SECOND,
        .tv_nsec = moment % MJ__SECOND,
    };
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR) {
    }
}

static size_t called_before_fire;

static void note_called(struct mj__timer *timer) {
    (void)timer;
    called_before_fire = called;
    fired++;
}

static void deadlines_come_last(void) {
    struct mj__loop *loop = loop_open();
    struct mj__timer timer = {.fire = note_called};
    crowd_come(loop);
    fired = 0;
    mj__time deadline = mj__clock() + MJ__SECOND / 10;
    CHECK(mj__timer_set(loop, &timer, deadline) == 0);
    NEED(write(crowd[0]->pair[1], "x", 1) == 1);
    NEED(mj__loop_turn(loop, true) == 0);
    CHECK(mj__loop_counters(loop)->timer_arms == 1);

    /* The kernel now reports the timerfd first. */
    wait_until(deadline);
    crowd_write(1);
    while (fired == 0) {
        NEED(mj__loop_turn(loop, true) == 0);
    }
    CHECK(called_before_fire == CROWD);
    for (size_t i = 0; i < CROWD; i++) {
        CHECK(crowd[i]->calls == 1);
        guest_free(crowd[i]);
    }
    mj__loop_close(loop);
}

static void note_ready(struct mj__watch *watch, bool readable, bool writable) {
    struct guest *guest = (struct guest *)watch;
    guest->calls++;
    guest->readable = readable;
    guest->writable = writable;
}

/* All stay ready, whatever is done: each is called in the turn, none without end. */
static void a_crowd_cannot_hold_the_turn(void) {
    struct mj__loop *loop = loop_open();
    struct mj__timer timer = {.fire = note_called};
    crowd_come(loop);
    for (size_t i = 0; i < CROWD; i++) {
        crowd[i]->watch.ready = note_ready;
        NEED(mj__watch_arm(&crowd[i]->watch, true, true) == 0);
    }
    fired = 0;
    CHECK(mj__timer_set(loop, &timer, 0) == 0);
    NEED(mj__loop_turn(loop, true) == 0);
    CHECK(fired == 1);
    for (size_t i = 0; i < CROWD; i++) {
        CHECK(crowd[i]->calls >= 1 && crowd[i]->calls <= 3);
        guest_free(crowd[i]);
    }
    mj__loop_close(loop);
}

static void arms_are_what_was_asked(void) {
    struct mj__loop *loop = loop_open();
    struct guest *guest = guest_new(loop);
    NEED(mj__loop_turn(loop, false) == 0);
    CHECK(guest->calls == 0);
    CHECK(mj__watch_arm(&guest->watch, false, true) == 0);
    NEED(mj__loop_turn(loop, true) == 0);
    CHECK(guest->calls == 1 && !guest->readable && guest->writable);
    CHECK(mj__watch_arm(&guest->watch, true, false) == 0);
    NEED(mj__loop_turn(loop, false) == 0);
    CHECK(guest->calls == 1);
    NEED(write(guest->pair[1], "xx", 2) == 2);
    CHECK(mj__watch_arm(&guest->watch, true, true) == 0);
    NEED(mj__loop_turn(loop, true) == 0);
    CHECK(guest->calls == 2 && guest->readable && guest->writable);
    CHECK(mj__watch_arm(&guest->watch, false, false) == 0);
    NEED(mj__loop_turn(loop, false) == 0);
    CHECK(guest->calls == 2);
    guest_free(guest);

    struct mj__watch none = {0};
    mj__watch_close(&none);
    mj__loop_close(loop);
}

static void arming_twice_changes_nothing(void) {
    struct mj__loop *loop = loop_open();
    struct guest *guest = guest_new(loop);
    CHECK(mj__watch_arm(&guest->watch, true, false) == 0);
    CHECK(mj__watch_arm(&guest->watch, true, false) == 0);
    mj__watch_close(&guest->watch);
    mj__watch_close(&guest->watch);
    CHECK(guest->watch.armed == 0);
    guest_free(guest);
    mj__loop_close(loop);
}

/* Whoever is called first sends everybody home, itself too. */
static void send_home(struct mj__watch *watch, bool readable, bool writable) {
    (void)watch, (void)readable, (void)writable;
    called++;
    for (size_t i = 0; i < CROWD; i++) {
        guest_free(crowd[i]);
        crowd[i] = NULL;
    }
}

static void close_the_other(struct mj__watch *watch, bool readable, bool writable) {
    note_ready(watch, readable, writable);
    mj__watch_close(&crowd[watch == &crowd[0]->watch]->watch);
}

static void a_watch_can_close_the_next(void) {
    struct mj__loop *loop = loop_open();
    for (size_t i = 0; i < 2; i++) {
        crowd[i] = guest_new(loop);
        crowd[i]->watch.ready = close_the_other;
        NEED(mj__watch_arm(&crowd[i]->watch, false, true) == 0);
    }
    NEED(mj__loop_turn(loop, true) == 0);
    CHECK(crowd[0]->calls + crowd[1]->calls == 1);
    guest_free(crowd[0]);
    guest_free(crowd[1]);
    mj__loop_close(loop);
}

/* Whoever is called first has the other leave, and a newcomer gets its descriptor. */
static struct guest *newcomer;

static void make_room(struct mj__watch *watch, bool readable, bool writable) {
    note_ready(watch, readable, writable);
    struct mj__loop *loop = watch->loop;
    struct guest *other = crowd[watch == &crowd[0]->watch];
    int left_behind = other->pair[0];
    guest_leave(other);
    newcomer = newcomer != NULL ? newcomer : other;
    newcomer->watch.ready = note_ready;
    guest_enter(loop, newcomer);
    CHECK(newcomer->pair[0] == left_behind);
    NEED(mj__watch_arm(&newcomer->watch, true, true) == 0);
    NEED(mj__watch_arm(watch, false, false) == 0);
}

/* NULL: the newcomer is in the other's own place. */
static void descriptor_is_used_again(struct guest *in_place) {
    struct mj__loop *loop = loop_open();
    newcomer = in_place;
    for (size_t i = 0; i < 2; i++) {
        crowd[i] = guest_new(loop);
        crowd[i]->watch.ready = make_room;
        NEED(mj__watch_arm(&crowd[i]->watch, true, false) == 0);
        NEED(write(crowd[i]->pair[1], "x", 1) == 1);
    }
    NEED(mj__loop_turn(loop, true) == 0);
    CHECK(crowd[0]->calls + crowd[1]->calls == 1 && newcomer->calls == 0);
    NEED(mj__loop_turn(loop, true) == 0);
    CHECK(newcomer->calls == 1 && !newcomer->readable && newcomer->writable);
    for (size_t i = 0; i < 2; i++) {
        if (crowd[i]->watch.loop != NULL) {
            guest_leave(crowd[i]);
        }
        free(crowd[i]);
    }
    if (in_place != NULL) {
        guest_leave(in_place);
    }
    mj__loop_close(loop);
}

static void descriptors_are_used_again(void) {
    struct guest guest = {.calls = 0};
    descriptor_is_used_again(&guest);
    descriptor_is_used_again(NULL);
}

static void rearm_the_others(struct mj__watch *watch, bool readable, bool writable) {
    note_ready(watch, readable, writable);
    size_t self = 0;
    while (&crowd[self]->watch != watch) {
        self++;
    }
    struct guest *writes = crowd[(self + 1) % 3], *rests = crowd[(self + 2) % 3];
    writes->watch.ready = rests->watch.ready = note_ready;
    NEED(mj__watch_arm(&writes->watch, false, true) == 0);
    NEED(mj__watch_arm(&rests->watch, false, false) == 0);
    NEED(mj__watch_arm(watch, false, false) == 0);
    newcomer = writes;
}

static void a_pass_knows_the_latest_arms(void) {
    struct mj__loop *loop = loop_open();
    for (size_t i = 0; i < 3; i++) {
        crowd[i] = guest_new(loop);
        crowd[i]->watch.ready = rearm_the_others;
        NEED(mj__watch_arm(&crowd[i]->watch, true, false) == 0);
        NEED(write(crowd[i]->pair[1], "x", 1) == 1);
    }
    NEED(mj__loop_turn(loop, true) == 0);
    CHECK(crowd[0]->calls + crowd[1]->calls + crowd[2]->calls == 1);
    CHECK(newcomer->calls == 0);
    NEED(mj__loop_turn(loop, true) == 0);
    CHECK(crowd[0]->calls + crowd[1]->calls + crowd[2]->calls == 2);
    CHECK(newcomer->calls == 1 && !newcomer->readable && newcomer->writable);
    for (size_t i = 0; i < 3; i++) {
        guest_free(crowd[i]);
    }
    mj__loop_close(loop);
}

/* A pipe tells of its other end by EPOLLHUP or EPOLLERR alone. */
static void a_hang_up_is_what_one_waits_for(void) {
    struct mj__loop *loop = loop_open();
    int first[2], second[2];
    NEED(pipe2(first, O_NONBLOCK) == 0 && pipe2(second, O_NONBLOCK) == 0);
    struct guest reader = {.watch.ready = note_ready}, writer = {.watch.ready = note_ready};
    char block[4096] = {0};
    while (write(second[1], block, sizeof block) > 0) {
    }
    NEED(mj__watch_open(loop, &reader.watch, first[0]) == 0);
    NEED(mj__watch_open(loop, &writer.watch, second[1]) == 0);
    CHECK(mj__watch_arm(&reader.watch, true, false) == 0);
    CHECK(mj__watch_arm(&writer.watch, false, true) == 0);
    NEED(mj__loop_turn(loop, false) == 0);
    CHECK(reader.calls == 0 && writer.calls == 0);
    close(first[1]);
    close(second[0]);
    NEED(mj__loop_turn(loop, true) == 0);
    CHECK(reader.calls == 1 && reader.readable && !reader.writable);
    CHECK(writer.calls == 1 && !writer.readable && writer.writable);

    /* Who waits for nothing neither hears of it nor keeps the loop awake. */
    CHECK(mj__watch_arm(&reader.watch, false, false) == 0);
    CHECK(mj__watch_arm(&writer.watch, false, false) == 0);
    struct alarm alarm = alarm_of(loop);
    CHECK(mj__timer_set(loop, &alarm.timer, mj__clock() + MJ__SECOND / 100) == 0);
    fired = 0;
    uint64_t turns = mj__loop_counters(loop)->turns;
    while (fired == 0) {
        NEED(mj__loop_turn(loop, true) == 0);
    }
    CHECK(mj__loop_counters(loop)->turns <= turns + 2);
    CHECK(reader.calls == 1 && writer.calls == 1);
    mj__watch_close(&reader.watch);
    mj__watch_close(&writer.watch);
    close(first[0]);
    close(second[1]);
    mj__loop_close(loop);
}

static void what_cannot_be_watched_is_refused(void) {
    struct mj__loop *loop = loop_open();
    struct guest guest = {.watch.ready = note_ready};
    int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    NEED(fd >= 0);
    NEED(mj__watch_open(loop, &guest.watch, fd) == 0);
    CHECK(mj__watch_arm(&guest.watch, true, false) == -1);
    CHECK(guest.watch.armed == 0);
    NEED(mj__loop_turn(loop, false) == 0);
    CHECK(guest.calls == 0);
    mj__watch_close(&guest.watch);
    close(fd);
    mj__loop_close(loop);
}

static void nobody_is_called_after_close(void) {
    struct mj__loop *loop = loop_open();
    crowd_come(loop);
    for (size_t i = 0; i < CROWD; i++) {
        crowd[i]->watch.ready = send_home;
    }
    crowd_write(0);
    NEED(mj__loop_turn(loop, true) == 0);
    NEED(mj__loop_turn(loop, false) == 0);
    CHECK(called == 1);
    mj__loop_close(loop);
}

/* ---- the end of a turn ---- */

struct call {
    struct mj__deferred deferred;
    struct mj__loop *loop;
    struct call *then;  /* what it queues */
    struct call * not ; /* what it takes back */
    unsigned runs;
};

static char trace[32];

static void mark(char letter) {
    size_t size = strlen(trace);
    NEED(size + 1 < sizeof trace);
    trace[size] = letter;
}

static void call_run(struct mj__deferred *deferred) {
    struct call *call = (struct call *)deferred;
    call->runs++;
    mark('f');
    if (call->then != NULL) {
        mj__loop_flush(call->loop, &call->then->deferred);
    }
    if (call->not != NULL) {
        mj__loop_cancel(call->loop, &call->not ->deferred);
    }
}

static void flushes_run_once(void) {
    struct mj__loop *loop = loop_open();
    struct call last = {.deferred.run = call_run, .loop = loop};
    struct call unwanted = {.deferred.run = call_run, .loop = loop};
    struct call first = {
        .deferred.run = call_run, .loop = loop, .then = &last, .not = &unwanted};
    mj__loop_flush(loop, &first.deferred);
    mj__loop_flush(loop, &first.deferred);
    mj__loop_flush(loop, &unwanted.deferred);
    NEED(mj__loop_turn(loop, true) == 0);
    CHECK(first.runs == 1 && unwanted.runs == 0 && last.runs == 0);
    NEED(mj__loop_turn(loop, true) == 0); /* does not wait: a flush is due */
    CHECK(first.runs == 1 && unwanted.runs == 0 && last.runs == 1);
    mj__loop_flush(loop, &first.deferred);
    mj__loop_cancel(loop, &first.deferred);
    mj__loop_cancel(loop, &first.deferred);
    NEED(mj__loop_turn(loop, false) == 0);
    CHECK(first.runs == 1);
    memset(trace, 0, sizeof trace);
    mj__loop_close(loop);
}

struct worker {
    struct mj__loop *loop;
    struct call *flush;
    struct mj__deferred *freed;
    unsigned runs, more;
    mj__time now;
    int inner; /* what a turn within the turn gave */
};

static bool work(void *arg) {
    struct worker *worker = arg;
    worker->runs++;
    mark('w');
    if (worker->freed != NULL) {
        mj__loop_free_later(worker->loop, worker->freed);
    }
    if (worker->flush != NULL) {
        mj__loop_flush(worker->loop, &worker->flush->deferred);
    }
    worker->now = mj__loop_now(worker->loop);
    worker->inner = mj__loop_turn(worker->loop, false);
    return worker->more > 0 && worker->more-- > 0;
}

static void freed(struct mj__deferred *deferred) {
    mark('F');
    free(deferred);
}

static void mark_timer(struct mj__timer *timer) {
    (void)timer;
    mark('t');
}

static void mark_ready(struct mj__watch *watch, bool readable, bool writable) {
    (void)readable, (void)writable;
    mark('r');
    mj__watch_arm(watch, false, false);
}

static void a_turn_has_its_order(void) {
    struct mj__loop *loop = loop_open();
    struct guest *guest = guest_new(loop);
    struct call flush = {.deferred.run = call_run, .loop = loop};
    struct mj__timer timer = {.fire = mark_timer};
    struct mj__deferred *late = calloc(1, sizeof *late);
    NEED(late != NULL);
    late->run = freed;
    struct worker worker = {.loop = loop, .flush = &flush, .freed = late};
    guest->watch.ready = mark_ready;
    CHECK(mj__watch_arm(&guest->watch, false, true) == 0);
    mj__loop_work(loop, work, &worker);
    CHECK(mj__timer_set(loop, &timer, 0) == 0);
    memset(trace, 0, sizeof trace);
    NEED(mj__loop_turn(loop, true) == 0);
    CHECK(strcmp(trace, "rtwfF") == 0);
    CHECK(worker.inner == -1);
    guest_free(guest);
    mj__loop_close(loop);
}

static void ready_work_does_not_wait(void) {
    struct mj__loop *loop = loop_open();
    struct worker worker = {.loop = loop, .more = 3};
    mj__loop_work(loop, work, &worker);
    memset(trace, 0, sizeof trace);
    mj__loop_wake(loop);
    for (unsigned i = 1; i <= 4; i++) { /* none of them would come back from a wait */
        NEED(mj__loop_turn(loop, true) == 0);
        CHECK(worker.runs == i);
    }
    mj__loop_close(loop);
}

static void note_now(struct mj__deferred *deferred) {
    struct call *call = (struct call *)deferred;
    struct worker *worker = (struct worker *)(void *)call->then;
    mj__time now = mj__loop_now(call->loop);
    CHECK(now > worker->now);
    CHECK(mj__loop_now(call->loop) == now);
}

static void the_clock_is_read_twice_a_turn(void) {
    struct mj__loop *loop = loop_open();
    struct worker worker = {.loop = loop};
    struct call flush = {
        .deferred.run = note_now, .loop = loop, .then = (struct call *)(void *)&worker};
    worker.flush = &flush;
    mj__loop_work(loop, work, &worker);
    uint64_t reads = mj__loop_counters(loop)->clock_reads;
    NEED(mj__loop_turn(loop, false) == 0);
    CHECK(mj__loop_counters(loop)->clock_reads == reads + 2);
    mj__time now = mj__loop_now(loop);
    CHECK(now > worker.now);
    CHECK(mj__loop_now(loop) > now);
    mj__loop_close(loop);
}

static void frees_run_at_close(void) {
    struct mj__loop *loop = loop_open();
    struct mj__deferred *late = calloc(1, sizeof *late);
    NEED(late != NULL);
    late->run = freed;
    memset(trace, 0, sizeof trace);
    mj__loop_free_later(loop, late);
    mj__loop_close(loop);
    CHECK(strcmp(trace, "F") == 0);
}

/* ---- others on the base ---- */

static void other_ready(evutil_socket_t fd, short what, void *arg) {
    (void)what, (void)arg;
    char byte;
    CHECK(read(fd, &byte, 1) == 1);
    mark('o');
}

static void others_are_served(void) {
    struct mj__loop *loop = loop_open();
    struct guest *guest = guest_new(loop);
    struct alarm alarm = alarm_of(loop);
    int pair[2];
    NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    NEED(mj__watch_arm(&guest->watch, true, false) == 0);
    struct event_base *base = mj__loop_base(loop);
    NEED(base != NULL);
    CHECK(mj__loop_base(loop) == base);
    struct event *other = event_new(base, pair[0], EV_READ | EV_PERSIST, other_ready, NULL);
    NEED(other != NULL && event_add(other, NULL) == 0);
    memset(trace, 0, sizeof trace);

    NEED(mj__loop_turn(loop, false) == 0);
    CHECK(guest->calls == 0 && trace[0] == '\0');
    NEED(write(pair[1], "x", 1) == 1);
    NEED(mj__loop_turn(loop, true) == 0);
    CHECK(guest->calls == 0 && strcmp(trace, "o") == 0);
    NEED(write(guest->pair[1], "x", 1) == 1);
    NEED(mj__loop_turn(loop, true) == 0);
    CHECK(guest->calls == 1 && strcmp(trace, "o") == 0);
    NEED(write(pair[1], "x", 1) == 1 && write(guest->pair[1], "x", 1) == 1);
    NEED(mj__loop_turn(loop, false) == 0);
    CHECK(guest->calls == 2 && strcmp(trace, "oo") == 0);
    fired = 0;
    CHECK(mj__timer_set(loop, &alarm.timer, mj__clock() + MJ__SECOND / 200) == 0);
    while (fired == 0) {
        NEED(mj__loop_turn(loop, true) == 0);
    }
    CHECK(alarm.at >= alarm.timer.when);
    event_free(other);
    close(pair[0]);
    close(pair[1]);
    guest_free(guest);
    mj__loop_close(loop);
}

/* ---- the world outside ---- */

static int open_and_turn(void) {
    struct mj__error error = {0};
    struct mj__loop *loop = mj__loop_open(&error);
    if (loop == NULL) {
        return strstr(error.text, "descriptors") != NULL ? 1 : 2;
    }
    int status = mj__loop_turn(loop, false);
    mj__loop_close(loop);
    return status == 0 ? 0 : 3;
}

static void few_descriptors_are_an_error(void) {
    for (int limit = 3; limit < 9; limit++) {
        CHECK(check_with_descriptors(limit, open_and_turn) == 1);
    }
    CHECK(check_with_descriptors(9, open_and_turn) == 0);
}

/* Answers the first byte, so that whoever wrote it knows that the loop was asleep. */
static void echo_byte(struct mj__watch *watch, bool readable, bool writable) {
    (void)readable, (void)writable;
    mark('r');
    char byte;
    NEED(read(watch->fd, &byte, 1) == 1);
    NEED(write(watch->fd, &byte, 1) == 1);
}

/* In a process of its own: 0 when two bytes come to the descriptor, and then the deadline. */
static int bytes_and_deadline(int fd, mj__time deadline) {
    struct mj__loop *loop = loop_open();
    struct mj__watch watch = {.ready = echo_byte};
    struct mj__timer timer = {.fire = mark_timer};
    memset(trace, 0, sizeof trace);
    NEED(mj__watch_open(loop, &watch, fd) == 0);
    NEED(mj__watch_arm(&watch, true, false) == 0);
    NEED(mj__timer_set(loop, &timer, deadline) == 0);
    while (strchr(trace, 't') == NULL) {
        NEED(mj__loop_turn(loop, true) == 0);
    }
    return strcmp(trace, "rrt") == 0 ? 0 : 1;
}

static void wait_until_asleep(pid_t process) {
    char path[32], state = '?';
    snprintf(path, sizeof path, "/proc/%d/stat", (int)process);
    mj__time deadline = mj__clock() + 5 * MJ__SECOND;
    while (state != 'S' && mj__clock() < deadline) {
        FILE *stat = fopen(path, "r");
        NEED(stat != NULL);
        NEED(fscanf(stat, "%*d %*s %c", &state) == 1);
        fclose(stat);
    }
    NEED(state == 'S');
}

static void a_stopped_process_sees_replies_first(void) {
    int ends[2];
    NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    mj__time deadline = mj__clock() + MJ__SECOND / 2;
    pid_t child = fork();
    NEED(child >= 0);
    if (child == 0) {
        _exit(bytes_and_deadline(ends[0], deadline));
    }
    int status = 0;
    char byte = 'x';
    NEED(write(ends[1], &byte, 1) == 1);
    NEED(read(ends[1], &byte, 1) == 1);
    wait_until_asleep(child);
    NEED(kill(child, SIGSTOP) == 0);
    NEED(waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status));
    wait_until(deadline);
    NEED(write(ends[1], &byte, 1) == 1);
    NEED(kill(child, SIGCONT) == 0);
    NEED(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    close(ends[0]);
    close(ends[1]);
}

int main(void) {
    static const struct check checks[] = {
        {"ten thousand timers fire in order, none early", timers_fire_in_order},
        {"timers of one moment fire as they were set", equal_timers_fire_as_set},
        {"the timerfd is set only for an earlier moment", later_moments_arm_nothing},
        {"a timer that sets itself for the past waits a turn", a_timer_cannot_hold_the_turn},
        {"turns that do not wait need no timerfd", polling_needs_no_timerfd},
        {"200 ready descriptors are seen before a deadline", deadlines_come_last},
        {"descriptors that stay ready cannot hold the turn", a_crowd_cannot_hold_the_turn},
        {"a watch is called for what is armed, once", arms_are_what_was_asked},
        {"arming and closing twice changes nothing", arming_twice_changes_nothing},
        {"no watch is called after its close", nobody_is_called_after_close},
        {"a watch that another one closed is not called", a_watch_can_close_the_next},
        {"a descriptor that is used again is a new one", descriptors_are_used_again},
        {"a watch that was armed anew hears of nothing else", a_pass_knows_the_latest_arms},
        {"a hang-up is whatever a watch waits for", a_hang_up_is_what_one_waits_for},
        {"what epoll cannot watch is refused", what_cannot_be_watched_is_refused},
        {"a flush runs once, and can be taken back", flushes_run_once},
        {"a turn: descriptors, timers, work, flushes, frees", a_turn_has_its_order},
        {"a turn does not wait while work is ready", ready_work_does_not_wait},
        {"the clock is read once, and again for the flushes", the_clock_is_read_twice_a_turn},
        {"frees that are due run at close", frees_run_at_close},
        {"others on the base are served too", others_are_served},
        {"too few descriptors are an error, not an exit", few_descriptors_are_an_error},
        {"a process that was stopped sees replies first", a_stopped_process_sees_replies_first},
    };
    return check_all(checks, sizeof checks / sizeof *checks);
}
