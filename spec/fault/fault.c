/* fault.c: stands between the library and the system. */
#include "fault.h"

#include "ledger.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <unistd.h>

enum { DESCRIPTORS = 256 }; /* more than any scenario opens */

/* Written while no other thread runs but helpers that look up names. */
static struct {
    atomic_bool armed;
    const struct fault_way *way;
    uint64_t at;
    atomic_uint_fast64_t counts[FAULT_CALLS], struck;
    atomic_long blocks;
} plan;

const char *fault_name(enum fault_call call) {
    static const char *const names[FAULT_CALLS] = {
        "allocation",
        "recvmsg",
        "read",
        "sendmsg",
        "socket",
        "connect (IP)",
        "connect (path)",
        "setsockopt",
        "getsockopt",
        "getsockname",
        "epoll_create1",
        "epoll_ctl",
        "epoll_wait",
        "timerfd_create",
        "timerfd_settime",
        "pipe2",
        "eventfd",
        "getaddrinfo",
        "pthread_create",
        "pthread_mutex_init",
        "close",
    };
    return names[call];
}

void fault_arm(const struct fault_way *way, uint64_t n) {
    for (int i = 0; i < FAULT_CALLS; i++) {
        plan.counts[i] = 0;
    }
    plan.struck = 0;
    plan.way = way;
    plan.at = n;
    plan.armed = true;
}

void fault_disarm(void) {
    plan.armed = false;
}

void fault_pause(bool pause) {
    plan.armed = !pause;
}

uint64_t fault_count(enum fault_call call) {
    return plan.counts[call];
}

uint64_t fault_struck(void) {
    return plan.struck;
}

long fault_blocks(void) {
    return plan.blocks;
}

int fault_descriptors(void) {
    struct pollfd all[DESCRIPTORS];
    for (int fd = 0; fd < DESCRIPTORS; fd++) {
        all[fd] = (struct pollfd){.fd = fd};
    }
    poll(all, DESCRIPTORS, 0);
    int count = 0;
    for (int fd = 0; fd < DESCRIPTORS; fd++) {
        count += !(all[fd].revents & POLLNVAL);
    }
    return count;
}

/* Counts the call; true when it is one that is to fail. */
static bool strikes(enum fault_call call) {
    if (!plan.armed) {
        return false;
    }
    uint64_t n = ++plan.counts[call];
    const struct fault_way *way = plan.way;
    if (way == NULL || way->call != call || n < plan.at) {
        return false;
    }
    bool hit = n == plan.at || way->span == FAULT_ON ||
               (way->span == FAULT_EVERY_OTHER && (n - plan.at) % 2 == 0);
    plan.struck += hit;
    return hit;
}

/* For calls that fail with -1 and errno. */
static bool fails(enum fault_call call) {
    if (!strikes(call)) {
        return false;
    }
    errno = plan.way->code;
    return true;
}

/* ---- memory ---- */

void *__real_malloc(size_t size);
void *__wrap_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__real_realloc(void *block, size_t size);
void *__wrap_realloc(void *block, size_t size);
char *__real_strdup(const char *text);
char *__wrap_strdup(const char *text);
int __wrap_asprintf(char **text, const char *format, ...) __attribute__((format(printf, 2, 3)));
void __real_free(void *block);
void __wrap_free(void *block);

static void *taken(void *block) {
    plan.blocks += block != NULL;
    return block;
}

static bool no_memory(void) {
    bool none = strikes(FAULT_MEMORY);
    if (none) {
        errno = ENOMEM;
    }
    return none;
}

void *__wrap_malloc(size_t size) {
    return no_memory() ? NULL : taken(__real_malloc(size));
}

void *__wrap_calloc(size_t count, size_t size) {
    return no_memory() ? NULL : taken(__real_calloc(count, size));
}

void *__wrap_realloc(void *block, size_t size) {
    if (no_memory()) {
        return NULL;
    }
    void *moved = __real_realloc(block, size);
    return block == NULL ? taken(moved) : moved;
}

char *__wrap_strdup(const char *text) {
    return no_memory() ? NULL : taken(__real_strdup(text));
}

int __wrap_asprintf(char **text, const char *format, ...) {
    if (no_memory()) {
        return -1;
    }
    va_list args;
    va_start(args, format);
    int length = vasprintf(text, format, args);
    va_end(args);
    plan.blocks += length >= 0;
    return length;
}

void __wrap_free(void *block) {
    plan.blocks -= block != NULL;
    __real_free(block);
}

/* ---- sockets ---- */

int __real_socket(int family, int type, int protocol);
int __wrap_socket(int family, int type, int protocol);
int __real_connect(int fd, const struct sockaddr *address, socklen_t size);
int __wrap_connect(int fd, const struct sockaddr *address, socklen_t size);
ssize_t __real_recvmsg(int fd, struct msghdr *message, int flags);
ssize_t __wrap_recvmsg(int fd, struct msghdr *message, int flags);
ssize_t __real_sendmsg(int fd, const struct msghdr *message, int flags);
ssize_t __wrap_sendmsg(int fd, const struct msghdr *message, int flags);
ssize_t __wrap_recv(int fd, void *bytes, size_t size, int flags);
ssize_t __wrap_send(int fd, const void *bytes, size_t size, int flags);
int __real_setsockopt(int fd, int level, int option, const void *value, socklen_t size);
int __wrap_setsockopt(int fd, int level, int option, const void *value, socklen_t size);
int __real_getsockopt(int fd, int level, int option, void *value, socklen_t *size);
int __wrap_getsockopt(int fd, int level, int option, void *value, socklen_t *size);
int __real_getsockname(int fd, struct sockaddr *address, socklen_t *size);
int __wrap_getsockname(int fd, struct sockaddr *address, socklen_t *size);
int __real_getpeername(int fd, struct sockaddr *address, socklen_t *size);
int __wrap_getpeername(int fd, struct sockaddr *address, socklen_t *size);
int __real_close(int fd);
int __wrap_close(int fd);

int __wrap_socket(int family, int type, int protocol) {
    if (fails(FAULT_SOCKET)) {
        return -1;
    }
    int fd = __real_socket(family, type, protocol);
    if (fd >= 0) {
        ledger_open(fd);
    }
    return fd;
}

int __wrap_connect(int fd, const struct sockaddr *address, socklen_t size) {
    bool unix_socket = address->sa_family == AF_UNIX;
    if (!strikes(unix_socket ? FAULT_CONNECT_UNIX : FAULT_CONNECT)) {
        return __real_connect(fd, address, size);
    }
    if (plan.way->effect == FAULT_DOES) {
        (void)__real_connect(fd, address, size);
    }
    errno = plan.way->code;
    return -1;
}

static struct iovec first_byte(const struct iovec *parts, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (parts[i].iov_len > 0) {
            return (struct iovec){parts[i].iov_base, 1};
        }
    }
    return (struct iovec){NULL, 0};
}

ssize_t __wrap_recvmsg(int fd, struct msghdr *message, int flags) {
    if (!strikes(FAULT_RECVMSG)) {
        return __real_recvmsg(fd, message, flags);
    }
    if (plan.way->effect == FAULT_SHORTENS) {
        struct iovec part = first_byte(message->msg_iov, message->msg_iovlen);
        struct msghdr shorter = {.msg_iov = &part, .msg_iovlen = 1};
        return __real_recvmsg(fd, &shorter, flags);
    }
    errno = plan.way->code;
    return plan.way->effect == FAULT_ENDS ? 0 : -1;
}

ssize_t __wrap_sendmsg(int fd, const struct msghdr *message, int flags) {
    struct msghdr sent = *message;
    struct iovec part;
    if (strikes(FAULT_SENDMSG)) {
        if (plan.way->effect != FAULT_SHORTENS) {
            errno = plan.way->code;
            return -1;
        }
        part = first_byte(message->msg_iov, message->msg_iovlen);
        sent.msg_iov = &part;
        sent.msg_iovlen = 1;
    }
    ssize_t size = __real_sendmsg(fd, &sent, flags);
    if (size > 0) {
        ledger_add(fd, sent.msg_iov, (size_t)size);
    }
    return size;
}

/* recv and send are recvmsg and sendmsg of one piece. */
ssize_t __wrap_recv(int fd, void *bytes, size_t size, int flags) {
    struct iovec part = {bytes, size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    return __wrap_recvmsg(fd, &message, flags);
}

ssize_t __wrap_send(int fd, const void *bytes, size_t size, int flags) {
    struct iovec part = {(void *)(uintptr_t)bytes, size};
    const struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    return __wrap_sendmsg(fd, &message, flags);
}

int __wrap_setsockopt(int fd, int level, int option, const void *value, socklen_t size) {
    return fails(FAULT_SETSOCKOPT) ? -1 : __real_setsockopt(fd, level, option, value, size);
}

int __wrap_getsockopt(int fd, int level, int option, void *value, socklen_t *size) {
    if (!fails(FAULT_GETSOCKOPT)) {
        return __real_getsockopt(fd, level, option, value, size);
    }
    if (plan.way->effect != FAULT_TELLS) {
        return -1;
    }
    memcpy(value, &plan.way->code, sizeof plan.way->code);
    return 0;
}

int __wrap_getsockname(int fd, struct sockaddr *address, socklen_t *size) {
    return fails(FAULT_NAMES) ? -1 : __real_getsockname(fd, address, size);
}

int __wrap_getpeername(int fd, struct sockaddr *address, socklen_t *size) {
    return fails(FAULT_NAMES) ? -1 : __real_getpeername(fd, address, size);
}

/* Linux has closed the descriptor, whatever it says. */
int __wrap_close(int fd) {
    bool hit = strikes(FAULT_CLOSE);
    int status = __real_close(fd);
    if (hit) {
        errno = plan.way->code;
    }
    return hit ? -1 : status;
}

/* ---- the loop's descriptors ---- */

int __real_epoll_create1(int flags);
int __wrap_epoll_create1(int flags);
int __real_epoll_ctl(int epoll, int operation, int fd, struct epoll_event *event);
int __wrap_epoll_ctl(int epoll, int operation, int fd, struct epoll_event *event);
int __real_epoll_wait(int epoll, struct epoll_event *events, int most, int timeout);
int __wrap_epoll_wait(int epoll, struct epoll_event *events, int most, int timeout);
int __real_timerfd_create(clockid_t clock, int flags);
int __wrap_timerfd_create(clockid_t clock, int flags);
int __real_timerfd_settime(int fd, int flags, const struct itimerspec *span,
                           struct itimerspec *before);
int __wrap_timerfd_settime(int fd, int flags, const struct itimerspec *span,
                           struct itimerspec *before);
int __real_pipe2(int *ends, int flags);
int __wrap_pipe2(int *ends, int flags);
int __real_eventfd(unsigned count, int flags);
int __wrap_eventfd(unsigned count, int flags);
int __real_eventfd_read(int fd, eventfd_t *count);
int __wrap_eventfd_read(int fd, eventfd_t *count);
ssize_t __real_read(int fd, void *bytes, size_t size);
ssize_t __wrap_read(int fd, void *bytes, size_t size);

int __wrap_epoll_create1(int flags) {
    return fails(FAULT_EPOLL_CREATE) ? -1 : __real_epoll_create1(flags);
}

/* Only what adds or changes may fail: the kernel has what it takes to remove. */
int __wrap_epoll_ctl(int epoll, int operation, int fd, struct epoll_event *event) {
    bool failed = operation != EPOLL_CTL_DEL && fails(FAULT_EPOLL_CTL);
    return failed ? -1 : __real_epoll_ctl(epoll, operation, fd, event);
}

int __wrap_epoll_wait(int epoll, struct epoll_event *events, int most, int timeout) {
    return fails(FAULT_EPOLL_WAIT) ? -1 : __real_epoll_wait(epoll, events, most, timeout);
}

int __wrap_timerfd_create(clockid_t clock, int flags) {
    return fails(FAULT_TIMERFD_CREATE) ? -1 : __real_timerfd_create(clock, flags);
}

int __wrap_timerfd_settime(int fd, int flags, const struct itimerspec *span,
                           struct itimerspec *before) {
    return fails(FAULT_TIMERFD_SETTIME) ? -1 : __real_timerfd_settime(fd, flags, span, before);
}

int __wrap_pipe2(int *ends, int flags) {
    return fails(FAULT_PIPE) ? -1 : __real_pipe2(ends, flags);
}

int __wrap_eventfd(unsigned count, int flags) {
    return fails(FAULT_EVENTFD) ? -1 : __real_eventfd(count, flags);
}

int __wrap_eventfd_read(int fd, eventfd_t *count) {
    return fails(FAULT_READ) ? -1 : __real_eventfd_read(fd, count);
}

ssize_t __wrap_read(int fd, void *bytes, size_t size) {
    return fails(FAULT_READ) ? -1 : __real_read(fd, bytes, size);
}

/* ---- names and threads ---- */

int __real_getaddrinfo(const char *host, const char *service, const struct addrinfo *hints,
                       struct addrinfo **list);
int __wrap_getaddrinfo(const char *host, const char *service, const struct addrinfo *hints,
                       struct addrinfo **list);
int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*run)(void *), void *arg);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*run)(void *), void *arg);
int __real_pthread_attr_init(pthread_attr_t *attributes);
int __wrap_pthread_attr_init(pthread_attr_t *attributes);
int __real_pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attributes);
int __wrap_pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attributes);

/* No resolver is asked: what this machine knows of names does not matter. */
static int resolve(const char *service, const struct addrinfo *hints, struct addrinfo **list) {
    struct addrinfo numeric = *hints, *first, *second;
    numeric.ai_flags |= AI_NUMERICHOST;
    int code = __real_getaddrinfo("127.0.0.2", service, &numeric, &first);
    if (code != 0) {
        return code;
    }
    code = __real_getaddrinfo("127.0.0.1", service, &numeric, &second);
    if (code != 0) {
        freeaddrinfo(first);
        return code;
    }
    first->ai_next = second;
    *list = first;
    return 0;
}

int __wrap_getaddrinfo(const char *host, const char *service, const struct addrinfo *hints,
                       struct addrinfo **list) {
    if (strikes(FAULT_GETADDRINFO)) {
        errno = EMFILE; /* for EAI_SYSTEM */
        return plan.way->code;
    }
    if (strcmp(host, FAULT_HOST) == 0 && !(hints->ai_flags & AI_NUMERICHOST)) {
        return resolve(service, hints, list);
    }
    return __real_getaddrinfo(host, service, hints, list);
}

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*run)(void *), void *arg) {
    return strikes(FAULT_THREAD) ? plan.way->code
                                 : __real_pthread_create(thread, attributes, run, arg);
}

int __wrap_pthread_attr_init(pthread_attr_t *attributes) {
    return strikes(FAULT_THREAD) ? plan.way->code : __real_pthread_attr_init(attributes);
}

int __wrap_pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attributes) {
    return strikes(FAULT_MUTEX) ? plan.way->code : __real_pthread_mutex_init(mutex, attributes);
}
