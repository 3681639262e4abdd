/* link.c: one client's connection and the one to the server that belongs to it. */
#include "proxy.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

static void set_linger_zero(int fd) {
    struct linger linger = {.l_onoff = 1, .l_linger = 0};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
}

/* Small writes leave at once, or a byte at a time would be no such thing. */
static void set_nodelay(int fd) {
    int yes = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

/* Closing with bytes unread would make the kernel send a reset. */
static void drain(int fd) {
    char room[4096];
    enum { LIMIT = 256 };
    for (int i = 0; i < LIMIT && recv(fd, room, sizeof room, MSG_DONTWAIT) > 0; i++) {
    }
}

static void end_one(struct end *end, enum ending ending) {
    if (end->fd < 0)
        return;
    if (ending == END_RESET) {
        set_linger_zero(end->fd);
    } else {
        shutdown(end->fd, SHUT_WR);
        drain(end->fd);
    }
    close(end->fd); /* leaves the epoll by itself */
    end->fd = -1;
}

void link_end(struct link *link, enum ending ending) {
    if (link->dead)
        return;
    link->dead = true;
    end_one(&link->client, ending);
    end_one(&link->server, ending);
}

void link_free(struct link *link) {
    free(link->flows[UP].room);
    free(link->flows[DOWN].room);
    free(link);
}

/* ---- events ---- */

static void read_from(struct proxy *proxy, struct link *link, enum direction direction) {
    struct flow *flow = &link->flows[direction];
    if (flow_has_room(flow) && !flow_read(proxy, link, direction)) {
        link_end(link, END_RESET);
    }
}

static void client_ready(struct proxy *proxy, struct handle *handle, uint32_t events) {
    struct link *link = ((struct end *)handle)->link;
    if (link->dead)
        return;
    if (events & EPOLLOUT)
        link->flows[DOWN].blocked = false;
    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR))
        read_from(proxy, link, UP);
}

static void server_ready(struct proxy *proxy, struct handle *handle, uint32_t events) {
    struct link *link = ((struct end *)handle)->link;
    if (link->dead)
        return;
    if (events & EPOLLOUT) {
        link->connecting = false; /* if it failed, so does the read below */
        link->flows[UP].blocked = false;
    }
    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR))
        read_from(proxy, link, DOWN);
}

/* ---- opening ---- */

/* -1 when the server refuses. */
static int connect_server(const struct address *to, bool *connecting) {
    int fd = socket(to->as.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    if (connect(fd, &to->as.any, to->size) != 0) {
        *connecting = errno == EINPROGRESS;
        if (!*connecting) {
            close(fd);
            return -1;
        }
    }
    set_nodelay(fd);
    return fd;
}

static struct link *make(struct route *route, int client) {
    struct link *link = calloc(1, sizeof *link);
    if (!link)
        return NULL;
    link->route = route;
    link->mute = route->mode == ACCEPT_MUTE;
    link->client = (struct end){{client_ready}, link, client, 0};
    link->server = (struct end){{server_ready}, link, -1, 0};
    if (!link->mute)
        link->server.fd = connect_server(&route->to, &link->connecting);
    bool fine = link->mute || link->server.fd >= 0;
    if (!flow_open(&link->flows[UP], client, link->server.fd) ||
        !flow_open(&link->flows[DOWN], link->server.fd, client) || !fine) {
        if (link->server.fd >= 0)
            close(link->server.fd);
        link_free(link);
        return NULL;
    }
    return link;
}

void link_open(struct proxy *proxy, struct route *route, int client) {
    set_nodelay(client);
    struct link *link = route->mode == ACCEPT_RESET ? NULL : make(route, client);
    if (!link) {
        if (route->mode == ACCEPT_RESET)
            proxy->counters.resets++;
        set_linger_zero(client);
        close(client);
        return;
    }
    for (int i = UP; i <= DOWN; i++) {
        if (route->cut[i] >= 0)
            link->flows[i].cut_at = (uint64_t)route->cut[i];
    }
    proxy->counters.accepted++;
    if (link->mute)
        proxy->counters.muted++;
    link->next = proxy->links;
    proxy->links = link;
}

/* ---- moving ---- */

static void watch_end(struct proxy *proxy, struct end *end, const struct flow *in,
                      const struct flow *out, bool connecting) {
    if (end->fd < 0)
        return;
    uint32_t wanted = 0;
    if (flow_has_room(in))
        wanted |= EPOLLIN;
    if (out->blocked || connecting)
        wanted |= EPOLLOUT;
    watch(proxy, &end->handle, end->fd, &end->watched, wanted);
}

void link_move(struct proxy *proxy, struct link *link, uint64_t *wake) {
    if (link->dead)
        return;
    if (link->stalled > proxy->now) {
        if (link->stalled < *wake)
            *wake = link->stalled;
        watch(proxy, &link->client.handle, link->client.fd, &link->client.watched, 0);
        if (link->server.fd >= 0) {
            watch(proxy, &link->server.handle, link->server.fd, &link->server.watched, 0);
        }
        return;
    }
    struct flow *up = &link->flows[UP], *down = &link->flows[DOWN];
    if (link->mute) {
        if (up->eof)
            link_end(link, END_CLOSE);
    } else {
        bool fine = true;
        if (!link->connecting && !up->blocked)
            fine = flow_write(proxy, link, UP, wake);
        if (fine && !down->blocked)
            fine = flow_write(proxy, link, DOWN, wake);
        if (!fine)
            link_end(link, up->shut && down->shut ? END_CLOSE : END_RESET);
    }
    if (link->dead)
        return;
    watch_end(proxy, &link->client, up, down, false);
    watch_end(proxy, &link->server, down, up, link->connecting);
}
