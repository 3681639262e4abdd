/* Streams to real sockets of this machine: options, failures, partial reads and writes. */
#include "stream.h"

#include "check.h"

#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/un.h>

static const struct mj__options defaults = {
    .tcp_nodelay = true,
    .tcp_keepalive = 60 * MJ__SECOND,
};

static char folder[] = "/tmp/moonjay-stream-XXXXXX";

static const char *path_of(const char *name) {
    static char path[64];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

/* Both return a listening socket and its address. */
static int listen_tcp(int family, struct sockaddr_storage *address, socklen_t *size) {
    memset(address, 0, sizeof *address);
    address->ss_family = (sa_family_t)family;
    *size = sizeof(struct sockaddr_in);
    if (family == AF_INET) {
        ((struct sockaddr_in *)address)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    } else {
        ((struct sockaddr_in6 *)address)->sin6_addr = in6addr_loopback;
        *size = sizeof(struct sockaddr_in6);
    }
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    NEED(fd >= 0);
    NEED(bind(fd, (struct sockaddr *)address, *size) == 0);
    NEED(listen(fd, 16) == 0);
    NEED(getsockname(fd, (struct sockaddr *)address, size) == 0);
    return fd;
}

static int listen_unix(const char *name, int backlog, struct sockaddr_storage *address,
                       socklen_t *size) {
    *size = mj__stream_unix_address(address, path_of(name));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    NEED(fd >= 0);
    NEED(bind(fd, (struct sockaddr *)address, *size) == 0);
    NEED(listen(fd, backlog) == 0);
    return fd;
}

static void wait_for(int fd, short what) {
    struct pollfd wanted = {.fd = fd, .events = what};
    NEED(poll(&wanted, 1, 5000) == 1);
}

static int number_of(int fd, int level, int option) {
    int number = -1;
    socklen_t size = sizeof number;
    NEED(getsockopt(fd, level, option, &number, &size) == 0);
    return number;
}

/* Connects to the end; returns what came out of it, with *stream open if that is 0. */
static int connect_whole(struct mj__stream *stream, const struct sockaddr_storage *address,
                         socklen_t size, const struct mj__options *options,
                         struct mj__error *error) {
    int status =
        mj__stream_connect(stream, (const struct sockaddr *)address, size, options, error);
    if (status != 0) {
        CHECK(stream->fd == -1);
        return status;
    }
    wait_for(stream->fd, POLLOUT);
    status = mj__stream_connected(stream, error);
    if (status != 0) {
        stream->ops->close(stream);
    }
    return status;
}

/* A stream and the server's end of it. */
static int tcp_pair(struct mj__stream *stream, const struct mj__options *options) {
    struct sockaddr_storage address;
    socklen_t size;
    struct mj__error error;
    int server = listen_tcp(AF_INET, &address, &size);
    NEED(connect_whole(stream, &address, size, options, &error) == 0);
    int peer = accept(server, NULL, NULL);
    NEED(peer >= 0);
    close(server);
    return peer;
}

static void tcp_has_its_options(void) {
    struct mj__stream stream;
    int peer = tcp_pair(&stream, &defaults);
    CHECK(number_of(stream.fd, IPPROTO_TCP, TCP_NODELAY) != 0);
    CHECK(number_of(stream.fd, SOL_SOCKET, SO_KEEPALIVE) != 0);
    CHECK(number_of(stream.fd, IPPROTO_TCP, TCP_KEEPIDLE) == 60);
    CHECK(number_of(stream.fd, IPPROTO_TCP, TCP_KEEPINTVL) == 15);
    CHECK((fcntl(stream.fd, F_GETFL) & O_NONBLOCK) != 0);
    CHECK((fcntl(stream.fd, F_GETFD) & FD_CLOEXEC) != 0);
    stream.ops->close(&stream);
    CHECK(stream.fd == -1);
    stream.ops->close(&stream);
    close(peer);
}

static void tcp_has_the_options_asked_for(void) {
    static const struct mj__options options = {
        .tcp_keepalive = MJ__SECOND / 10 * 12,
        .send_buffer = 30000,
        .receive_buffer = 40000,
    };
    struct mj__stream stream;
    int peer = tcp_pair(&stream, &options);
    CHECK(number_of(stream.fd, IPPROTO_TCP, TCP_NODELAY) == 0);
    CHECK(number_of(stream.fd, IPPROTO_TCP, TCP_KEEPIDLE) == 2);
    CHECK(number_of(stream.fd, SOL_SOCKET, SO_SNDBUF) == 60000);
    CHECK(number_of(stream.fd, SOL_SOCKET, SO_RCVBUF) == 80000);
    stream.ops->close(&stream);
    close(peer);

    static const struct mj__options none = {.tcp_keepalive = 0};
    peer = tcp_pair(&stream, &none);
    CHECK(number_of(stream.fd, SOL_SOCKET, SO_KEEPALIVE) == 0);
    stream.ops->close(&stream);
    close(peer);

    static const struct mj__options longest = {
        .tcp_keepalive = 1000000 * MJ__SECOND,
        .send_buffer = UINT64_MAX,
    };
    peer = tcp_pair(&stream, &longest);
    CHECK(number_of(stream.fd, IPPROTO_TCP, TCP_KEEPIDLE) == 32767);
    stream.ops->close(&stream);
    close(peer);
}

static void ipv6_connects(void) {
    struct sockaddr_storage address;
    socklen_t size;
    struct mj__error error;
    struct mj__stream stream;
    if (access("/proc/net/if_inet6", R_OK) != 0) {
        printf("# this machine has no IPv6\n");
        return;
    }
    int server = listen_tcp(AF_INET6, &address, &size);
    CHECK(connect_whole(&stream, &address, size, &defaults, &error) == 0);
    CHECK(number_of(stream.fd, IPPROTO_TCP, TCP_NODELAY) != 0);
    stream.ops->close(&stream);
    close(server);
}

static void unix_connects(void) {
    static const struct mj__options options = {
        .tcp_nodelay = true,
        .tcp_keepalive = 60 * MJ__SECOND,
        .send_buffer = 30000,
    };
    struct sockaddr_storage address;
    socklen_t size;
    struct mj__error error;
    struct mj__stream stream;
    int server = listen_unix("connects", 16, &address, &size);
    CHECK(connect_whole(&stream, &address, size, &options, &error) == 0);
    CHECK(number_of(stream.fd, SOL_SOCKET, SO_SNDBUF) == 60000);
    stream.ops->close(&stream);
    close(server);

    CHECK(connect_whole(&stream, &address, size, &options, &error) == -1);
    CHECK(error.kind == MJ__CONNECT_REFUSED && error.phase == MJ__PHASE_CONNECT);
    NEED(unlink(path_of("connects")) == 0);
    CHECK(connect_whole(&stream, &address, size, &options, &error) == -1);
    CHECK(error.kind == MJ__CONNECT_REFUSED && strstr(error.text, "path") != NULL);
}

static void a_full_unix_queue_is_busy(void) {
    struct sockaddr_storage address;
    socklen_t size;
    struct mj__error error;
    struct mj__stream streams[4];
    int server = listen_unix("busy", 0, &address, &size);
    size_t open = 0;
    int status = 0;
    while (open < 4 && status == 0) {
        status = connect_whole(&streams[open], &address, size, &defaults, &error);
        open += status == 0;
    }
    CHECK(status == MJ__STREAM_BUSY);
    CHECK(error.kind == MJ__CONNECT_TIMEOUT && error.phase == MJ__PHASE_CONNECT);
    int peer = accept(server, NULL, NULL);
    NEED(peer >= 0);
    struct mj__stream last;
    CHECK(connect_whole(&last, &address, size, &defaults, &error) == 0);
    last.ops->close(&last);
    for (size_t i = 0; i < open; i++) {
        streams[i].ops->close(&streams[i]);
    }
    close(peer);
    close(server);
    unlink(path_of("busy"));
}

static void nobody_listens(void) {
    struct sockaddr_storage address;
    socklen_t size;
    struct mj__error error = {0};
    struct mj__stream stream;
    close(listen_tcp(AF_INET, &address, &size));
    CHECK(connect_whole(&stream, &address, size, &defaults, &error) == -1);
    CHECK(error.kind == MJ__CONNECT_REFUSED && error.phase == MJ__PHASE_CONNECT);
    CHECK(error.sent == MJ__SENT_NO);
}

static void no_way_there(void) {
    struct sockaddr_storage address = {0};
    struct sockaddr_in *broadcast = (struct sockaddr_in *)&address;
    broadcast->sin_family = AF_INET;
    broadcast->sin_port = htons(11211);
    broadcast->sin_addr.s_addr = htonl(INADDR_BROADCAST);
    struct mj__error error = {0};
    struct mj__stream stream;
    CHECK(connect_whole(&stream, &address, sizeof *broadcast, &defaults, &error) == -1);
    CHECK(error.kind == MJ__UNREACHABLE && error.phase == MJ__PHASE_CONNECT);
}

/* Both ends of a socket that was bound to the port it connects to. */
static void a_socket_met_itself(void) {
    struct sockaddr_storage address;
    socklen_t size;
    struct mj__error error = {0};
    close(listen_tcp(AF_INET, &address, &size));
    struct mj__stream stream;
    int peer = tcp_pair(&stream, &defaults);
    stream.ops->close(&stream);
    close(peer);
    stream.fd = socket(AF_INET, SOCK_STREAM, 0);
    NEED(stream.fd >= 0);
    NEED(bind(stream.fd, (struct sockaddr *)&address, size) == 0);
    NEED(connect(stream.fd, (struct sockaddr *)&address, size) == 0);
    CHECK(mj__stream_connected(&stream, &error) == -1);
    CHECK(error.kind == MJ__CONNECT_REFUSED);
    stream.ops->close(&stream);
}

static int connect_without_descriptor(void) {
    struct sockaddr_storage address = {.ss_family = AF_UNIX};
    struct mj__error error = {0};
    struct mj__stream stream;
    int status = connect_whole(&stream, &address, sizeof address, &defaults, &error);
    return status == -1 && error.kind == MJ__UNREACHABLE &&
                   strstr(error.text, "out of file descriptors") != NULL
               ? 0
               : 1;
}

static void no_descriptor_is_said(void) {
    CHECK(check_with_descriptors(3, connect_without_descriptor) == 0);
}

static void reads_scatter_and_end(void) {
    struct mj__stream stream;
    int peer = tcp_pair(&stream, &defaults);
    char first[3], second[8];
    struct iovec parts[] = {{first, sizeof first}, {second, sizeof second}};
    CHECK(stream.ops->readv(&stream, parts, 2, false) == -1 && errno == EAGAIN);
    NEED(write(peer, "abcdef", 6) == 6);
    wait_for(stream.fd, POLLIN);
    CHECK(stream.ops->readv(&stream, parts, 2, false) == 6);
    CHECK(memcmp(first, "abc", 3) == 0 && memcmp(second, "def", 3) == 0);
    close(peer);
    wait_for(stream.fd, POLLIN);
    CHECK(stream.ops->readv(&stream, parts, 2, false) == 0);
    stream.ops->close(&stream);
}

static void writes_take_what_fits(void) {
    static const struct mj__options small = {.send_buffer = 10000};
    static char block[1 << 20];
    struct mj__stream stream;
    int peer = tcp_pair(&stream, &small);
    struct iovec one = {block, sizeof block};
    ssize_t size, total = 0;
    while ((size = stream.ops->writev(&stream, &one, 1)) > 0) {
        CHECK(size <= (ssize_t)sizeof block);
        total += size;
    }
    CHECK(size == -1 && errno == EAGAIN);
    while (total > 0) {
        ssize_t got = read(peer, block, sizeof block);
        NEED(got > 0);
        total -= got;
    }
    wait_for(stream.fd, POLLOUT);
    static struct iovec letters[2 * IOV_MAX];
    for (size_t i = 0; i < 2 * IOV_MAX; i++) {
        letters[i] = (struct iovec){block, 1};
    }
    CHECK(stream.ops->writev(&stream, letters, 2 * IOV_MAX) == IOV_MAX);
    wait_for(peer, POLLIN);
    CHECK(stream.ops->readv(&stream, letters, 2 * IOV_MAX, false) == -1 && errno == EAGAIN);
    stream.ops->close(&stream);
    close(peer);
}

/* SIGPIPE has its default action here: it would end this program. */
static void a_peer_that_went_away(void) {
    struct mj__stream stream;
    struct mj__error error;
    int peer = tcp_pair(&stream, &defaults);
    struct linger at_once = {.l_onoff = 1, .l_linger = 0};
    NEED(setsockopt(peer, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once) == 0);
    close(peer);
    char byte = 'x';
    struct iovec part = {&byte, 1};
    wait_for(stream.fd, POLLIN);
    CHECK(stream.ops->readv(&stream, &part, 1, false) == -1);
    CHECK(errno == ECONNRESET);
    mj__stream_error(&error, MJ__PHASE_READ, errno);
    CHECK(error.kind == MJ__RESET && error.phase == MJ__PHASE_READ);
    CHECK(stream.ops->writev(&stream, &part, 1) == -1);
    CHECK(errno == EPIPE);
    mj__stream_error(&error, MJ__PHASE_WRITE, errno);
    CHECK(error.kind == MJ__RESET && error.phase == MJ__PHASE_WRITE);
    stream.ops->close(&stream);
}

static void each_errno_has_its_kind(void) {
    static const struct {
        enum mj__phase phase;
        int code;
        enum mj__kind kind;
    } cases[] = {
        {MJ__PHASE_CONNECT, ECONNREFUSED, MJ__CONNECT_REFUSED},
        {MJ__PHASE_CONNECT, ENOENT, MJ__CONNECT_REFUSED},
        {MJ__PHASE_CONNECT, ETIMEDOUT, MJ__CONNECT_TIMEOUT},
        {MJ__PHASE_CONNECT, EHOSTUNREACH, MJ__UNREACHABLE},
        {MJ__PHASE_CONNECT, ENETUNREACH, MJ__UNREACHABLE},
        {MJ__PHASE_CONNECT, EADDRNOTAVAIL, MJ__UNREACHABLE},
        {MJ__PHASE_CONNECT, EACCES, MJ__UNREACHABLE},
        {MJ__PHASE_CONNECT, EMFILE, MJ__UNREACHABLE},
        {MJ__PHASE_CONNECT, ENOBUFS, MJ__UNREACHABLE},
        {MJ__PHASE_CONNECT, ECONNRESET, MJ__RESET},
        {MJ__PHASE_READ, ECONNRESET, MJ__RESET},
        {MJ__PHASE_READ, ETIMEDOUT, MJ__TIMEOUT},
        {MJ__PHASE_WRITE, EPIPE, MJ__RESET},
        {MJ__PHASE_WRITE, EHOSTUNREACH, MJ__RESET},
        {MJ__PHASE_WRITE, ENOBUFS, MJ__NO_MEMORY},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct mj__error error = {0};
        mj__stream_error(&error, cases[i].phase, cases[i].code);
        CHECK(error.kind == cases[i].kind);
        CHECK(error.phase == cases[i].phase);
        CHECK(error.text[0] != '\0');
    }
}

int main(void) {
    static const struct check checks[] = {
        {"a tcp stream has the options that are the default", tcp_has_its_options},
        {"a tcp stream has the options that were asked for", tcp_has_the_options_asked_for},
        {"ipv6 connects", ipv6_connects},
        {"a unix stream connects, or is refused", unix_connects},
        {"a full queue of a unix server is busy, not refused", a_full_unix_queue_is_busy},
        {"a port that nobody listens on refuses", nobody_listens},
        {"where no way leads is unreachable", no_way_there},
        {"a socket that met itself was refused", a_socket_met_itself},
        {"too few descriptors are said", no_descriptor_is_said},
        {"reads fill part after part, and end with 0", reads_scatter_and_end},
        {"writes take what fits", writes_take_what_fits},
        {"a peer that went away is an error, not a signal", a_peer_that_went_away},
        {"each errno has its kind", each_errno_has_its_kind},
    };
    NEED(mkdtemp(folder) != NULL);
    int status = check_all(checks, sizeof checks / sizeof *checks);
    rmdir(folder);
    return status;
}
