/* sim_stream.c: stream.h without a socket. */
#include "sim.h"
#include "stream.h"

#include <errno.h>
#include <string.h>

static struct {
    struct text said, written;
    unsigned connects;
    size_t limit; /* of a write */
    bool open, over;
    int code; /* of the end */
} world;

void sim_reset(void) {
    text_clear(&world.said);
    text_clear(&world.written);
    world.connects = 0;
    world.limit = SIZE_MAX;
    world.open = world.over = false;
    world.code = 0;
}

unsigned sim_connects(void) {
    return world.connects;
}

bool sim_is_open(void) {
    return world.open;
}

const struct text *sim_written(void) {
    return &world.written;
}

void sim_take(size_t limit) {
    world.limit = limit;
}

void sim_say(const void *bytes, size_t size) {
    if (world.open && !world.over) {
        text_add(&world.said, bytes, size);
    }
}

bool sim_unread(void) {
    return world.open && world.said.size > 0;
}

void sim_hang_up(int code) {
    world.over = true;
    world.code = code;
}

bool sim_readable(void) {
    return world.open && (world.said.size > 0 || world.over);
}

bool sim_writable(void) {
    return world.open && (world.limit > 0 || world.over);
}

/* ---- stream.h --------------------------------------------------------------------------- */

static ssize_t sim_readv(struct mj__stream *stream, const struct iovec *parts, int count,
                         bool wait) {
    HOLDS(!wait); /* the simulated loop never sleeps */
    size_t size = 0;
    HOLDS(world.open && stream->fd == SIM_DESCRIPTOR && count > 0);
    for (int i = 0; i < count && size < world.said.size; i++) {
        size_t left = world.said.size - size;
        size_t part = parts[i].iov_len < left ? parts[i].iov_len : left;
        memcpy(parts[i].iov_base, world.said.bytes + size, part);
        size += part;
    }
    if (size > 0) {
        text_drop(&world.said, size);
        return (ssize_t)size;
    }
    errno = world.over ? world.code : EAGAIN;
    return world.over && world.code == 0 ? 0 : -1;
}

static ssize_t sim_writev(struct mj__stream *stream, const struct iovec *parts, int count) {
    size_t size = 0;
    HOLDS(world.open && stream->fd == SIM_DESCRIPTOR && count > 0);
    if (world.over) {
        errno = EPIPE;
        return -1;
    }
    for (int i = 0; i < count && size < world.limit; i++) {
        size_t left = world.limit - size;
        size_t part = parts[i].iov_len < left ? parts[i].iov_len : left;
        text_add(&world.written, parts[i].iov_base, part);
        size += part;
    }
    errno = EAGAIN;
    return size > 0 ? (ssize_t)size : -1;
}

static void sim_close(struct mj__stream *stream) {
    if (stream->fd >= 0) {
        HOLDS(world.open);
        world.open = false;
        stream->fd = -1;
    }
}

static const struct mj__stream_ops ops = {
    .readv = sim_readv, .writev = sim_writev, .close = sim_close};

int mj__stream_connect(struct mj__stream *stream, const struct sockaddr *address,
                       socklen_t size, const struct mj__options *options,
                       struct mj__error *error) {
    (void)address, (void)size, (void)options, (void)error;
    unsigned connects = world.connects + 1;
    HOLDS(!world.open);
    sim_reset();
    world.connects = connects;
    world.open = true;
    stream->ops = &ops;
    stream->fd = SIM_DESCRIPTOR;
    return 0;
}

socklen_t mj__stream_unix_address(struct sockaddr_storage *address, const char *path) {
    (void)path;
    memset(address, 0, sizeof *address);
    return sizeof *address;
}

int mj__stream_connected(struct mj__stream *stream, struct mj__error *error) {
    (void)error;
    HOLDS(world.open && stream->fd == SIM_DESCRIPTOR);
    return 0;
}

void mj__stream_be_patient(struct mj__stream *stream, int64_t nanoseconds) {
    (void)stream, (void)nanoseconds;
}

size_t mj__stream_waiting(const struct mj__stream *stream) {
    HOLDS(world.open && stream->fd == SIM_DESCRIPTOR);
    return world.said.size;
}

void mj__stream_error(struct mj__error *error, enum mj__phase phase, int code) {
    mj__fail(error, MJ__RESET, "the stream broke with %d", code);
    error->phase = phase;
}
