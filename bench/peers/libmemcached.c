/* libmemcached: the C client of that name, one thread, in the text protocol as it comes.
 *
 *     libmemcached WORKLOAD HOST PORT SECONDS
 *
 * P1, P5 and P5s get with a multi-get of one key: its values go where the last one was, which
 * memcached_get, with a new block for each, does not offer. P4b sets without replies, as this
 * client's pipelines do, and looks at the end whether the last one came. In P6 and P7 each of
 * 50 connections has a client of its own; all of them ask, then all of them wait. A set of P7
 * waits at once, since this client cannot do otherwise.
 *
 * Exit status: 0 well, 1 the server failed or answered wrongly, 2 bad arguments, 3 no such
 * workload. */
#include "../contender.h"

#include <libmemcached/memcached.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEYS = 100, CONNECTIONS = 50, MIXED_CYCLE = 10, KEY_SIZE = 11, LARGE = 1 << 20 };

struct bench {
    int connections;
    size_t value_size;
    memcached_st *clients[CONNECTIONS];
    memcached_result_st result; /* used again and again */
    char key_texts[KEYS][KEY_SIZE + 1];
    const char *keys[KEYS];
    size_t key_sizes[KEYS];
    char *values[KEYS];
    int turns;
};

/* One turn of a workload; how many operations it was. */
typedef int turn_fn(struct bench *bench);

static void check(const struct bench *bench, memcached_return_t code, const char *what) {
    if (memcached_failed(code))
        fail(WRONG, "%s: %s", what, memcached_strerror(bench->clients[0], code));
}

/* ---- one request each ---- */

static void ask(struct bench *bench, int client, int first, int count) {
    check(bench,
          memcached_mget(bench->clients[client], &bench->keys[first], &bench->key_sizes[first],
                         (size_t)count),
          "get");
}

/* The answer to the key: the very bytes of size and ends that were stored. */
static void take(struct bench *bench, int client, int key) {
    memcached_return_t code;
    memcached_result_st *got =
        memcached_fetch_result(bench->clients[client], &bench->result, &code);
    if (!got)
        fail(WRONG, "get %s: %s", bench->keys[key],
             memcached_strerror(bench->clients[client], code));
    const char *value = memcached_result_value(got), *wanted = bench->values[key];
    size_t end = bench->value_size - KEY_SIZE;
    if (memcached_result_length(got) != bench->value_size ||
        memcmp(value, wanted, KEY_SIZE) != 0 ||
        memcmp(value + end, wanted + end, KEY_SIZE) != 0)
        fail(WRONG, "get %s: a wrong value", bench->keys[key]);
}

/* There is nothing more: the END of a get. */
static void finish(struct bench *bench, int client) {
    memcached_return_t code;
    if (memcached_fetch_result(bench->clients[client], &bench->result, &code))
        fail(WRONG, "get: more values than keys");
    if (code != MEMCACHED_END && code != MEMCACHED_NOTFOUND)
        fail(WRONG, "get: %s", memcached_strerror(bench->clients[client], code));
}

static void set(struct bench *bench, int client, int key) {
    check(bench,
          memcached_set(bench->clients[client], bench->keys[key], KEY_SIZE, bench->values[key],
                        bench->value_size, 0, 0),
          "set");
}

/* ---- one turn each ---- */

static int get_turn(struct bench *bench) {
    ask(bench, 0, 0, 1);
    take(bench, 0, 0);
    finish(bench, 0);
    return 1;
}

static int multi_get_turn(struct bench *bench) {
    ask(bench, 0, 0, KEYS);
    for (int i = 0; i < KEYS; i++)
        take(bench, 0, i);
    finish(bench, 0);
    return KEYS;
}

static int set_turn(struct bench *bench) {
    set(bench, 0, 0);
    return 1;
}

static int quiet_set_turn(struct bench *bench) {
    for (int i = 0; i < KEYS; i++)
        set(bench, 0, i);
    check(bench, memcached_flush_buffers(bench->clients[0]), "flush");
    return KEYS;
}

static int many_turn(struct bench *bench) {
    for (int i = 0; i < CONNECTIONS; i++)
        ask(bench, i, 0, 1);
    for (int i = 0; i < CONNECTIONS; i++) {
        take(bench, i, 0);
        finish(bench, i);
    }
    return CONNECTIONS;
}

static bool sets(const struct bench *bench, int client) {
    return (bench->turns + client) % MIXED_CYCLE == 0;
}

static int mixed_turn(struct bench *bench) {
    for (int i = 0; i < CONNECTIONS; i++) {
        if (sets(bench, i))
            set(bench, i, 0);
        else
            ask(bench, i, 0, 1);
    }
    for (int i = 0; i < CONNECTIONS; i++) {
        if (sets(bench, i))
            continue;
        take(bench, i, 0);
        finish(bench, i);
    }
    return CONNECTIONS;
}

/* ---- all of it ---- */

static const struct workload {
    const char *name;
    turn_fn *turn;
    size_t value_size;
    int connections;
    bool quiet;
} workloads[] = {
    {"P1", get_turn, 100, 1, false},
    {"P3", multi_get_turn, 100, 1, false},
    {"P4a", set_turn, 100, 1, false},
    {"P4b", quiet_set_turn, 100, 1, true},
    {"P5", get_turn, LARGE, 1, false},
    {"P5s", get_turn, LARGE, 1, false},
    {"P6", many_turn, 100, CONNECTIONS, false},
    {"P7", mixed_turn, 100, CONNECTIONS, false},
};

static const struct workload *workload_named(const char *name) {
    for (size_t i = 0; i < sizeof workloads / sizeof *workloads; i++)
        if (strcmp(workloads[i].name, name) == 0)
            return &workloads[i];
    fail(UNKNOWN, "there is no workload %s", name);
}

static void behave(memcached_st *client, memcached_behavior_t behavior) {
    if (memcached_failed(memcached_behavior_set(client, behavior, 1)))
        fail(WRONG, "behavior %s: %s", libmemcached_string_behavior(behavior),
             memcached_last_error_message(client));
}

static memcached_st *client_open(const char *host, unsigned port) {
    memcached_st *client = memcached_create(NULL);
    memcached_return_t code = MEMCACHED_MEMORY_ALLOCATION_FAILURE;
    if (client && *host == '/')
        code = memcached_server_add_unix_socket(client, host);
    else if (client)
        code = memcached_server_add(client, host, (in_port_t)port);
    if (memcached_failed(code))
        fail(WRONG, "%s port %u: %s", host, port, memcached_strerror(client, code));
    behave(client, MEMCACHED_BEHAVIOR_TCP_NODELAY);
    return client;
}

static char *value_of(const char *key, size_t size) {
    char *value = allocate(size, 1);
    memset(value, '.', size);
    memcpy(value, key, KEY_SIZE);
    memcpy(value + size - KEY_SIZE, key, KEY_SIZE);
    return value;
}

/* The first client stores all values; every other the first one again, to be connected. */
static void bench_open(struct bench *bench, const struct workload *workload, const char *host,
                       unsigned port) {
    bench->connections = workload->connections;
    bench->value_size = workload->value_size;
    for (int i = 0; i < KEYS; i++) {
        snprintf(bench->key_texts[i], KEY_SIZE + 1, "bench:%05u", (unsigned)i % 100000);
        bench->keys[i] = bench->key_texts[i];
        bench->key_sizes[i] = KEY_SIZE;
        if (i == 0 || workload->value_size < LARGE)
            bench->values[i] = value_of(bench->keys[i], workload->value_size);
    }
    for (int i = 0; i < workload->connections; i++) {
        bench->clients[i] = client_open(host, port);
        for (int key = 0; key < (i == 0 ? KEYS : 1) && bench->values[key]; key++)
            set(bench, i, key);
    }
    if (!memcached_result_create(bench->clients[0], &bench->result))
        fail(WRONG, "out of memory");
    if (workload->quiet) {
        behave(bench->clients[0], MEMCACHED_BEHAVIOR_NOREPLY);
        behave(bench->clients[0], MEMCACHED_BEHAVIOR_BUFFER_REQUESTS);
    }
}

static void bench_close(struct bench *bench) {
    memcached_result_free(&bench->result);
    for (int i = 0; i < bench->connections; i++)
        memcached_free(bench->clients[i]);
    for (int i = 0; i < KEYS; i++)
        free(bench->values[i]);
}

/* What was sent without replies is done when a get behind it is answered. */
static unsigned long long bench_run(struct bench *bench, const struct workload *workload,
                                    double seconds) {
    unsigned long long operations = 0;
    for (double stop = now() + seconds; now() < stop; bench->turns++)
        operations += (unsigned long long)workload->turn(bench);
    if (workload->quiet)
        get_turn(bench);
    return operations;
}

int main(int argc, char **argv) {
    if (argc != 5)
        fail(MISUSED, "it takes WORKLOAD HOST PORT SECONDS");
    const struct workload *workload = workload_named(argv[1]);
    unsigned port = (unsigned)number("PORT", argv[3], 0, 65535);
    double seconds = number("SECONDS", argv[4], 0.01, 600);
    be_patient(seconds * 1.1);

    struct bench bench = {0};
    bench_open(&bench, workload, argv[2], port);
    unsigned long long warm = bench_run(&bench, workload, seconds / 10);
    struct measured measured = {.workload = workload->name, .calls = -1};
    measured.before = reading_take();
    measured.operations = bench_run(&bench, workload, seconds);
    measured.after = reading_take();
    bench_close(&bench);
    char more[64];
    snprintf(more, sizeof more, ",\"answered\":%llu", warm + measured.operations);
    measured_print(&measured, more);
    return WELL;
}
