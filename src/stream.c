#include "stream.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stddef.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/un.h>
#include <unistd.h>

enum {
    KEEPALIVE_PROBES = 3,
    LONGEST_KEEPALIVE = 32767,  /* seconds; the kernel takes no more */
    LONGEST_PROBE_INTERVAL = 30 /* seconds */
};

/* ---- errors ---- */

static int refused(struct mj__error *error, enum mj__phase phase, int code) {
    switch (code) {
    case ECONNREFUSED:
        mj__fail(error, MJ__CONNECT_REFUSED, "connection refused: nothing listens there");
        break;
    case ENOENT:
    case ENOTDIR:
        mj__fail(error, MJ__CONNECT_REFUSED,
                 "no server there: the socket's path does not exist");
        break;
    case ETIMEDOUT:
        mj__fail(error, MJ__CONNECT_TIMEOUT, "no answer to any attempt to connect");
        break;
    case ECONNRESET:
    case EPIPE:
        mj__fail(error, MJ__RESET, "the peer reset the connection while it was made");
        break;
    case EMFILE:
    case ENFILE:
        mj__fail(error, MJ__UNREACHABLE,
                 "out of file descriptors (%s): close connections or raise ulimit -n",
                 strerror(code));
        break;
    case ENOBUFS:
    case ENOMEM:
        mj__fail(error, MJ__UNREACHABLE, "the system has no memory for a socket (%s)",
                 strerror(code));
        break;
    case EADDRNOTAVAIL:
        mj__fail(error, MJ__UNREACHABLE, "no such address here, or no local port left (%s)",
                 strerror(code));
        break;
    default:
        mj__fail(error, MJ__UNREACHABLE, "cannot connect: %s", strerror(code));
        break;
    }
    error->phase = phase;
    return -1;
}

static void lost(struct mj__error *error, int code) {
    switch (code) {
    case ECONNRESET:
    case EPIPE:
        mj__fail(error, MJ__RESET, "the peer reset the connection (%s)", strerror(code));
        break;
    case ETIMEDOUT:
        mj__fail(error, MJ__TIMEOUT, "the peer no longer answers: the system gave it up (%s)",
                 strerror(code));
        break;
    case ENOMEM:
    case ENOBUFS:
        mj__fail(error, MJ__NO_MEMORY, "the system has no memory for the connection (%s)",
                 strerror(code));
        break;
    default:
        mj__fail(error, MJ__RESET, "the connection broke: %s", strerror(code));
        break;
    }
}

void mj__stream_error(struct mj__error *error, enum mj__phase phase, int code) {
    if (phase == MJ__PHASE_CONNECT) {
        refused(error, phase, code);
        return;
    }
    lost(error, code);
    error->phase = phase;
}

/* ---- tcp and unix sockets ---- */

static int clip(int count) {
    return count < IOV_MAX ? count : IOV_MAX;
}

static ssize_t receive_pieces(int fd, const struct iovec *parts, int count, int flags) {
    struct msghdr message = {
        .msg_iov = (struct iovec *)parts,
        .msg_iovlen = (size_t)clip(count),
    };
    return recvmsg(fd, &message, flags);
}

static ssize_t socket_readv(struct mj__stream *stream, const struct iovec *parts, int count,
                            bool wait) {
    int flags = wait ? 0 : MSG_DONTWAIT;
    ssize_t size;
    do {
        size = count == 1 ? recv(stream->fd, parts->iov_base, parts->iov_len, flags)
                          : receive_pieces(stream->fd, parts, count, flags);
    } while (size < 0 && errno == EINTR);
    return size;
}

static ssize_t send_pieces(int fd, const struct iovec *parts, int count) {
    struct msghdr message = {
        .msg_iov = (struct iovec *)parts,
        .msg_iovlen = (size_t)clip(count),
    };
    return sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* No writev, which would raise SIGPIPE. */
static ssize_t socket_writev(struct mj__stream *stream, const struct iovec *parts, int count) {
    ssize_t size;
    do {
        size = count == 1 ? send(stream->fd, parts->iov_base, parts->iov_len,
                                 MSG_NOSIGNAL | MSG_DONTWAIT)
                          : send_pieces(stream->fd, parts, count);
    } while (size < 0 && errno == EINTR);
    return size;
}

static void socket_close(struct mj__stream *stream) {
    if (stream->fd >= 0) {
        close(stream->fd);
        stream->fd = -1;
    }
}

static const struct mj__stream_ops socket_ops = {
    .readv = socket_readv,
    .writev = socket_writev,
    .close = socket_close,
};

/* The descriptor itself blocks then; who reads and writes says otherwise each time. */
void mj__stream_be_patient(struct mj__stream *stream, int64_t nanoseconds) {
    const struct timeval patience = {.tv_sec = nanoseconds / MJ__SECOND,
                                     .tv_usec = nanoseconds % MJ__SECOND / 1000};
    int flags = fcntl(stream->fd, F_GETFL);
    if (flags >= 0 &&
        setsockopt(stream->fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) == 0) {
        (void)fcntl(stream->fd, F_SETFL, flags & ~O_NONBLOCK);
    }
}

size_t mj__stream_waiting(const struct mj__stream *stream) {
    int count = 0;
    return ioctl(stream->fd, FIONREAD, &count) == 0 && count > 0 ? (size_t)count : 0;
}

/* ---- options ---- */

static int set_option(int fd, int level, int option, const char *name, uint64_t value,
                      struct mj__error *error) {
    int number = value < INT_MAX ? (int)value : INT_MAX;
    if (setsockopt(fd, level, option, &number, sizeof number) == 0) {
        return 0;
    }
    int code = errno;
    mj__fail(error, MJ__UNREACHABLE, "cannot set %s to %d: %s", name, number, strerror(code));
    error->phase = MJ__PHASE_CONNECT;
    return -1;
}

static int set_keepalive(int fd, mj__time idle, struct mj__error *error) {
    uint64_t seconds = (uint64_t)(idle / MJ__SECOND + (idle % MJ__SECOND > 0));
    seconds = seconds < LONGEST_KEEPALIVE ? seconds : LONGEST_KEEPALIVE;
    uint64_t interval = (seconds + 3) / 4;
    interval = interval < LONGEST_PROBE_INTERVAL ? interval : LONGEST_PROBE_INTERVAL;
    const struct {
        int level, option;
        const char *name;
        uint64_t value;
    } options[] = {
        {SOL_SOCKET, SO_KEEPALIVE, "SO_KEEPALIVE", 1},
        {IPPROTO_TCP, TCP_KEEPIDLE, "TCP_KEEPIDLE", seconds},
        {IPPROTO_TCP, TCP_KEEPINTVL, "TCP_KEEPINTVL", interval},
        {IPPROTO_TCP, TCP_KEEPCNT, "TCP_KEEPCNT", KEEPALIVE_PROBES},
    };
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        if (set_option(fd, options[i].level, options[i].option, options[i].name,
                       options[i].value, error) != 0) {
            return -1;
        }
    }
    return 0;
}

static int set_options(int fd, bool tcp, const struct mj__options *options,
                       struct mj__error *error) {
    if (options->send_buffer > 0 &&
        set_option(fd, SOL_SOCKET, SO_SNDBUF, "SO_SNDBUF", options->send_buffer, error) != 0) {
        return -1;
    }
    if (options->receive_buffer > 0 && set_option(fd, SOL_SOCKET, SO_RCVBUF, "SO_RCVBUF",
                                                  options->receive_buffer, error) != 0) {
        return -1;
    }
    if (tcp && options->tcp_nodelay &&
        set_option(fd, IPPROTO_TCP, TCP_NODELAY, "TCP_NODELAY", 1, error) != 0) {
        return -1;
    }
    return tcp && options->tcp_keepalive > 0 ? set_keepalive(fd, options->tcp_keepalive, error)
                                             : 0;
}

/* ---- connecting ---- */

socklen_t mj__stream_unix_address(struct sockaddr_storage *storage, const char *path) {
    struct sockaddr_un *address = (struct sockaddr_un *)storage;
    memset(storage, 0, sizeof *storage);
    address->sun_family = AF_UNIX;
    size_t size = strnlen(path, sizeof address->sun_path - 1);
    memcpy(address->sun_path, path, size);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + size + 1);
}

int mj__stream_connect(struct mj__stream *stream, const struct sockaddr *address,
                       socklen_t size, const struct mj__options *options,
                       struct mj__error *error) {
    int family = address->sa_family;
    stream->ops = &socket_ops;
    stream->fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (stream->fd < 0) {
        return refused(error, MJ__PHASE_CONNECT, errno);
    }
    if (set_options(stream->fd, family != AF_UNIX, options, error) != 0) {
        socket_close(stream);
        return -1;
    }
    /* After EINTR the attempt goes on as after EINPROGRESS. */
    if (connect(stream->fd, address, size) == 0 || errno == EINPROGRESS || errno == EINTR) {
        return 0;
    }
    int code = errno;
    socket_close(stream);
    refused(error, MJ__PHASE_CONNECT, code);
    if (code != EAGAIN || family != AF_UNIX) {
        return -1;
    }
    mj__fail(error, MJ__CONNECT_TIMEOUT, "the server's queue of new connections stayed full");
    error->phase = MJ__PHASE_CONNECT;
    return MJ__STREAM_BUSY;
}

/* A connect to a port of this machine that nobody listens on may be given the very same port as
 * its own, and then connects to itself. */
static bool connected_to_itself(int fd) {
    struct sockaddr_storage here = {0}, there = {0};
    socklen_t here_size = sizeof here, there_size = sizeof there;
    if (getsockname(fd, (struct sockaddr *)&here, &here_size) != 0 ||
        here.ss_family == AF_UNIX ||
        getpeername(fd, (struct sockaddr *)&there, &there_size) != 0) {
        return false;
    }
    return here_size == there_size && memcmp(&here, &there, here_size) == 0;
}

int mj__stream_connected(struct mj__stream *stream, struct mj__error *error) {
    int code = 0;
    socklen_t size = sizeof code;
    if (getsockopt(stream->fd, SOL_SOCKET, SO_ERROR, &code, &size) != 0) {
        code = errno;
    }
    if (code == 0 && connected_to_itself(stream->fd)) {
        code = ECONNREFUSED;
    }
    return code == 0 ? 0 : refused(error, MJ__PHASE_CONNECT, code);
}
