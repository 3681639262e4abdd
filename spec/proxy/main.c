/* main.c: the loop of the proxy. Usage: proxy [SEED]. Commands come on standard input
 * (control.c); at its end the proxy ends. */
#include "proxy.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { EVENTS = 64, INPUT_ROOM = 4096, SECOND = 1000000 };

static uint64_t now_us(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * SECOND + (uint64_t)time.tv_nsec / 1000;
}

uint64_t random_below(struct proxy *proxy, uint64_t limit) {
    proxy->seed ^= proxy->seed << 13; /* xorshift64 */
    proxy->seed ^= proxy->seed >> 7;
    proxy->seed ^= proxy->seed << 17;
    return proxy->seed % limit;
}

/* A descriptor of which nothing is wanted is taken out: a hang-up would be told for ever. */
void watch(struct proxy *proxy, struct handle *handle, int fd, uint32_t *watched,
           uint32_t wanted) {
    if (*watched == wanted)
        return;
    struct epoll_event event = {.events = wanted, .data.ptr = handle};
    int change = *watched == 0 ? EPOLL_CTL_ADD : wanted == 0 ? EPOLL_CTL_DEL : EPOLL_CTL_MOD;
    epoll_ctl(proxy->epoll, change, fd, &event);
    *watched = wanted;
}

/* ---- what epoll tells ---- */

struct input {
    struct handle handle;
    char room[INPUT_ROOM];
    size_t size;
    uint32_t watched;
};

static void input_ready(struct proxy *proxy, struct handle *handle, uint32_t events) {
    (void)events;
    struct input *input = (struct input *)handle;
    ssize_t count = read(0, input->room + input->size, INPUT_ROOM - input->size);
    if (count <= 0) {
        proxy->ending = count == 0 || (errno != EINTR && errno != EAGAIN);
        return;
    }
    input->size += (size_t)count;
    char *line = input->room, *end = input->room + input->size, *newline;
    while ((newline = memchr(line, '\n', (size_t)(end - line))) != NULL) {
        *newline = '\0';
        control_line(proxy, line);
        line = newline + 1;
    }
    input->size = (size_t)(end - line);
    memmove(input->room, line, input->size);
    if (input->size == INPUT_ROOM)
        proxy->ending = true;
}

struct alarm {
    struct handle handle;
    int fd;
    uint64_t set; /* UINT64_MAX: it is not */
    uint32_t watched;
};

static void alarm_ready(struct proxy *proxy, struct handle *handle, uint32_t events) {
    (void)proxy, (void)events;
    struct alarm *alarm = (struct alarm *)handle;
    uint64_t times;
    if (read(alarm->fd, &times, sizeof times) > 0)
        alarm->set = UINT64_MAX;
}

static void set_alarm(struct alarm *alarm, uint64_t wake) {
    if (wake == alarm->set)
        return;
    alarm->set = wake;
    struct itimerspec at = {0};
    if (wake != UINT64_MAX) {
        at.it_value.tv_sec = (time_t)(wake / SECOND);
        at.it_value.tv_nsec = (long)(wake % SECOND) * 1000;
    }
    timerfd_settime(alarm->fd, TFD_TIMER_ABSTIME, &at, NULL);
}

/* ---- the loop ---- */

static void bury(struct proxy *proxy) {
    for (struct link **at = &proxy->links; *at;) {
        struct link *link = *at;
        if (!link->dead) {
            at = &link->next;
            continue;
        }
        *at = link->next;
        link_free(link);
    }
}

static void turn(struct proxy *proxy, struct alarm *alarm, bool poll) {
    struct epoll_event events[EVENTS];
    int count = epoll_wait(proxy->epoll, events, EVENTS, poll ? 0 : -1);
    proxy->now = now_us();
    for (int i = 0; i < count; i++) {
        struct handle *handle = events[i].data.ptr;
        handle->ready(proxy, handle, events[i].events);
    }
    uint64_t wake = UINT64_MAX;
    for (struct link *link = proxy->links; link; link = link->next) {
        link_move(proxy, link, &wake);
    }
    bury(proxy); /* only now: an event of this turn may have named a dead link */
    set_alarm(alarm, wake);
}

int main(int argc, char **argv) {
    struct proxy proxy = {.seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1};
    if (proxy.seed == 0)
        proxy.seed = 1;
    proxy.epoll = epoll_create1(EPOLL_CLOEXEC);
    static struct input input = {.handle = {input_ready}};
    static struct alarm alarm = {.handle = {alarm_ready}, .set = UINT64_MAX};
    alarm.fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    fcntl(0, F_SETFL, O_NONBLOCK);
    watch(&proxy, &alarm.handle, alarm.fd, &alarm.watched, EPOLLIN);
    watch(&proxy, &input.handle, 0, &input.watched, EPOLLIN);
    signal(SIGPIPE, SIG_IGN);
    while (!proxy.ending) {
        turn(&proxy, &alarm, alarm.set <= proxy.now);
    }
    for (struct link *link = proxy.links; link; link = link->next)
        link_end(link, END_CLOSE);
    bury(&proxy);
    while (proxy.routes) {
        struct route *route = proxy.routes;
        proxy.routes = route->next;
        route_refuse(route);
        if (route->from.as.any.sa_family == AF_UNIX)
            unlink(route->from.as.local.sun_path);
        scan_forget(route);
        free(route);
    }
    return 0;
}
