/* route.c: where clients connect, and where that leads. */
#include "proxy.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

bool address_parse(struct address *address, const char *text) {
    *address = (struct address){0};
    if (strncmp(text, "unix:", 5) == 0) {
        struct sockaddr_un *un = &address->as.local;
        un->sun_family = AF_UNIX;
        if (strlen(text + 5) >= sizeof un->sun_path)
            return false;
        memcpy(un->sun_path, text + 5, strlen(text + 5) + 1);
        address->size = sizeof *un;
        return true;
    }
    if (strncmp(text, "tcp:", 4) != 0)
        return false;
    char *end;
    unsigned long port = strtoul(text + 4, &end, 10);
    if (*end != '\0' || end == text + 4 || port > 65535)
        return false;
    struct sockaddr_in *in = &address->as.internet;
    in->sin_family = AF_INET;
    in->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    in->sin_port = htons((uint16_t)port);
    address->size = sizeof *in;
    return true;
}

int address_port(const struct address *address) {
    if (address->as.any.sa_family != AF_INET)
        return 0;
    return ntohs(address->as.internet.sin_port);
}

static void listener_ready(struct proxy *proxy, struct handle *handle, uint32_t events) {
    (void)events;
    struct route *route = (struct route *)handle;
    enum { AT_ONCE = 64 };
    for (int i = 0; i < AT_ONCE && route->listener >= 0; i++) {
        int client = accept4(route->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (client < 0)
            return;
        link_open(proxy, route, client);
    }
}

const char *route_listen(struct proxy *proxy, struct route *route) {
    if (route->listener >= 0)
        return NULL;
    struct address *from = &route->from;
    int fd = socket(from->as.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return strerror(errno);
    int yes = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (from->as.any.sa_family == AF_UNIX)
        unlink(from->as.local.sun_path);
    socklen_t size = sizeof from->as;
    /* The port that was free is kept: the route listens there again after it has refused. */
    if (bind(fd, &from->as.any, from->size) != 0 || listen(fd, SOMAXCONN) != 0 ||
        (from->as.any.sa_family == AF_INET && getsockname(fd, &from->as.any, &size) != 0)) {
        const char *why = strerror(errno);
        close(fd);
        return why;
    }
    route->listener = fd;
    route->watched = 0;
    route->handle.ready = listener_ready;
    watch(proxy, &route->handle, fd, &route->watched, EPOLLIN);
    return NULL;
}

void route_refuse(struct route *route) {
    if (route->listener >= 0)
        close(route->listener);
    route->listener = -1;
}
