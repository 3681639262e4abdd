/* limit: how fast this machine lets anybody talk to a memcached. One thread, plain sockets.
 * Requests are made beforehand and sent over and over; a turn is one receive and one send;
 * replies are parsed, checked and thrown away. What a client costs beyond this is its own.
 *
 *     limit MODE [--depth N] [--connections N] [--seconds S] [--size BYTES] HOST PORT [SECONDS]
 *
 * MODE is get, mg, set, ms, multi-get, mixed (one set in ten, else get), large (get of 1 MiB), or
 * a workload of the tables: P1, P2, ..., a short form of these (see `plans`). The depth is how
 * many requests of a connection are in flight, with multi-get how many keys a request asks for.
 * A HOST that begins with / is the path of a unix socket; its PORT is 0.
 *
 * It stores what it asks for, warms up for a tenth of the time, measures, and prints a line of
 * JSON. `operations` (keys, with multi-get), `user` and `system` (CPU seconds of this process),
 * `voluntary` and `involuntary` (context switches) and `calls` (receive, send, wait) belong to
 * the measured time; `answered` counts operations from the first to the last, without stores.
 *
 * Exit status: 0 well, 1 the server failed or answered wrongly, 2 bad arguments, 3 no such
 * mode. */

#include "limit.h"
#include "contender.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum {
    DEPTH_MOST = 1000,
    CONNECTIONS_MOST = 1000,
    SECONDS_MOST = 600,
    SIZE_LEAST = 2 * KEY_SIZE,
    SIZE_MOST = 64 << 20,
    SENT_MOST = 256 << 20, /* bytes of all requests together */
    CLOCK_EVERY = 32,      /* turns of one connection: read in each it would cost 1% */
};

/* ---- what to measure ---- */

static const struct plan plans[] = {
    {"get", GET, 1, 1, 100, 1, NULL, NULL},
    {"mg", MG, 1, 1, 100, 1, NULL, NULL},
    {"set", SET, 1, 1, 100, 1, NULL, NULL},
    {"ms", MS, 1, 1, 100, 1, NULL, NULL},
    {"multi-get", MULTI_GET, 100, 1, 100, 1, NULL, NULL},
    {"mixed", MIXED, 1, 1, 100, 1, NULL, NULL},
    {"large", GET, 1, 1, 1 << 20, 1, NULL, NULL},
    {"P1", GET, 1, 1, 100, 1, NULL, NULL},
    {"P2", MG, 100, 1, 100, 1, NULL, NULL},
    {"P3", MULTI_GET, 100, 1, 100, 1, NULL, NULL},
    {"P4a", SET, 1, 1, 100, 1, NULL, NULL},
    {"P4b", SET, 100, 1, 100, 1, NULL, NULL},
    {"P5", GET, 1, 1, 1 << 20, 1, NULL, NULL},
    {"P5s", GET, 1, 1, 1 << 20, 1, NULL, NULL},
    {"P6", GET, 1, 50, 100, 1, NULL, NULL},
    {"P7", MIXED, 1, 50, 100, 1, NULL, NULL},
};

static struct plan plan_named(const char *name) {
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++)
        if (strcmp(plans[i].name, name) == 0)
            return plans[i];
    fail(UNKNOWN, "there is no mode %s", name);
}

static void plan_option(struct plan *plan, const char *name, const char *text) {
    if (strcmp(name, "--depth") == 0)
        plan->depth = (int)number(name, text, 1, DEPTH_MOST);
    else if (strcmp(name, "--connections") == 0)
        plan->connections = (int)number(name, text, 1, CONNECTIONS_MOST);
    else if (strcmp(name, "--size") == 0)
        plan->size = (size_t)number(name, text, SIZE_LEAST, SIZE_MOST);
    else if (strcmp(name, "--seconds") == 0)
        plan->seconds = number(name, text, 0.01, SECONDS_MOST);
    else
        fail(MISUSED, "there is no option %s", name);
}

static struct plan plan_read(char **words) {
    if (!words[0])
        fail(MISUSED, "it takes MODE [OPTION N]... HOST PORT [SECONDS]");
    struct plan plan = plan_named(*words++);
    const char *places[3] = {NULL};
    int count = 0;
    for (; *words; words++) {
        if (strncmp(*words, "--", 2) == 0) {
            plan_option(&plan, words[0], words[1]);
            words++; /* its number */
        } else if (count < 3) {
            places[count++] = *words;
        } else {
            fail(MISUSED, "%s is one argument too many", *words);
        }
    }
    if (count < 2)
        fail(MISUSED, "HOST and PORT are missing");
    plan.host = places[0];
    plan.port = places[1];
    if (count == 3)
        plan_option(&plan, "--seconds", places[2]);
    if ((double)plan.depth * (double)plan.size > SENT_MOST / 2.0)
        fail(MISUSED, "depth times size is more than %d bytes", SENT_MOST / 2);
    return plan;
}

/* ---- all connections ---- */

struct pool {
    struct link *links;
    int count;
    int epoll;
};

static struct pool pool_open(const struct plan *plan) {
    struct pool pool = {.count = plan->connections, .epoll = epoll_create1(EPOLL_CLOEXEC)};
    if (pool.epoll < 0)
        fail(WRONG, "epoll: %s", strerror(errno));
    pool.links = allocate((size_t)pool.count, sizeof *pool.links);
    for (int i = 0; i < pool.count; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &pool.links[i]};
        link_open(&pool.links[i], plan);
        if (epoll_ctl(pool.epoll, EPOLL_CTL_ADD, pool.links[i].fd, &event) < 0)
            fail(WRONG, "epoll: %s", strerror(errno));
    }
    return pool;
}

static void pool_close(struct pool *pool) {
    for (int i = 0; i < pool->count; i++)
        link_close(&pool->links[i]);
    free(pool->links);
    close(pool->epoll);
}

/* One connection is waited for by its receive alone. */
static void pool_turn(struct pool *pool, struct tally *tally) {
    if (pool->count == 1) {
        link_turn(pool->links, tally);
        return;
    }
    struct epoll_event ready[CONNECTIONS_MOST];
    int count = epoll_wait(pool->epoll, ready, pool->count, -1);
    if (count < 0)
        fail(WRONG, "epoll: %s", strerror(errno));
    tally->calls++;
    for (int i = 0; i < count; i++)
        link_turn(ready[i].data.ptr, tally);
}

/* Goes round for so long. */
static void pool_run(struct pool *pool, double seconds, struct tally *tally) {
    int turns = pool->count == 1 ? CLOCK_EVERY : 1;
    double start = now(), passed = 0;
    while (passed < seconds) {
        for (int i = 0; i < turns; i++)
            pool_turn(pool, tally);
        passed = now() - start;
    }
}

/* ---- the program ---- */

/* What the requests will ask for, over a connection of its own. */
static void store(const struct plan *plan, int keys) {
    struct script script = script_make(SET, keys, 1, plan->size);
    struct link link = {0};
    struct tally unused = {0};
    link_open(&link, plan);
    link_play(&link, &script, 0);
    for (int i = 0; i < keys; i++) {
        link_send(&link, 1, &unused);
        link_drain(&link, &unused);
    }
    link_close(&link);
    script_free(&script);
}

/* Connections begin at different places, so that not all set at the same moment. */
static void start(struct pool *pool, const struct script *script, int depth,
                  struct tally *tally) {
    for (int i = 0; i < pool->count; i++) {
        link_play(&pool->links[i], script, i % script->requests);
        link_send(&pool->links[i], depth, tally);
    }
}

static void measure(struct pool *pool, const struct plan *plan, struct tally *tally) {
    pool_run(pool, plan->seconds / 10, tally);
    struct tally warm = *tally;
    struct measured measured = {.workload = plan->name, .before = reading_take()};
    pool_run(pool, plan->seconds, tally);
    measured.after = reading_take();
    measured.operations = tally->operations - warm.operations;
    measured.calls = (long long)(tally->calls - warm.calls);
    for (int i = 0; i < pool->count; i++)
        link_drain(&pool->links[i], tally);
    char more[128];
    snprintf(more, sizeof more,
             ",\"depth\":%d,\"connections\":%d,\"size\":%zu,\"answered\":%llu", plan->depth,
             plan->connections, plan->size, tally->operations);
    measured_print(&measured, more);
}

int main(int argc, char **argv) {
    (void)argc;
    struct plan plan = plan_read(argv + 1);
    be_patient(plan.seconds * 1.1);

    int keys = plan.mode == MULTI_GET ? plan.depth : 1;
    int depth = plan.mode == MULTI_GET ? 1 : plan.depth;
    int requests = depth;
    if (plan.mode == MIXED)
        requests = (depth + MIXED_CYCLE - 1) / MIXED_CYCLE * MIXED_CYCLE;
    struct script script = script_make(plan.mode, requests, keys, plan.size);
    store(&plan, requests * keys);
    struct pool pool = pool_open(&plan);
    struct tally tally = {0};
    start(&pool, &script, depth, &tally);
    measure(&pool, &plan, &tally);
    pool_close(&pool);
    script_free(&script);
    return WELL;
}
