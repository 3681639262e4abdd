/* limit: how fast this machine lets anybody talk to a memcached. One thread, plain sockets.
 * Requests are made beforehand and sent over and over; a turn is one receive and one send;
 * replies are parsed, checked and thrown away. What a client costs beyond this is its own.
 *
 *     limit MODE [OPTION N]... HOST PORT [SECONDS]
 *
 * MODE is get, mg, set, ms, multi-get, mixed (one set in ten, else get), large (get of 1 MiB),
 * or a workload of the tables, P1, P2, ..., which is short for one of these with options (see
 * `plans`). A HOST that begins with / is the path of a unix socket; its PORT is 0.
 *
 *     --depth N         requests of a connection in flight; with multi-get: keys of a request
 *     --gather N        as many must be answered before it asks again, at most the depth: with
 *                       1 it keeps the depth, with more it sends and wakes less often
 *     --connections N   each with requests of its own in flight
 *     --size BYTES      of each value
 *     --seconds S       to measure, if SECONDS do not say so
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

/* What is not said is one: a request in flight, a connection, a second; and 100 bytes. */
static const struct plan plans[] = {
    {.name = "get", .mode = GET},
    {.name = "mg", .mode = MG},
    {.name = "set", .mode = SET},
    {.name = "ms", .mode = MS},
    {.name = "multi-get", .mode = MULTI_GET, .depth = 100},
    {.name = "mixed", .mode = MIXED},
    {.name = "large", .mode = GET, .size = 1 << 20},
    {.name = "P1", .mode = GET},
    {.name = "P2", .mode = MG, .depth = 100},
    {.name = "P3", .mode = MULTI_GET, .depth = 100},
    {.name = "P4a", .mode = SET},
    {.name = "P4b", .mode = MS, .depth = 100},
    {.name = "P5", .mode = GET, .size = 1 << 20},
    {.name = "P5s", .mode = GET, .size = 1 << 20, .values = 32},
    {.name = "P6", .mode = GET, .connections = 50},
    {.name = "P7", .mode = MIXED, .connections = 50},
};

static struct plan plan_named(const char *name) {
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++)
        if (strcmp(plans[i].name, name) == 0) {
            struct plan plan = plans[i];
            plan.depth = plan.depth ? plan.depth : 1;
            plan.gather = plan.gather ? plan.gather : 1;
            plan.connections = plan.connections ? plan.connections : 1;
            plan.size = plan.size ? plan.size : 100;
            plan.seconds = 1;
            return plan;
        }
    fail(UNKNOWN, "there is no mode %s", name);
}

static void plan_option(struct plan *plan, const char *name, const char *text) {
    if (strcmp(name, "--depth") == 0)
        plan->depth = (int)number(name, text, 1, DEPTH_MOST);
    else if (strcmp(name, "--gather") == 0)
        plan->gather = (int)number(name, text, 1, DEPTH_MOST);
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
    if (plan.gather > plan.depth)
        plan.gather = plan.depth;
    if (plan.mode == MULTI_GET)
        plan.gather = 1; /* one request is all there is */
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
    char more[160];
    snprintf(more, sizeof more,
             ",\"depth\":%d,\"gather\":%d,\"connections\":%d,\"size\":%zu,\"answered\":%llu",
             plan->depth, plan->gather, plan->connections, plan->size, tally->operations);
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
    if (requests < plan.values)
        requests = plan.values;
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
