/* A turn that sleeps in the read of what is expected: when it may, and when not. */
#include "loop.h"

#include "check.h"

#include <sys/socket.h>
#include <unistd.h>

/* One end of a pair of sockets, of which the other has something to say. */
struct end {
    struct mj__watch watch;
    int peer;
    int called, in_read; /* how often; how often from a sleep in the read */
};

static void on_ready(struct mj__watch *watch, bool readable, bool writable) {
    struct end *end = (struct end *)watch;
    char byte;
    end->called++;
    end->in_read += mj__loop_sleeps_in_read(watch->loop);
    CHECK(readable && !writable);
    CHECK(recv(watch->fd, &byte, 1, MSG_DONTWAIT) == 1);
}

static struct mj__loop *loop_open(void) {
    struct mj__error error;
    struct mj__loop *loop = mj__loop_open(&error);
    NEED(loop != NULL);
    return loop;
}

static void end_open(struct mj__loop *loop, struct end *end) {
    int pair[2];
    NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    *end = (struct end){.watch.ready = on_ready, .peer = pair[1]};
    CHECK(mj__watch_open(loop, &end->watch, pair[0]) == 0);
    CHECK(mj__watch_arm(&end->watch, true, false) == 0);
}

static void end_close(struct end *end) {
    int fd = end->watch.fd;
    mj__watch_close(&end->watch);
    close(fd);
    close(end->peer);
}

static void say(const struct end *end) {
    CHECK(send(end->peer, "x", 1, 0) == 1);
}

/* A turn that sleeps, with this end expected: true when it slept in the read. */
static bool sleeps_in_read(struct mj__loop *loop, struct end *end) {
    int called = end->called, in_read = end->in_read;
    say(end);
    mj__loop_expect(loop, &end->watch);
    CHECK(mj__loop_turn(loop, true) == 0);
    CHECK(end->called == called + 1);
    return end->in_read > in_read;
}

static void what_is_expected_is_slept_in(void) {
    struct mj__loop *loop = loop_open();
    struct end end;
    end_open(loop, &end);
    uint64_t turns = mj__loop_counters(loop)->turns;
    CHECK(sleeps_in_read(loop, &end));
    CHECK(mj__loop_counters(loop)->turns == turns); /* no epoll_wait */
    end_close(&end);
    mj__loop_close(loop);
}

static void it_is_forgotten_with_the_turn(void) {
    struct mj__loop *loop = loop_open();
    struct end end;
    end_open(loop, &end);
    CHECK(sleeps_in_read(loop, &end));
    say(&end);
    CHECK(mj__loop_turn(loop, true) == 0);
    CHECK(end.called == 2 && end.in_read == 1);
    end_close(&end);
    mj__loop_close(loop);
}

static void polls_never_sleep(void) {
    struct mj__loop *loop = loop_open();
    struct end end;
    end_open(loop, &end);
    say(&end);
    mj__loop_expect(loop, &end.watch);
    CHECK(mj__loop_turn(loop, false) == 0);
    CHECK(end.called == 1 && end.in_read == 0);
    end_close(&end);
    mj__loop_close(loop);
}

static void ring(struct mj__timer *timer) {
    (void)timer;
}

static void timers_that_are_near_count(void) {
    struct mj__loop *loop = loop_open();
    struct end end;
    struct mj__timer timer = {.fire = ring};
    end_open(loop, &end);
    CHECK(mj__timer_set(loop, &timer, mj__clock() + 60 * MJ__SECOND) == 0);
    CHECK(sleeps_in_read(loop, &end));
    CHECK(mj__timer_set(loop, &timer, mj__loop_now(loop) + MJ__PATIENCE) == 0);
    CHECK(!sleeps_in_read(loop, &end));
    mj__timer_stop(loop, &timer);
    end_close(&end);
    mj__loop_close(loop);
}

static void others_that_are_urgent_count(void) {
    struct mj__loop *loop = loop_open();
    struct end end, patient, other;
    end_open(loop, &end);
    end_open(loop, &other);
    CHECK(!sleeps_in_read(loop, &end));
    end_close(&other);
    CHECK(sleeps_in_read(loop, &end));
    end_open(loop, &patient);
    CHECK(mj__watch_arm(&patient.watch, false, false) == 0);
    patient.watch.patient = true;
    CHECK(mj__watch_arm(&patient.watch, true, false) == 0);
    CHECK(sleeps_in_read(loop, &end));
    mj__watch_be_urgent(&patient.watch);
    CHECK(!sleeps_in_read(loop, &end));
    end_close(&patient);
    CHECK(sleeps_in_read(loop, &end));
    end_close(&end);
    mj__loop_close(loop);
}

static void what_waits_to_be_writable_is_not_slept_in(void) {
    struct mj__loop *loop = loop_open();
    struct end end;
    end_open(loop, &end);
    CHECK(mj__watch_arm(&end.watch, false, false) == 0);
    say(&end);
    mj__loop_expect(loop, &end.watch);
    struct mj__timer timer = {.fire = ring};
    CHECK(mj__timer_set(loop, &timer, mj__clock() + 30 * MJ__SECOND / 1000) == 0);
    CHECK(mj__loop_turn(loop, true) == 0);
    CHECK(end.called == 0);
    mj__timer_stop(loop, &timer);
    end_close(&end);
    mj__loop_close(loop);
}

static void what_is_closed_is_not_slept_in(void) {
    struct mj__loop *loop = loop_open();
    struct end end, other;
    end_open(loop, &end);
    end_open(loop, &other);
    mj__loop_expect(loop, &end.watch);
    end_close(&end);
    say(&other);
    CHECK(mj__loop_turn(loop, true) == 0);
    CHECK(end.called == 0 && other.called == 1 && other.in_read == 0);
    end_close(&other);
    mj__loop_close(loop);
}

int main(void) {
    static const struct check checks[] = {
        {"a turn sleeps in the read of what is expected", what_is_expected_is_slept_in},
        {"what is expected is forgotten with the turn", it_is_forgotten_with_the_turn},
        {"a turn that does not wait sleeps in no read", polls_never_sleep},
        {"a turn with a timer near sleeps in no read", timers_that_are_near_count},
        {"nor does one with somebody urgent", others_that_are_urgent_count},
        {"nor in what does not wait to be readable", what_waits_to_be_writable_is_not_slept_in},
        {"nor in what is closed", what_is_closed_is_not_slept_in},
    };
    return check_all(checks, sizeof checks / sizeof *checks);
}
