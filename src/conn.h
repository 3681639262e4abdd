/* conn.h: one nonblocking connection to one server, usable without Lua.
 *
 * One life: connecting, open, closed; it never reconnects by itself. Every request is submitted
 * with a function that is called with its answer, or with the error that ended it: exactly once
 * for the end, unless it was abandoned. All requests submitted in one turn of the loop leave in one
 * write; all replies that came are read in one read, parsed, and then handed over. */
#ifndef MJ_CONN_H
#define MJ_CONN_H

#include "buffer.h"
#include "command.h"
#include "loop.h"
#include "outgoing.h"
#include "requests.h"
#include "resolve.h"
#include "url.h"
#include "wire.h"

struct mj__conn;
struct mj__batch;

/* An answer: error is set, or reply is. Everything is borrowed for the length of the call. */
struct mj__answer {
    const struct mj__command *command;
    const struct mj__error *error; /* NULL: the server answered */
    bool more;                     /* further answers to this request follow */
    bool own_token;                /* reply.opaque is the connection's own, not the caller's */
    struct mj__reply reply;
    const char
        *value; /* reply.value_size bytes when reply.has_value; NULL: they went to the sink */
    const char *key; /* the request's; gone with the next submit */
    size_t key_size;
    void *owner; /* the connection's owner.arg */
};

/* Where a large value goes as it is read, straight from the socket. */
struct mj__sink {
    /* Room for 1 to `want` bytes; *got says how many. NULL: the value is read and dropped, and the
     * request ends with too_large or no_memory. Called anew for every read; no pointer is kept. */
    char *(*reserve)(struct mj__sink *, size_t want, size_t *got);
    /* `count` bytes were read into what reserve gave. */
    void (*commit)(struct mj__sink *, size_t count);
};

/* Who is told. Any function may be NULL. */
struct mj__conn_owner {
    /* The connection is open (error NULL) or will never be. Once. */
    void (*opened)(void *arg, struct mj__conn *, const struct mj__error *error);
    /* Calls mj__batch_hand_over, in whatever protection the done functions need. */
    void (*deliver)(void *arg, struct mj__conn *, struct mj__batch *);
    /* A quiet request failed, or several did and *error names the last; key is NULL when it cannot
     * be told which. */
    void (*quiet_failed)(void *arg, struct mj__conn *, const struct mj__error *error,
                         const struct mj__command *, const char *key, size_t key_size);
    /* The connection is closed, after everyone that waited was told. Once, if it was opened. */
    void (*closed)(void *arg, struct mj__conn *, const struct mj__error *error);
    void *arg;
};

struct mj__conn_counters {
    uint64_t requests, replies; /* replies: requests that ended with one */
    uint64_t reads, writes;     /* system calls, also those that moved nothing */
    uint64_t bytes_read, bytes_written;
    uint64_t arms; /* changes of what the kernel watches: epoll_ctl */
    uint64_t timeouts, abandoned;
    uint64_t late; /* replies that came after their request was given up, dropped */
    uint64_t quiet, quiet_failed;
    uint64_t fences; /* noops sent to end a run of quiet requests */
    uint64_t parked; /* tasks that had to wait for room */
    uint64_t hits, misses;
};

/* A wait for room in a connection that is full. Embedded or allocated by its owner; all zero at
 * first. */
struct mj__parked {
    struct mj__parked *next, **link; /* link NULL: it does not wait */
    mj__time deadline; /* 0: to be set by mj__conn_park. One that waited before keeps its own */
    size_t size;       /* of the call that found no room */
    /* error NULL: there is room, submit now. */
    void (*ready)(struct mj__parked *, const struct mj__error *error);
};

/* Starts to connect; the endpoint is copied. `resolver` may be NULL when the host is an address or
 * a path. NULL: *error says why, and no function of the owner is called. */
struct mj__conn *mj__conn_open(struct mj__loop *, struct mj__pool *, struct mj__resolver *,
                               const struct mj__endpoint *, const struct mj__conn_owner *,
                               struct mj__error *error);

enum mj__submitted { MJ__SUBMITTED = 0, MJ__REFUSED = -1, MJ__FULL = 1 };

/* Queues a call whose key and values were checked. done may be NULL for a quiet call. `lent`, when
 * not NULL, keeps call->value and is released once that is written; unless MJ__SUBMITTED it
 * stays the caller's to release. *seq names the request. MJ__FULL: park, or try later;
 * MJ__REFUSED: *error says why, nothing was queued. */
int mj__conn_submit(struct mj__conn *, const struct mj__call *, const struct mj__lent *lent,
                    struct mj__sink *sink, mj__done_fn *done, void *arg, uint32_t index,
                    uint64_t *seq, struct mj__error *error);
/* The caller no longer waits: done is not called. The request keeps its place and its late reply is
 * dropped; one that is half written closes the connection, at the end of the turn, so that what
 * mj__conn_request lent is still there. *error gets phase and sent; its kind and text are the
 * caller's. */
void mj__conn_abandon(struct mj__conn *, uint64_t seq, struct mj__error *error);
/* The same for every request with this done function and argument. */
void mj__conn_abandon_all(struct mj__conn *, mj__done_fn *done, const void *arg,
                          struct mj__error *error);

/* Waits for room, behind those that wait already, for the call that was just answered MJ__FULL. */
void mj__conn_park(struct mj__conn *, struct mj__parked *);
/* No longer waits: harmless when it does not. */
void mj__conn_unpark(struct mj__conn *, struct mj__parked *);
/* A parked one that was told there is room comes to use it: the next submit is let in, and keeps
 * the deadline that was set when it was parked. To be called once for every `ready`. */
void mj__conn_redeem(struct mj__conn *, const struct mj__parked *);
/* One that submits many comes: while there is room, some more are let in behind the first, so that
 * two of them do not take turns with single requests. All have its deadline. Ended by
 * mj__conn_return_ticket. */
void mj__conn_allow_more(struct mj__conn *);
/* What is submitted from now on has this deadline, and not one of its own; ended likewise. */
void mj__conn_bind(struct mj__conn *, mj__time deadline);
/* It came, and does not submit after all; or no more. */
void mj__conn_return_ticket(struct mj__conn *);

bool mj__conn_is_open(const struct mj__conn *);
/* Decided once it is open: MJ__META or MJ__ASCII. */
enum mj__protocol mj__conn_protocol(const struct mj__conn *);
const struct mj__endpoint *mj__conn_endpoint(const struct mj__conn *);
const struct mj__conn_counters *mj__conn_counters(const struct mj__conn *);
uint64_t mj__conn_inflight(const struct mj__conn *);
/* What the outstanding request at seq is, and its key (borrowed until the next submit). NULL: it
 * is not outstanding. */
const struct mj__command *mj__conn_request(const struct mj__conn *, uint64_t seq,
                                           const char **key, size_t *key_size);
/* What it is doing while it is not open. */
enum mj__phase mj__conn_phase(const struct mj__conn *);
int mj__conn_fd(const struct mj__conn *); /* -1: closed */
/* Quiet requests are outstanding: no reply has told yet what became of them. */
bool mj__conn_has_unfenced(const struct mj__conn *);

/* Writes what it can at once, tells everyone that waits (kind closed), and closes. Harmless on a
 * closed connection. */
void mj__conn_close(struct mj__conn *);
/* The same at the end of the turn: for who may be called from inside a sink. */
void mj__conn_close_soon(struct mj__conn *);
/* Closes and frees at the end of the turn; no function is called any more. NULL is harmless. */
void mj__conn_free(struct mj__conn *);
/* The same in good order: what is queued still leaves and quiet requests are fenced first, for
 * stall_timeout at the most; at the latest when the loop closes it is freed. */
void mj__conn_release(struct mj__conn *);

/* Calls the done functions of a batch, going on behind the last that was called, so that a done
 * function may leave by a jump and the rest be handed over in another call. */
void mj__batch_hand_over(struct mj__batch *);
/* The done function and its argument that a jump left, and whether more answers to that request
 * follow; false when none was left. */
bool mj__batch_interrupted(struct mj__batch *, mj__done_fn **done, void **arg, bool *more);
/* The done function that a jump left last is to be called once more: it had done nothing yet. */
void mj__batch_again(struct mj__batch *);

#endif
