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

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { WELL = 0, WRONG = 1, MISUSED = 2, UNKNOWN = 3 };

enum {
    DEPTH_MOST = 1000,
    CONNECTIONS_MOST = 1000,
    SECONDS_MOST = 600,
    SIZE_LEAST = 16,
    SIZE_MOST = 64 << 20,
    SENT_MOST = 256 << 20,   /* bytes of all requests together */
    RECEIVE_LEAST = 1 << 16, /* of room for replies */
    CLOCK_EVERY = 32,        /* turns of one connection: read in each it would cost 1% */
    PATIENCE = 10,           /* seconds beyond those asked for, before the server is given up */
    MIXED_CYCLE = 10,        /* in mixed, one request in so many is a set */
};

_Noreturn static void fail(int status, const char *format, ...) {
    va_list list;
    va_start(list, format);
    fputs("limit: ", stderr);
    vfprintf(stderr, format, list);
    va_end(list);
    fputc('\n', stderr);
    exit(status);
}

static void *allocate(size_t count, size_t size) {
    void *memory = calloc(count, size);
    if (!memory)
        fail(WRONG, "out of memory");
    return memory;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* ---- what to measure ---- */

enum mode { GET, MG, SET, MS, MULTI_GET, MIXED };

struct plan {
    const char *name;
    enum mode mode;
    int depth, connections;
    size_t size; /* of a value */
    double seconds;
    const char *host, *port;
};

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

static double number(const char *what, const char *text, double least, double most) {
    char *end = NULL;
    double value = text ? strtod(text, &end) : 0;
    if (!text || end == text || *end || !(value >= least && value <= most))
        fail(MISUSED, "%s is %s; it takes %g to %g", what, text ? text : "missing", least,
             most);
    return value;
}

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

/* ---- requests, and the answers they must get ----
 *
 * Both are circles. The text of the requests stands twice in a row, so that any stretch of the
 * circle can be sent from where it stands. */

enum { KEY_SIZE = 8 }; /* "key-0042"; a value begins and ends with its key */

struct answer {
    char head[32]; /* the reply, or what comes before the length of its value */
    size_t head_size;
    char key[KEY_SIZE + 1];
    bool has_value;
    bool counts; /* as an operation */
    bool last;   /* of its request */
};

struct script {
    char *text;
    size_t *starts; /* of each request in the text, and of what follows the last */
    int requests;
    struct answer *answers;
    int answer_count;
    size_t value_size;
};

static void write_key(char key[KEY_SIZE + 1], int index) {
    snprintf(key, KEY_SIZE + 1, "key-%04u", (unsigned)index % 10000);
}

static void write_value(FILE *text, const char *key, size_t size) {
    fputs(key, text);
    for (size_t i = 2 * KEY_SIZE; i < size; i++)
        fputc('.', text);
    fprintf(text, "%s\r\n", key);
}

/* With MULTI_GET for `keys` keys from this one on. */
static void write_request(FILE *text, enum mode mode, int index, int keys, size_t size) {
    char key[KEY_SIZE + 1];
    write_key(key, index);
    if (mode == MG) {
        fprintf(text, "mg %s v\r\n", key);
    } else if (mode == SET) {
        fprintf(text, "set %s 0 0 %zu\r\n", key, size);
        write_value(text, key, size);
    } else if (mode == MS) {
        fprintf(text, "ms %s %zu\r\n", key, size);
        write_value(text, key, size);
    } else {
        fputs("get", text);
        for (int i = 0; i < keys; i++) {
            write_key(key, index + i);
            fprintf(text, " %s", key);
        }
        fputs("\r\n", text);
    }
}

static struct answer *add_answer(struct script *script, const char *head) {
    struct answer *answer = &script->answers[script->answer_count++];
    answer->head_size = (size_t)snprintf(answer->head, sizeof answer->head, "%s", head);
    return answer;
}

static void add_value(struct script *script, const char *before, int index, const char *after) {
    char key[KEY_SIZE + 1];
    write_key(key, index);
    char head[32];
    snprintf(head, sizeof head, "%s%s%s", before, *after ? key : "", after);
    struct answer *answer = add_answer(script, head);
    memcpy(answer->key, key, sizeof key);
    answer->has_value = answer->counts = true;
}

static void add_answers(struct script *script, enum mode mode, int index, int keys) {
    if (mode == MG) {
        add_value(script, "VA ", index, "");
    } else if (mode == SET) {
        add_answer(script, "STORED\r\n")->counts = true;
    } else if (mode == MS) {
        add_answer(script, "HD\r\n")->counts = true;
    } else {
        for (int i = 0; i < keys; i++)
            add_value(script, "VALUE ", index + i, " 0 ");
        add_answer(script, "END\r\n");
    }
    script->answers[script->answer_count - 1].last = true;
}

/* A circle of so many requests, each for a key of its own (MULTI_GET: for `keys` keys). */
static struct script script_make(enum mode mode, int requests, int keys, size_t size) {
    struct script script = {.requests = requests, .value_size = size};
    script.starts = allocate((size_t)requests * 2 + 1, sizeof *script.starts);
    script.answers = allocate((size_t)requests * ((size_t)keys + 1), sizeof *script.answers);
    size_t text_size = 0;
    FILE *text = open_memstream(&script.text, &text_size);
    if (!text)
        fail(WRONG, "out of memory");
    for (int i = 0; i < 2 * requests; i++) {
        int index = i % requests;
        enum mode verb = mode != MIXED ? mode : index % MIXED_CYCLE == 0 ? SET : GET;
        write_request(text, verb, index, keys, size);
        if (i < requests)
            add_answers(&script, verb, index, keys);
        script.starts[i + 1] = (size_t)ftell(text);
    }
    if (fclose(text) != 0)
        fail(WRONG, "out of memory");
    return script;
}

static void script_free(struct script *script) {
    free(script->text);
    free(script->starts);
    free(script->answers);
}

/* ---- one connection ---- */

struct link {
    int fd;
    const struct script *script;
    int next_request, next_answer; /* places in the script's circles */
    int in_flight;
    char *room; /* for replies */
    size_t room_size, have;
};

struct tally {
    unsigned long long operations, calls;
};

static int connect_unix(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path)
        fail(MISUSED, "the path %s is too long for a socket", path);
    memcpy(address.sun_path, path, strlen(path));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) < 0)
        fail(WRONG, "connect to %s: %s", path, strerror(errno));
    return fd;
}

static int connect_tcp(const char *host, const char *port) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    int status = getaddrinfo(host, port, &hints, &found);
    if (status != 0)
        fail(WRONG, "%s port %s: %s", host, port, gai_strerror(status));
    int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, found->ai_addr, found->ai_addrlen) < 0)
        fail(WRONG, "connect to %s port %s: %s", host, port, strerror(errno));
    freeaddrinfo(found);
    if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)) < 0)
        fail(WRONG, "TCP_NODELAY: %s", strerror(errno));
    return fd;
}

static void link_open(struct link *link, const struct plan *plan) {
    size_t reply = plan->size + 128; /* one whole, with its lines */
    link->room_size = reply > RECEIVE_LEAST ? reply : RECEIVE_LEAST;
    link->room = allocate(link->room_size, 1);
    link->fd =
        *plan->host == '/' ? connect_unix(plan->host) : connect_tcp(plan->host, plan->port);
}

static void link_close(struct link *link) {
    close(link->fd);
    free(link->room);
}

/* Asks for the next so many of the script. */
static void link_send(struct link *link, int requests, struct tally *tally) {
    const struct script *script = link->script;
    size_t at = script->starts[link->next_request];
    size_t end = script->starts[link->next_request + requests];
    while (at < end) {
        ssize_t count = send(link->fd, script->text + at, end - at, MSG_NOSIGNAL);
        if (count < 0)
            fail(WRONG, "send: %s", strerror(errno));
        tally->calls++;
        at += (size_t)count;
    }
    link->next_request = (link->next_request + requests) % script->requests;
    link->in_flight += requests;
}

static void link_receive(struct link *link, struct tally *tally) {
    ssize_t count = recv(link->fd, link->room + link->have, link->room_size - link->have, 0);
    if (count < 0)
        fail(WRONG, "receive: %s", strerror(errno));
    if (count == 0)
        fail(WRONG, "the server closed the connection with %d requests unanswered",
             link->in_flight);
    tally->calls++;
    link->have += (size_t)count;
}

_Noreturn static void fail_reply(const struct answer *answer, const char *text, size_t size) {
    char shown[41] = "";
    for (size_t i = 0; i < size && i < sizeof shown - 1; i++)
        shown[i] = text[i] >= ' ' && text[i] <= '~' ? text[i] : '_';
    char wanted[sizeof answer->head];
    snprintf(wanted, sizeof wanted, "%.*s", (int)strcspn(answer->head, "\r"), answer->head);
    fail(WRONG, "instead of %s%s the server said %s", wanted,
         answer->has_value ? "and the length and bytes of its value" : "", shown);
}

/* How many bytes the answer takes; 0: it is not here in full. Any other reply than the one
 * expected is the end. */
static size_t parse(const char *text, size_t have, const struct answer *answer, size_t size) {
    size_t at = answer->head_size;
    if (memcmp(text, answer->head, have < at ? have : at) != 0)
        fail_reply(answer, text, have);
    if (have < at || !answer->has_value)
        return have < at ? 0 : at;
    size_t length = 0;
    for (; at < have && text[at] >= '0' && text[at] <= '9' && length <= size; at++)
        length = length * 10 + (size_t)(text[at] - '0');
    if (have < at + 2)
        return 0;
    if (length != size || text[at] != '\r' || text[at + 1] != '\n')
        fail_reply(answer, text, have);
    at += 2;
    if (have < at + length + 2)
        return 0;
    const char *end = text + at + length;
    if (memcmp(text + at, answer->key, KEY_SIZE) != 0 ||
        memcmp(end - KEY_SIZE, answer->key, KEY_SIZE) != 0 || end[0] != '\r' || end[1] != '\n')
        fail_reply(answer, text, have);
    return at + length + 2;
}

/* Takes all answers that are here in full; returns how many requests have theirs. */
static int link_take(struct link *link, struct tally *tally) {
    const struct script *script = link->script;
    size_t at = 0, taken = 0;
    int done = 0;
    while (at < link->have) {
        const struct answer *answer = &script->answers[link->next_answer];
        if (done == link->in_flight)
            fail(WRONG, "the server answered what nobody had asked");
        taken = parse(link->room + at, link->have - at, answer, script->value_size);
        if (taken == 0)
            break;
        at += taken;
        tally->operations += answer->counts;
        done += answer->last;
        if (++link->next_answer == script->answer_count)
            link->next_answer = 0;
    }
    link->have -= at;
    if (link->have > 0 && at > 0)
        memmove(link->room, link->room + at, link->have);
    link->in_flight -= done;
    return done;
}

static void link_turn(struct link *link, struct tally *tally) {
    link_receive(link, tally);
    int done = link_take(link, tally);
    if (done > 0)
        link_send(link, done, tally);
}

static void link_drain(struct link *link, struct tally *tally) {
    while (link->in_flight > 0) {
        link_receive(link, tally);
        link_take(link, tally);
    }
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

/* Goes round for so long; returns how long it was. */
static double pool_run(struct pool *pool, double seconds, struct tally *tally) {
    int turns = pool->count == 1 ? CLOCK_EVERY : 1;
    double start = now(), passed = 0;
    while (passed < seconds) {
        for (int i = 0; i < turns; i++)
            pool_turn(pool, tally);
        passed = now() - start;
    }
    return passed;
}

/* ---- the program ---- */

/* What the requests will ask for, over a connection of its own. */
static void store(const struct plan *plan, int keys) {
    struct script script = script_make(SET, keys, 1, plan->size);
    struct link link = {.script = &script};
    struct tally unused = {0};
    link_open(&link, plan);
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
        struct link *link = &pool->links[i];
        link->script = script;
        link->next_request = i % script->requests;
        link->next_answer = 0;
        for (int passed = 0; passed < link->next_request; link->next_answer++)
            passed += script->answers[link->next_answer].last;
        link_send(link, depth, tally);
    }
}

static double seconds_of(struct timeval before, struct timeval after) {
    return (double)(after.tv_sec - before.tv_sec) +
           (double)(after.tv_usec - before.tv_usec) / 1e6;
}

static void measure(struct pool *pool, const struct plan *plan, struct tally *tally) {
    struct rusage before, after;
    pool_run(pool, plan->seconds / 10, tally);
    struct tally warm = *tally;
    getrusage(RUSAGE_SELF, &before);
    double seconds = pool_run(pool, plan->seconds, tally);
    getrusage(RUSAGE_SELF, &after);
    unsigned long long operations = tally->operations - warm.operations;
    unsigned long long calls = tally->calls - warm.calls;
    for (int i = 0; i < pool->count; i++)
        link_drain(&pool->links[i], tally);
    printf("{\"workload\":\"%s\",\"depth\":%d,\"connections\":%d,\"size\":%zu,"
           "\"operations\":%llu,\"seconds\":%.6f,\"user\":%.6f,\"system\":%.6f,"
           "\"voluntary\":%ld,\"involuntary\":%ld,\"calls\":%llu,\"answered\":%llu}\n",
           plan->name, plan->depth, plan->connections, plan->size, operations, seconds,
           seconds_of(before.ru_utime, after.ru_utime),
           seconds_of(before.ru_stime, after.ru_stime), after.ru_nvcsw - before.ru_nvcsw,
           after.ru_nivcsw - before.ru_nivcsw, calls, tally->operations);
}

static void give_up(int signal_number) {
    (void)signal_number;
    static const char words[] = "limit: the server does not answer\n";
    ssize_t unused = write(STDERR_FILENO, words, sizeof words - 1);
    (void)unused;
    _exit(WRONG);
}

int main(int argc, char **argv) {
    (void)argc;
    struct plan plan = plan_read(argv + 1);
    signal(SIGALRM, give_up);
    alarm((unsigned)(plan.seconds * 1.1) + PATIENCE);

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
