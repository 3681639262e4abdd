/* stream.h: bytes to and from one peer, whatever carries them.
 *
 * A kind of transport is one small table of functions. tcp and unix sockets share one; a
 * handshake (TLS) is a step between connecting and open. All are close-on-exec. Nothing blocks, but
 * for a read that is told to wait. */
#ifndef MJ_STREAM_H
#define MJ_STREAM_H

#include "error.h"
#include "url.h"

#include <stdbool.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

struct mj__stream;

struct mj__stream_ops {
    /* >0 bytes; 0 the peer closed; -1 with errno (EAGAIN: nothing now, or with `wait` nothing in
     * the time of mj__stream_be_patient). EINTR is retried inside. Of more than IOV_MAX (1024) parts only the first are read, or written. */
    ssize_t (*readv)(struct mj__stream *, const struct iovec *, int count, bool wait);
    /* >=0 bytes taken; -1 with errno (EAGAIN: nothing now). Never raises SIGPIPE. */
    ssize_t (*writev)(struct mj__stream *, const struct iovec *, int count);
    /* Gives the descriptor back. Harmless on a closed stream. */
    void (*close)(struct mj__stream *);
};

struct mj__stream {
    const struct mj__stream_ops *ops;
    int fd; /* -1: closed */
};

/* mj__stream_connect: a unix server's queue of new connections is full; try again shortly. */
enum { MJ__STREAM_BUSY = 1 };

/* Makes a nonblocking socket for this address with every option of the URL set before connect,
 * and starts to connect. 0: under way or already there (wait until it is writable, then ask
 * mj__stream_connected). -1: *error has kind, phase and text, and no descriptor is left.
 * MJ__STREAM_BUSY: likewise, but a later attempt may succeed: to be tried again after about a
 * millisecond within connect_timeout; *error is what to report when that has passed. */
int mj__stream_connect(struct mj__stream *, const struct sockaddr *, socklen_t size,
                       const struct mj__options *, struct mj__error *error);
/* Fills the address of a unix socket; the path was checked to fit when the URL was parsed. */
socklen_t mj__stream_unix_address(struct sockaddr_storage *, const char *path);
/* After the socket became writable: 0 it is connected; -1 it failed: *error as above, and the
 * stream is still to be closed. A connection of a socket with itself counts as refused. */
int mj__stream_connected(struct mj__stream *, struct mj__error *error);

/* From now on a read may wait, for so long. Where the system refuses, none waits. */
void mj__stream_be_patient(struct mj__stream *, int64_t nanoseconds);

/* How many bytes have come and were not read yet. */
size_t mj__stream_waiting(const struct mj__stream *);

/* Turns the errno of a failed connect, read or write (`phase` says which) into an error's kind
 * and words. */
void mj__stream_error(struct mj__error *error, enum mj__phase phase, int code);

#endif
