/* sweep.c: for each kind of call and each way to fail, the n-th fails, n from 1 until the scenario
 * no longer comes so far. Prints one "ok" or "not ok" a kind of call and scenario, and behind "#"
 * how many calls were swept and what came of them. */
#include "sweep.h"

#include "ledger.h"
#include "servers.h"

#include <errno.h>
#include <event2/event.h>
#include <malloc.h>
#include <netdb.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    HANG = 60,       /* seconds for a round; one that takes more ends the program */
    LET_GO = 5000,   /* milliseconds for helper threads to let go of what they have */
    MOST_FAULTS = 5, /* of one sweep, which then ends */
    MANY = 400       /* places */
};

struct sweep_round sweep_round;

/* ---- ways to fail ---- */

#define K(name) SWEEP_KIND(MJ__##name)
#define FAILS(call, code, kinds) \
    { FAULT_##call, #code, FAULT_FAILS, code, FAULT_ONCE, false, kinds }
#define GOES_ON(call, code, kinds) \
    { FAULT_##call, #code " from then on", FAULT_FAILS, code, FAULT_ON, false, kinds }
#define UNNOTICED(call, code) \
    { FAULT_##call, #code, FAULT_FAILS, code, FAULT_ONCE, true, 0 }
#define TELLS(code, kinds) \
    { FAULT_GETSOCKOPT, "SO_ERROR " #code, FAULT_TELLS, code, FAULT_ONCE, false, kinds }

/* What Linux really gives, of what there is. A loop that cannot turn (epoll_wait, timerfd_settime)
 * is told to its host, who turns it again: so nobody else notices. */
static const struct fault_way ways[] = {
    FAILS(MEMORY, ENOMEM, K(NO_MEMORY) | K(CANCELLED)),
    GOES_ON(MEMORY, ENOMEM, K(NO_MEMORY) | K(CANCELLED)),

    UNNOTICED(RECVMSG, EINTR),
    UNNOTICED(RECVMSG, EAGAIN),
    {FAULT_RECVMSG, "EINTR every other time", FAULT_FAILS, EINTR, FAULT_EVERY_OTHER, true, 0},
    {FAULT_RECVMSG, "one byte", FAULT_SHORTENS, 0, FAULT_ONCE, true, 0},
    {FAULT_RECVMSG, "one byte every other time", FAULT_SHORTENS, 0, FAULT_EVERY_OTHER, true, 0},
    {FAULT_RECVMSG, "the end", FAULT_ENDS, 0, FAULT_ONCE, false, K(CLOSED)},
    FAILS(RECVMSG, ECONNRESET, K(RESET)),
    FAILS(RECVMSG, ETIMEDOUT, K(TIMEOUT)),
    FAILS(RECVMSG, EHOSTUNREACH, K(RESET)),
    FAILS(RECVMSG, ENOMEM, K(NO_MEMORY)),

    UNNOTICED(READ, EINTR),
    UNNOTICED(READ, EAGAIN),

    UNNOTICED(SENDMSG, EINTR),
    UNNOTICED(SENDMSG, EAGAIN),
    {FAULT_SENDMSG, "EINTR every other time", FAULT_FAILS, EINTR, FAULT_EVERY_OTHER, true, 0},
    {FAULT_SENDMSG, "one byte", FAULT_SHORTENS, 0, FAULT_ONCE, true, 0},
    {FAULT_SENDMSG, "one byte every other time", FAULT_SHORTENS, 0, FAULT_EVERY_OTHER, true, 0},
    FAILS(SENDMSG, ECONNRESET, K(RESET)),
    FAILS(SENDMSG, EPIPE, K(RESET)),
    FAILS(SENDMSG, ETIMEDOUT, K(TIMEOUT)),
    FAILS(SENDMSG, ENETUNREACH, K(RESET)),
    FAILS(SENDMSG, ENOMEM, K(NO_MEMORY)),
    FAILS(SENDMSG, ENOBUFS, K(NO_MEMORY)),
    GOES_ON(SENDMSG, EPIPE, K(RESET)),

    FAILS(SOCKET, EMFILE, K(UNREACHABLE)),
    FAILS(SOCKET, ENFILE, K(UNREACHABLE)),
    FAILS(SOCKET, ENOBUFS, K(UNREACHABLE)),
    FAILS(SOCKET, ENOMEM, K(UNREACHABLE)),
    FAILS(SOCKET, EAFNOSUPPORT, K(UNREACHABLE)),
    FAILS(SOCKET, EACCES, K(UNREACHABLE)),
    GOES_ON(SOCKET, EMFILE, K(UNREACHABLE)),

    {FAULT_CONNECT, "EINTR, and goes on", FAULT_DOES, EINTR, FAULT_ONCE, true, 0},
    FAILS(CONNECT, ECONNREFUSED, K(CONNECT_REFUSED)),
    FAILS(CONNECT, ECONNRESET, K(RESET)),
    FAILS(CONNECT, ETIMEDOUT, K(CONNECT_TIMEOUT)),
    FAILS(CONNECT, EHOSTUNREACH, K(UNREACHABLE)),
    FAILS(CONNECT, ENETUNREACH, K(UNREACHABLE)),
    FAILS(CONNECT, EADDRNOTAVAIL, K(UNREACHABLE)),
    FAILS(CONNECT, EAGAIN, K(UNREACHABLE)),
    FAILS(CONNECT, EACCES, K(UNREACHABLE)),
    FAILS(CONNECT, ENOBUFS, K(UNREACHABLE)),
    GOES_ON(CONNECT, ENETUNREACH, K(UNREACHABLE)),

    {FAULT_CONNECT_UNIX, "EINTR, and goes on", FAULT_DOES, EINTR, FAULT_ONCE, true, 0},
    UNNOTICED(CONNECT_UNIX, EAGAIN),
    FAILS(CONNECT_UNIX, ECONNREFUSED, K(CONNECT_REFUSED)),
    FAILS(CONNECT_UNIX, ENOENT, K(CONNECT_REFUSED)),
    FAILS(CONNECT_UNIX, ENOTDIR, K(CONNECT_REFUSED)),
    FAILS(CONNECT_UNIX, EACCES, K(UNREACHABLE)),
    FAILS(CONNECT_UNIX, ENOMEM, K(UNREACHABLE)),
    GOES_ON(CONNECT_UNIX, ECONNREFUSED, K(CONNECT_REFUSED)),

    FAILS(SETSOCKOPT, ENOBUFS, K(UNREACHABLE)),
    FAILS(SETSOCKOPT, EPERM, K(UNREACHABLE)),
    GOES_ON(SETSOCKOPT, ENOMEM, K(UNREACHABLE)),

    FAILS(GETSOCKOPT, ENOBUFS, K(UNREACHABLE)),
    TELLS(ECONNREFUSED, K(CONNECT_REFUSED)),
    TELLS(ECONNRESET, K(RESET)),
    TELLS(ETIMEDOUT, K(CONNECT_TIMEOUT)),
    TELLS(EHOSTUNREACH, K(UNREACHABLE)),
    TELLS(ENETUNREACH, K(UNREACHABLE)),

    UNNOTICED(NAMES, ENOBUFS),

    FAILS(EPOLL_CREATE, EMFILE, K(UNREACHABLE)),
    FAILS(EPOLL_CREATE, ENFILE, K(UNREACHABLE)),
    FAILS(EPOLL_CREATE, ENOMEM, K(NO_MEMORY)),

    FAILS(EPOLL_CTL, ENOMEM, K(NO_MEMORY)),
    FAILS(EPOLL_CTL, ENOSPC, K(NO_MEMORY)),
    GOES_ON(EPOLL_CTL, ENOSPC, K(NO_MEMORY)),

    UNNOTICED(EPOLL_WAIT, EINTR),
    {FAULT_EPOLL_WAIT, "EINTR every other time", FAULT_FAILS, EINTR, FAULT_EVERY_OTHER, true,
     0},
    UNNOTICED(EPOLL_WAIT, EFAULT),

    FAILS(TIMERFD_CREATE, EMFILE, K(UNREACHABLE)),
    FAILS(TIMERFD_CREATE, ENFILE, K(UNREACHABLE)),
    FAILS(TIMERFD_CREATE, ENOMEM, K(NO_MEMORY)),
    UNNOTICED(TIMERFD_SETTIME, ECANCELED),

    FAILS(PIPE, EMFILE, K(UNREACHABLE)),
    FAILS(PIPE, ENFILE, K(UNREACHABLE)),

    FAILS(EVENTFD, EMFILE, K(UNREACHABLE) | K(RESOLVE)),
    FAILS(EVENTFD, ENFILE, K(UNREACHABLE) | K(RESOLVE)),
    FAILS(EVENTFD, ENOMEM, K(NO_MEMORY) | K(RESOLVE)),
    GOES_ON(EVENTFD, EMFILE, K(UNREACHABLE) | K(RESOLVE)),

    FAILS(GETADDRINFO, EAI_AGAIN, K(RESOLVE)),
    FAILS(GETADDRINFO, EAI_FAIL, K(RESOLVE)),
    FAILS(GETADDRINFO, EAI_MEMORY, K(RESOLVE)),
    FAILS(GETADDRINFO, EAI_NONAME, K(RESOLVE)),
    FAILS(GETADDRINFO, EAI_SYSTEM, K(RESOLVE)),
    GOES_ON(GETADDRINFO, EAI_AGAIN, K(RESOLVE)),

    FAILS(THREAD, EAGAIN, K(RESOLVE)),
    FAILS(THREAD, ENOMEM, K(RESOLVE)),
    GOES_ON(THREAD, EAGAIN, K(RESOLVE)),

    FAILS(MUTEX, ENOMEM, K(NO_MEMORY)),
    FAILS(MUTEX, EAGAIN, K(NO_MEMORY)),

    {FAULT_CLOSE, "EINTR, and is done", FAULT_DOES, EINTR, FAULT_ONCE, true, 0},
    {FAULT_CLOSE, "EIO, and is done", FAULT_DOES, EIO, FAULT_ONCE, true, 0},
};

/* ---- a round ---- */

void sweep_note(const char *format, ...) {
    if (sweep_round.fault[0] != '\0') {
        return;
    }
    va_list args;
    va_start(args, format);
    vsnprintf(sweep_round.fault, sizeof sweep_round.fault, format, args);
    va_end(args);
}

bool sweep_harmless(void) {
    return sweep_round.way == NULL || sweep_round.way->harmless;
}

void sweep_meet(enum mj__kind kind, enum mj__phase phase, const char *text, uint32_t expected) {
    if (kind <= MJ__KIND_NONE || kind >= MJ__KINDS) {
        sweep_note("an error without a kind: %s", text);
        return;
    }
    if (text == NULL || text[0] == '\0') {
        sweep_note("an error of kind %s without words", mj__kind_name(kind));
    }
    if (SWEEP_KIND(kind) & expected) {
        return;
    }
    uint32_t may = sweep_round.way != NULL ? sweep_round.way->kinds : 0;
    if (kind == MJ__CLOSED && phase == MJ__PHASE_NONE && !sweep_harmless()) {
        return; /* a call on a connection that had failed before */
    }
    if (!(SWEEP_KIND(kind) & may)) {
        sweep_note("an error of kind %s: %s", mj__kind_name(kind), text);
    }
    sweep_round.kinds |= SWEEP_KIND(kind);
}

static void let_go(long blocks, int descriptors) {
    for (int i = 0; i < LET_GO && fault_blocks() != blocks; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    if (fault_blocks() != blocks) {
        sweep_note("%ld blocks of memory are not given back", fault_blocks() - blocks);
    }
    if (fault_descriptors() != descriptors) {
        sweep_note("%d descriptors are left open", fault_descriptors() - descriptors);
    }
}

static void run_round(void (*play)(void), const struct fault_way *way, uint64_t at) {
    long blocks = fault_blocks();
    int descriptors = fault_descriptors();
    sweep_round.way = way;
    sweep_round.number++;
    sweep_round.kinds = 0;
    ledger_clear();
    alarm(HANG);
    fault_arm(way, at);
    play();
    fault_disarm();
    let_go(blocks, descriptors);
}

/* Nothing fails any more: all is well, in this process too. */
static void run_well(void (*play_well)(void)) {
    char before[sizeof sweep_round.fault];
    memcpy(before, sweep_round.fault, sizeof before);
    sweep_round.fault[0] = '\0';
    uint32_t kinds = sweep_round.kinds;
    long blocks = fault_blocks();
    int descriptors = fault_descriptors();
    sweep_round.way = NULL;
    ledger_clear();
    play_well();
    let_go(blocks, descriptors);
    sweep_round.kinds = kinds;
    if (before[0] != '\0') {
        memcpy(sweep_round.fault, before, sizeof before);
    }
}

/* ---- a sweep ---- */

struct scenario {
    const char *name;
    void (*play)(void), (*play_well)(void);
    uint64_t calls[FAULT_CALLS]; /* when nothing fails */
};

/* From the command line. */
static struct {
    const char *scenario, *call; /* NULL: all */
    uint64_t only;               /* the one place to fail at; 0: all */
    uint64_t step;               /* from place to place, where there are many */
} wanted = {.step = 1};

struct tally {
    uint64_t rounds, fine, met[MJ__KINDS], faults;
    bool struck; /* in the last round */
};

static char hang_text[256];

static void on_alarm(int number) {
    (void)number;
    (void)!write(STDOUT_FILENO, hang_text, strlen(hang_text));
    _exit(1);
}

static void show_fault(const struct scenario *scenario, const struct fault_way *way,
                       uint64_t at, struct tally *tally) {
    tally->faults++;
    printf("# %s: %s number %llu: %s: %s\n", scenario->name, fault_name(way->call),
           (unsigned long long)at, way->name, sweep_round.fault);
    sweep_round.fault[0] = '\0';
}

static void count_round(struct tally *tally) {
    tally->rounds++;
    tally->fine += sweep_round.kinds == 0;
    for (int kind = 0; kind < MJ__KINDS; kind++) {
        tally->met[kind] += (sweep_round.kinds & SWEEP_KIND(kind)) != 0;
    }
}

static void fail_at(const struct scenario *scenario, const struct fault_way *way, uint64_t at,
                    struct tally *tally) {
    snprintf(hang_text, sizeof hang_text, "not ok %s: %s number %llu: %s: hangs\n",
             scenario->name, fault_name(way->call), (unsigned long long)at, way->name);
    run_round(scenario->play, way, at);
    tally->struck = fault_struck() > 0;
    run_well(scenario->play_well);
    if (tally->struck) {
        count_round(tally);
    }
    if (sweep_round.fault[0] != '\0') {
        show_fault(scenario, way, at, tally);
    }
}

/* Until the scenario does not come so far. What it takes may vary a little with the time. */
static void sweep(const struct scenario *scenario, const struct fault_way *way,
                  struct tally *tally) {
    uint64_t most = scenario->calls[way->call], step = most > MANY ? wanted.step : 1;
    if (wanted.only > 0) {
        fail_at(scenario, way, wanted.only, tally);
        return;
    }
    tally->struck = true;
    for (uint64_t at = 1; tally->struck || at <= most; at += step) {
        fail_at(scenario, way, at, tally);
        if (way->span == FAULT_EVERY_OTHER || tally->faults == MOST_FAULTS) {
            break;
        }
    }
}

static void show_tally(const struct fault_way *way, const struct tally *tally) {
    printf("#   %-28s %6llu rounds: fine %llu", way->name, (unsigned long long)tally->rounds,
           (unsigned long long)tally->fine);
    for (int kind = 0; kind < MJ__KINDS; kind++) {
        if (tally->met[kind] > 0) {
            printf(", %s %llu", mj__kind_name((enum mj__kind)kind),
                   (unsigned long long)tally->met[kind]);
        }
    }
    printf("\n");
}

/* All ways of one call to fail. True: all well. */
static bool sweep_call(const struct scenario *scenario, enum fault_call call) {
    uint64_t rounds = 0, faults = 0;
    printf("# %s: %llu calls of %s\n", scenario->name,
           (unsigned long long)scenario->calls[call], fault_name(call));
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        if (ways[i].call == call) {
            struct tally tally = {0};
            sweep(scenario, &ways[i], &tally);
            show_tally(&ways[i], &tally);
            rounds += tally.rounds;
            faults += tally.faults;
        }
    }
    bool fine = faults == 0 && rounds > 0;
    printf("%s %s: each %s fails\n", fine ? "ok" : "not ok", scenario->name, fault_name(call));
    fflush(stdout);
    return fine;
}

/* Counts the calls. */
static bool rehearse(struct scenario *scenario) {
    run_round(scenario->play, NULL, 0);
    for (int call = 0; call < FAULT_CALLS; call++) {
        scenario->calls[call] = fault_count((enum fault_call)call);
    }
    bool fine = sweep_round.fault[0] == '\0';
    printf("%s %s: all is well when nothing fails%s%s\n", fine ? "ok" : "not ok",
           scenario->name, fine ? "" : ": ", sweep_round.fault);
    fflush(stdout);
    sweep_round.fault[0] = '\0';
    return fine;
}

static bool swept[FAULT_CALLS];

static bool run_scenario(struct scenario *scenario) {
    bool fine = rehearse(scenario);
    for (int call = 0; call < FAULT_CALLS; call++) {
        const char *name = fault_name((enum fault_call)call);
        if (scenario->calls[call] > 0 &&
            (wanted.call == NULL || strcmp(wanted.call, name) == 0)) {
            fine = sweep_call(scenario, (enum fault_call)call) && fine;
            swept[call] = true;
        }
    }
    return fine;
}

/* That no kind of call was left out. */
static bool all_swept(void) {
    bool fine = true;
    for (int call = 0; call < FAULT_CALLS; call++) {
        if (!swept[call]) {
            printf("# %s never failed\n", fault_name((enum fault_call)call));
            fine = false;
        }
    }
    printf("%s every kind of call fails somewhere\n", fine ? "ok" : "not ok");
    return fine;
}

static void log_nothing(int severity, const char *text) {
    (void)severity, (void)text;
}

static void read_words(char **words) {
    if (*words != NULL && strcmp(*words, "--step") == 0 && words[1] != NULL) {
        wanted.step = strtoul(words[1], NULL, 10);
        words += 2;
    }
    for (int i = 0; *words != NULL; i++, words++) {
        if (i == 0) {
            wanted.scenario = *words;
        } else if (i == 1) {
            wanted.call = *words;
        } else {
            wanted.only = strtoul(*words, NULL, 10);
        }
    }
}

/* sweep [--step N] [SCENARIO [CALL [N]]]: one scenario, one kind of call, the n-th alone. */
int main(int count, char **words) {
    static struct scenario scenarios[] = {
        {"connections", conn_play, conn_play_well, {0}},
        {"a runtime", runtime_play, runtime_play_well, {0}},
        {"much at once", busy_play, runtime_play_well, {0}},
    };
    bool fine = true;
    (void)count;
    read_words(words + 1);
    setvbuf(stdout, NULL, _IOLBF, 0);
    mallopt(M_MMAP_THRESHOLD, 64 << 20); /* fresh pages for each round would cost the most */
    mallopt(M_TRIM_THRESHOLD, 64 << 20);
    signal(SIGALRM, on_alarm);
    event_set_log_callback(log_nothing);
    if (!servers_start()) {
        servers_stop();
        return 1;
    }
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
        if (wanted.scenario == NULL || strcmp(wanted.scenario, scenarios[i].name) == 0) {
            fine = run_scenario(&scenarios[i]) && fine;
        }
    }
    if (wanted.scenario == NULL) {
        fine = all_swept() && fine;
    }
    servers_stop();
    return !fine;
}
