/* fault.h: system calls and allocations that fail when they are told to.
 *
 * The linker sends every call that libmoonjay.a and libevent make to one of these functions to
 * fault.c instead (--wrap, see Makefile), which counts it and lets it through, unless it is the one
 * that is to fail. What is inside libc and LuaJIT is not caught; LuaJIT's memory is, since it comes
 * through the runtime's allocator. */
#ifndef FAULT_H
#define FAULT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum fault_call {
    FAULT_MEMORY,  /* malloc, calloc, realloc, strdup, asprintf */
    FAULT_RECVMSG, /* of a socket */
    FAULT_READ,    /* of a timerfd or eventfd */
    FAULT_SENDMSG,
    FAULT_SOCKET,
    FAULT_CONNECT,      /* over IP */
    FAULT_CONNECT_UNIX, /* to a path */
    FAULT_SETSOCKOPT,
    FAULT_GETSOCKOPT, /* of SO_ERROR: how connect ended */
    FAULT_NAMES,      /* getsockname, getpeername */
    FAULT_EPOLL_CREATE,
    FAULT_EPOLL_CTL,
    FAULT_EPOLL_WAIT,
    FAULT_TIMERFD_CREATE,
    FAULT_TIMERFD_SETTIME,
    FAULT_PIPE,
    FAULT_EVENTFD,
    FAULT_GETADDRINFO,
    FAULT_THREAD, /* pthread_create, pthread_attr_init */
    FAULT_MUTEX,  /* pthread_mutex_init */
    FAULT_CLOSE,
    FAULT_CALLS
};

enum fault_effect {
    FAULT_FAILS,    /* nothing is done; errno (or what the call returns) is the code */
    FAULT_DOES,     /* it is done, and then said to have failed: EINTR of close and connect */
    FAULT_ENDS,     /* recvmsg: the end of the stream */
    FAULT_SHORTENS, /* recvmsg and sendmsg: one byte */
    FAULT_TELLS     /* getsockopt: succeeds, and gives the code as the socket's error */
};

enum fault_span { FAULT_ONCE, FAULT_ON, FAULT_EVERY_OTHER }; /* from the n-th call on */

struct fault_way {
    enum fault_call call;
    const char *name;
    enum fault_effect effect;
    int code;
    enum fault_span span;
    bool harmless;  /* nobody may notice */
    uint32_t kinds; /* errors that may come of it: bits by enum mj__kind */
};

const char *fault_name(enum fault_call);

/* From now on calls are counted, and the n-th of its kind (from 1) fails this way; NULL: none. */
void fault_arm(const struct fault_way *, uint64_t n);
void fault_disarm(void);
/* For a while nothing fails and nothing is counted. */
void fault_pause(bool pause);
/* Since the last arm: how many calls came, and how many of them failed. */
uint64_t fault_count(enum fault_call);
uint64_t fault_struck(void);
/* The books, kept always: blocks that were taken and not freed, and descriptors that are open. */
long fault_blocks(void);
int fault_descriptors(void);

/* The only name there is, beside literal addresses: 127.0.0.2, where nobody listens, and then
 * 127.0.0.1. */
#define FAULT_HOST "cache.test"

#endif
