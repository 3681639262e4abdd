/* link: two network namespaces, joined by a wire that is as slow and as bad as asked for.
 *
 *     link [--delay-ms N] [--jitter-ms N] [--loss-percent N] [--rate-kbit N] [--seed N]
 *
 * Makes two namespaces, each with a loopback and a TUN device of MTU 1500 (10.77.0.1 and
 * 10.77.0.2), and carries packets between the two. The figures hold for each direction by itself;
 * packets never overtake each other. When all is up it prints
 *
 *     READY /proc/PID/fd/A /proc/PID/fd/B
 *
 * two paths to enter the namespaces by (nsenter --net=PATH). It reads lines: "down" (what is
 * sent is lost), "up", "delay-ms N", "loss-percent N", ..., and answers each with "OK". It ends
 * when its standard input does. The namespaces have no names, so they end with the last process
 * in them, whatever happens to this one.
 *
 * Exit status: 0 well, 1 the system refused (it says what), 2 bad arguments, 77 no permission. */

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { WELL = 0, REFUSED = 1, MISUSED = 2, NOT_ALLOWED = 77 };
enum { PACKET_MOST = 1500, QUEUE_MOST = 4096, LINE_MOST = 128 };

#define MILLISECOND INT64_C(1000000)

_Noreturn static void fail(int status, const char *format, ...) {
    int code = errno;
    va_list list;
    va_start(list, format);
    fputs("link: ", stderr);
    vfprintf(stderr, format, list);
    va_end(list);
    if (status == REFUSED)
        fprintf(stderr, ": %s", strerror(code));
    fputc('\n', stderr);
    exit(status == REFUSED && (code == EPERM || code == EACCES) ? NOT_ALLOWED : status);
}

static int64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

/* ---- what the wire is like ---- */

struct wire {
    double delay_ms, jitter_ms, loss_percent, rate_kbit; /* rate 0: as fast as it comes */
    double seed;
    bool down;
};

static double *setting_of(struct wire *wire, const char *name) {
    const struct {
        const char *name;
        double *value;
    } all[] = {
        {"delay-ms", &wire->delay_ms},
        {"jitter-ms", &wire->jitter_ms},
        {"loss-percent", &wire->loss_percent},
        {"rate-kbit", &wire->rate_kbit},
        {"seed", &wire->seed},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strcmp(all[i].name, name) == 0)
            return all[i].value;
    return NULL;
}

/* False where there is no such setting or the text is no number of 0 to a million. */
static bool wire_set(struct wire *wire, const char *name, const char *text) {
    double *value = setting_of(wire, name);
    char *end = NULL;
    double number = text ? strtod(text, &end) : -1;
    if (!value || !text || end == text || *end || !(number >= 0 && number <= 1e6))
        return false;
    *value = number;
    return true;
}

static void parse(struct wire *wire, char **words) {
    for (; *words; words += 2)
        if (strncmp(*words, "--", 2) != 0 || !wire_set(wire, *words + 2, words[1]))
            fail(MISUSED, "bad argument %s %s", *words, words[1] ? words[1] : "(none)");
}

/* ---- namespaces ---- */

static int open_path(const char *path, int flags) {
    int fd = open(path, flags | O_CLOEXEC);
    if (fd < 0)
        fail(REFUSED, "open %s", path);
    return fd;
}

static void control(int fd, unsigned long request, const char *what, struct ifreq *ask) {
    if (ioctl(fd, request, ask) < 0)
        fail(REFUSED, "%s of %s", what, ask->ifr_name);
}

static void raise_device(int fd, struct ifreq *ask) {
    control(fd, SIOCGIFFLAGS, "flags", ask);
    ask->ifr_flags |= IFF_UP | IFF_RUNNING;
    control(fd, SIOCSIFFLAGS, "flags", ask);
}

static void set_address(int fd, struct ifreq *ask, unsigned long request, const char *address) {
    struct sockaddr_in in = {.sin_family = AF_INET};
    inet_pton(AF_INET, address, &in.sin_addr);
    memcpy(&ask->ifr_addr, &in, sizeof in);
    control(fd, request, address, ask);
}

/* A TUN device with this address, in the namespace of this process; its descriptor stays tied
 * to that namespace. */
static int open_tun(const char *own, const char *peer) {
    int tun = open_path("/dev/net/tun", O_RDWR | O_NONBLOCK);
    struct ifreq ask = {.ifr_name = "link0"};
    ask.ifr_flags = IFF_TUN | IFF_NO_PI;
    control(tun, TUNSETIFF, "TUNSETIFF", &ask);
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        fail(REFUSED, "socket");
    set_address(fd, &ask, SIOCSIFADDR, own);
    set_address(fd, &ask, SIOCSIFDSTADDR, peer);
    ask.ifr_mtu = PACKET_MOST;
    control(fd, SIOCSIFMTU, "MTU", &ask);
    raise_device(fd, &ask);
    struct ifreq loopback = {.ifr_name = "lo"};
    raise_device(fd, &loopback);
    close(fd);
    return tun;
}

struct end {
    int space; /* a descriptor of the namespace */
    int tun;
};

static struct end open_end(const char *own, const char *peer) {
    if (unshare(CLONE_NEWNET) < 0)
        fail(REFUSED, "a network namespace");
    struct end end;
    end.space = open_path("/proc/self/ns/net", O_RDONLY);
    end.tun = open_tun(own, peer);
    return end;
}

/* ---- one direction ---- */

struct packet {
    int64_t due;
    size_t size;
    unsigned char bytes[PACKET_MOST];
};

/* A ring of packets on their way, in the order they came. */
struct direction {
    int from, to;
    size_t first, count;
    int64_t free_at; /* when the last packet has left the sender, and when it arrives */
    int64_t last_due;
    unsigned short dice[3];
    struct packet *ring; /* and one place behind it for what is lost */
};

static void direction_open(struct direction *self, int from, int to, unsigned seed) {
    *self = (struct direction){.from = from, .to = to};
    self->dice[0] = (unsigned short)seed;
    self->dice[1] = (unsigned short)(seed >> 16);
    self->dice[2] = 0x330e;
    self->ring = calloc(QUEUE_MOST + 1, sizeof *self->ring);
    if (!self->ring)
        fail(REFUSED, "memory");
}

static int64_t arrival(struct direction *self, const struct wire *wire, size_t size) {
    int64_t now = now_ns();
    if (wire->rate_kbit > 0) {
        double takes = (double)size * 8 / wire->rate_kbit * MILLISECOND;
        self->free_at = (self->free_at > now ? self->free_at : now) + (int64_t)takes;
        now = self->free_at;
    }
    double late = wire->delay_ms + wire->jitter_ms * (2 * erand48(self->dice) - 1);
    int64_t due = now + (late > 0 ? (int64_t)(late * MILLISECOND) : 0);
    if (due < self->last_due)
        due = self->last_due;
    return self->last_due = due;
}

/* Takes what the sender has sent. Where the queue is full a packet is lost, as in a router. */
static void take(struct direction *self, const struct wire *wire) {
    for (;;) {
        bool full = self->count == QUEUE_MOST;
        size_t place = full ? QUEUE_MOST : (self->first + self->count) % QUEUE_MOST;
        struct packet *packet = &self->ring[place];
        ssize_t size = read(self->from, packet->bytes, sizeof packet->bytes);
        if (size <= 0)
            return;
        bool lost = erand48(self->dice) * 100 < wire->loss_percent;
        if (full || lost || wire->down)
            continue;
        packet->size = (size_t)size;
        packet->due = arrival(self, wire, packet->size);
        self->count++;
    }
}

/* Hands over what has arrived by now. */
static void deliver(struct direction *self, const struct wire *wire) {
    int64_t now = now_ns();
    while (self->count > 0 && self->ring[self->first].due <= now) {
        struct packet *packet = &self->ring[self->first];
        /* A device that takes no packet loses it; TCP will send it again. */
        if (!wire->down && write(self->to, packet->bytes, packet->size) < 0 && errno == EINTR)
            continue;
        self->first = (self->first + 1) % QUEUE_MOST;
        self->count--;
    }
}

/* ---- the wire at work ---- */

static bool obey(struct wire *wire, char *line) {
    char *rest = NULL;
    char *name = strtok_r(line, " ", &rest);
    if (!name)
        return false;
    if (strcmp(name, "down") == 0 || strcmp(name, "up") == 0) {
        wire->down = name[0] == 'd';
        return true;
    }
    return wire_set(wire, name, strtok_r(NULL, " ", &rest));
}

/* Reads orders, a line each. False once there will be none. */
static bool listen_to_orders(struct wire *wire) {
    static char line[LINE_MOST];
    static size_t used;
    ssize_t size = read(STDIN_FILENO, line + used, sizeof line - 1 - used);
    if (size <= 0)
        return false;
    used += (size_t)size;
    char *end;
    while ((end = memchr(line, '\n', used))) {
        *end = '\0';
        puts(obey(wire, line) ? "OK" : "what?");
        used -= (size_t)(end + 1 - line);
        memmove(line, end + 1, used);
    }
    return used < sizeof line - 1;
}

static int64_t earlier(int64_t when, const struct direction *self) {
    bool sooner = self->count > 0 && self->ring[self->first].due < when;
    return sooner ? self->ring[self->first].due : when;
}

static void carry(struct wire *wire, struct direction both[2]) {
    struct pollfd fds[] = {
        {STDIN_FILENO, POLLIN, 0}, {both[0].from, POLLIN, 0}, {both[1].from, POLLIN, 0}};
    for (;;) {
        int64_t until = earlier(earlier(INT64_MAX, &both[0]), &both[1]);
        int64_t rest = until == INT64_MAX ? 0 : until - now_ns();
        if (rest < 0)
            rest = 0;
        struct timespec span = {rest / 1000000000, rest % 1000000000};
        ppoll(fds, 3, until == INT64_MAX ? NULL : &span, NULL);
        if (fds[0].revents && !listen_to_orders(wire))
            return;
        for (int i = 0; i < 2; i++) {
            take(&both[i], wire);
            deliver(&both[i], wire);
        }
    }
}

int main(int count, char **words) {
    (void)count;
    struct wire wire = {.seed = 1};
    parse(&wire, words + 1);
    setvbuf(stdout, NULL, _IOLBF, 0);
    /* A sleep may be this much late; the default of 50 us would add to every delay. */
    prctl(PR_SET_TIMERSLACK, 1000);
    struct end a = open_end("10.77.0.1", "10.77.0.2");
    struct end b = open_end("10.77.0.2", "10.77.0.1");
    struct direction both[2];
    direction_open(&both[0], a.tun, b.tun, (unsigned)wire.seed);
    direction_open(&both[1], b.tun, a.tun, (unsigned)wire.seed + 1);
    printf("READY /proc/%d/fd/%d /proc/%d/fd/%d\n", getpid(), a.space, getpid(), b.space);
    carry(&wire, both);
    free(both[0].ring);
    free(both[1].ring);
    return WELL;
}
