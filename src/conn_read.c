/* conn_read.c: one read per turn, straight to where the bytes are needed; then parse. */
#include "conn_private.h"

#include <errno.h>
#include <string.h>

enum { READ_ROOM = 4096 }; /* the least room a read is made with */

/* ---- parse ------------------------------------------------------------------------------ */

/* Quiet requests before the one that must answer may speak too, and those behind it whose elders
 * the strays may have answered. */
static int parse_in_doubt(const struct mj__conn *conn, const char *bytes, size_t size,
                          struct mj__reply *reply) {
    bool meta = false, ascii = false;
    size_t ordinary = 0;
    for (uint64_t seq = conn->requests.head;
         seq != conn->requests.tail && ordinary <= conn->stray_count; seq++) {
        uint16_t bits = mj__requests_at(&conn->requests, seq)->bits;
        ordinary += !(bits & MJ__QUIET);
        ascii |= (bits & (MJ__QUIET | MJ__ASCII_REPLY)) == MJ__ASCII_REPLY;
        meta |= !(bits & MJ__ASCII_REPLY);
    }
    int length = ascii || !meta ? mj__ascii_parse(bytes, size, reply) : -1;
    return length >= 0 || !meta ? length : mj__meta_parse(bytes, size, reply);
}

/* In the words of the request that must answer next. */
static int parse_line(const struct mj__conn *conn, const char *bytes, size_t size,
                      struct mj__reply *reply) {
    uint16_t bits = mj__requests_at(&conn->requests, conn->requests.head)->bits;
    if (bits & MJ__QUIET || conn->stray_count > 0) {
        return parse_in_doubt(conn, bytes, size, reply);
    }
    return bits & MJ__ASCII_REPLY ? mj__ascii_parse(bytes, size, reply)
                                  : mj__meta_parse(bytes, size, reply);
}

static int not_understood(const struct mj__conn *conn, const char *bytes, size_t size,
                          struct mj__error *error) {
    char words[80];
    const char *end = memchr(bytes, '\n', size);
    size_t line = end != NULL ? (size_t)(end - bytes) : size;
    mj__printable(words, sizeof words, bytes,
                  line > 0 && bytes[line - 1] == '\r' ? line - 1 : line);
    if (conn->counters.replies == 0) {
        return mj__fail(error, MJ__PROTOCOL,
                        "the peer is no memcached: it answered \"%s\"; check host and port",
                        words);
    }
    return mj__fail(error, MJ__PROTOCOL, "a reply makes no sense: \"%s\"; closed", words);
}

/* Whether an error line may begin so. */
static bool may_become_error(const char *bytes, size_t size) {
    static const char *const words[] = {"ERROR", "SERVER_ERROR", "CLIENT_ERROR"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        size_t length = strlen(words[i]);
        if (memcmp(bytes, words[i], size < length ? size : length) == 0) {
            return true;
        }
    }
    return false;
}

/* Something was asked that a reply can answer: its bytes have begun to leave, and no line came
 * before that which nobody asked for. */
static bool awaits_reply(const struct mj__conn *conn) {
    return mj__requests_count(&conn->requests) > 0 && !conn->unasked &&
           mj__conn_progress(conn, conn->requests.head) != MJ__UNWRITTEN;
}

/* Bytes came that nobody asked for: a second reply, a greeting, an error as a farewell. The rest
 * of such a line answers no request that is made meanwhile. */
static int unasked(struct mj__conn *conn, const char *bytes, size_t size,
                   struct mj__error *error) {
    struct mj__reply reply;
    int length = mj__ascii_parse(bytes, size, &reply);
    if (length == 0 && may_become_error(bytes, size)) {
        conn->unasked = true;
        return 0;
    }
    if (length > 0 && reply.code >= MJ__SAYS_ERROR) {
        char words[128];
        mj__printable(words, sizeof words, reply.text, reply.text_size);
        return mj__fail(error, MJ__SERVER_ERROR, "the server said \"%s\" unasked", words);
    }
    char words[80];
    mj__printable(words, sizeof words, bytes, size < 64 ? size : 64);
    return mj__fail(error, MJ__PROTOCOL, "bytes came that nobody asked for: \"%s\"; closed",
                    words);
}

static int bad_end(struct mj__error *error) {
    return mj__fail(error, MJ__PROTOCOL, "a value does not end where its length says: closed");
}

/* A value with storage of its own is whole. Its line is parsed anew: what it said pointed into the
 * receive buffer. */
static int end_value(struct mj__batch *batch, struct mj__error *error) {
    struct mj__conn *conn = batch->conn;
    struct mj__incoming value = conn->incoming;
    struct mj__reply reply;
    uint64_t seq;
    int status;
    conn->incoming = (struct mj__incoming){0};
    parse_line(conn, value.block, value.line_size, &reply);
    if (!mj__conn_find(conn, &reply, &seq)) {
        status = mj__conn_mismatch(conn, &reply, error);
    } else {
        status = mj__conn_match(batch, seq, &reply, mj__value_bytes(&value), error);
    }
    if (status == 0 && value.sink_refused) {
        mj__batch_lose_last(batch, mj__loss_answered(MJ__NO_MEMORY),
                            "the buffer could not take the value");
    }
    mj__conn_deliver(batch);
    batch->text = "";
    mj__pool_give(conn->pool, value.block, value.block_size);
    return status;
}

/* TOOK: one reply. TOOK_VALUE: a line, and what there is of its value. Above 0: go on. */
enum { FAILED = -1, NEEDS_MORE, TOOK, TOOK_VALUE, DELIVER_FIRST };

/* A value that has storage of its own, and takes its bytes from the receive buffer. */
static int go_on_with_value(struct mj__batch *batch, struct mj__error *error) {
    struct mj__conn *conn = batch->conn;
    mj__value_from_buffer(conn);
    if (!mj__value_ends_well(&conn->incoming)) {
        return bad_end(error);
    }
    if (conn->incoming.got < conn->incoming.want) {
        return NEEDS_MORE;
    }
    return end_value(batch, error) == 0 ? TOOK : FAILED;
}

/* A reply's line in the receive buffer, and whose it is. */
struct line {
    struct mj__reply reply;
    uint64_t seq;
    size_t size;  /* of the line */
    size_t whole; /* with its value */
};

/* A value that is not whole yet: waits in the buffer, or gets storage of its own. */
static int short_value(struct mj__batch *batch, const struct line *line, size_t consumed,
                       struct mj__error *error) {
    struct mj__conn *conn = batch->conn;
    bool sink = mj__requests_at(&conn->requests, line->seq)->sink != NULL;
    if (line->whole <= MJ__BLOCK && !sink) {
        return NEEDS_MORE;
    }
    if (batch->count > 0 || consumed > 0) {
        return DELIVER_FIRST;
    }
    if (!conn->endpoint.options.direct_read) {
        size_t missing = line->whole - mj__buffer_length(&conn->in);
        if (mj__buffer_reserve(conn->pool, &conn->in, missing) != 0) {
            return mj__fail(error, MJ__NO_MEMORY, "no memory for a value of %llu bytes: closed",
                            (unsigned long long)line->reply.value_size);
        }
        return NEEDS_MORE;
    }
    if (mj__value_begin(conn, line->seq, &line->reply, line->size, error) != 0) {
        return FAILED;
    }
    mj__value_from_buffer(conn);
    return TOOK_VALUE;
}

/* The value behind a line: TOOK when it is there with its end, or what else is to be done. */
static int take_value(struct mj__batch *batch, struct line *line, const char *bytes,
                      size_t size, size_t consumed, struct mj__error *error) {
    struct mj__conn *conn = batch->conn;
    uint64_t value_size = line->reply.value_size;
    if (value_size > conn->endpoint.options.max_value) {
        return mj__fail(error, MJ__TOO_LARGE,
                        "a reply announces %llu bytes, more than max_value: closed",
                        (unsigned long long)value_size);
    }
    const char *end;
    size_t end_size = mj__value_end(mj__requests_at(&conn->requests, line->seq), &end);
    size_t have = size - line->size;
    if (have > value_size) {
        const char *behind = bytes + line->size + value_size;
        size_t come = have - value_size < end_size ? have - (size_t)value_size : end_size;
        bool good = behind[0] == '\r' && (come < 2 || behind[1] == '\n');
        if (!good || (come > 2 && memcmp(behind, end, come) != 0)) {
            return bad_end(error);
        }
    }
    line->whole = line->size + (size_t)value_size + end_size;
    return size >= line->whole ? TOOK : short_value(batch, line, consumed, error);
}

/* One reply behind the first *consumed bytes of the buffer; *consumed moves behind it. */
static int parse_one(struct mj__batch *batch, size_t *consumed, struct mj__error *error) {
    struct mj__conn *conn = batch->conn;
    const char *bytes = mj__buffer_head(&conn->in) + *consumed;
    size_t size = mj__buffer_length(&conn->in) - *consumed;
    const char *value = NULL;
    struct line line;
    if (!awaits_reply(conn)) {
        return unasked(conn, bytes, size, error);
    }
    int length = parse_line(conn, bytes, size, &line.reply);
    if (length <= 0) {
        return length == 0 ? NEEDS_MORE : not_understood(conn, bytes, size, error);
    }
    line.size = line.whole = (size_t)length;
    if (line.reply.code >= MJ__SAYS_ERROR) {
        *consumed += line.whole;
        return mj__conn_match_error(batch, &line.reply, error) == 0 ? TOOK : FAILED;
    }
    if (!mj__conn_find(conn, &line.reply, &line.seq)) {
        return mj__conn_mismatch(conn, &line.reply, error);
    }
    conn->answered = line.seq + 1; /* whatever becomes of it */
    if (line.reply.has_value) {
        int status = take_value(batch, &line, bytes, size, *consumed, error);
        if (status != TOOK) {
            return status;
        }
        value = bytes + line.size;
    }
    *consumed += line.whole;
    return mj__conn_match(batch, line.seq, &line.reply, value, error) == 0 ? TOOK : FAILED;
}

static void parse(struct mj__conn *conn) {
    struct mj__error error;
    struct mj__batch batch;
    size_t consumed = 0;
    int status = TOOK;
    mj__batch_begin(&batch, conn);
    while (status > 0 && conn->state != MJ__CONN_CLOSED) {
        if (conn->incoming.to != MJ__NO_VALUE) {
            status = go_on_with_value(&batch, &error);
            continue;
        }
        status = consumed < mj__buffer_length(&conn->in) ? parse_one(&batch, &consumed, &error)
                                                         : NEEDS_MORE;
        if (status == DELIVER_FIRST) {
            mj__conn_deliver(&batch);
            if (conn->state != MJ__CONN_CLOSED) {
                mj__buffer_consume(&conn->in, consumed);
                consumed = 0;
            }
        }
    }
    mj__batch_end(&batch);
    if (conn->state == MJ__CONN_CLOSED) {
        return;
    }
    mj__buffer_consume(&conn->in, consumed);
    if (status == FAILED) {
        error.phase = conn->state == MJ__CONN_HANDSHAKE ? MJ__PHASE_HANDSHAKE : MJ__PHASE_READ;
        mj__conn_fail(conn, &error);
    }
}

/* ---- read ------------------------------------------------------------------------------- */

static void peer_left(struct mj__conn *conn) {
    struct mj__error error;
    if (mj__conn_retry_classic(conn)) {
        return;
    }
    bool cut = conn->incoming.to != MJ__NO_VALUE || mj__buffer_length(&conn->in) > 0;
    if (conn->write_error == ECONNRESET) { /* told to the write, it is not told to a read */
        mj__stream_error(&error, MJ__PHASE_READ, ECONNRESET);
    } else {
        mj__fail(&error, MJ__CLOSED, "the server closed the connection%s",
                 cut ? " in the middle of a reply" : "");
    }
    error.phase = conn->state == MJ__CONN_HANDSHAKE ? MJ__PHASE_HANDSHAKE : MJ__PHASE_READ;
    mj__conn_fail(conn, &error);
}

static void read_failed(struct mj__conn *conn, int code) {
    struct mj__error error;
    if (code == EAGAIN || code == EWOULDBLOCK) {
        return;
    }
    /* One that leaves with bytes of ours unread resets the connection instead of ending it. */
    if (code == ECONNRESET && mj__conn_retry_classic(conn)) {
        return;
    }
    mj__stream_error(&error, MJ__PHASE_READ, code);
    if (conn->state == MJ__CONN_HANDSHAKE) {
        error.phase = MJ__PHASE_HANDSHAKE;
    }
    mj__conn_fail(conn, &error);
}

/* What was read goes first to the value under way, then to the receive buffer. */
static void distribute(struct mj__conn *conn, size_t count, size_t value_size) {
    size_t to_value = count < value_size ? count : value_size;
    if (to_value > 0) {
        mj__value_read(conn, to_value);
    }
    conn->in.tail += count - to_value;
}

static void after_read(struct mj__conn *conn) {
    mj__requests_forget_keys(conn->pool, &conn->requests);
    if (mj__buffer_length(&conn->in) == 0) {
        mj__buffer_release(conn->pool, &conn->in);
    }
    if (conn->parked != NULL) {
        mj__conn_room(conn);
    }
}

/* Where a read goes: first to the value under way, then to the receive buffer. 0 pieces: no
 * memory, and the connection is closed. */
static int read_room(struct mj__conn *conn, struct iovec *room, size_t *value_size) {
    int rooms = 0;
    if (mj__buffer_reserve(conn->pool, &conn->in, READ_ROOM) != 0) {
        struct mj__error error;
        mj__fail(&error, MJ__NO_MEMORY, "no memory to read a reply into: closed");
        error.phase = MJ__PHASE_READ;
        mj__conn_fail(conn, &error);
        return 0;
    }
    if (conn->incoming.to != MJ__NO_VALUE) {
        room[0] = mj__value_room(conn);
        *value_size = room[0].iov_len;
        rooms = room[0].iov_len > 0;
    }
    room[rooms++] =
        (struct iovec){conn->in.data + conn->in.tail, conn->in.size - conn->in.tail};
    return rooms;
}

/* True: it filled all the room there was, and more may be waiting. */
static bool read_once(struct mj__conn *conn, bool wait) {
    struct iovec room[2];
    size_t value_size = 0;
    int rooms = read_room(conn, room, &value_size);
    if (rooms == 0) {
        return false;
    }
    conn->counters.reads++;
    ssize_t count = conn->stream.ops->readv(&conn->stream, room, rooms, wait);
    if (count <= 0) {
        if (count == 0) {
            peer_left(conn);
        } else {
            read_failed(conn, errno);
        }
        return false;
    }
    conn->counters.bytes_read += (uint64_t)count;
    conn->hears = true;
    mj__conn_queue_flush(conn);
    bool filled = (size_t)count == value_size + room[rooms - 1].iov_len;
    distribute(conn, (size_t)count, value_size);
    parse(conn);
    if (conn->state != MJ__CONN_CLOSED) {
        after_read(conn);
    }
    return filled;
}

/* What filled its room was the beginning of more, often of a large value that is all there by now:
 * once more, without waiting. No oftener, since one that sends without end must not hold the turn. */
void mj__conn_readable(struct mj__conn *conn) {
    bool wait = mj__loop_sleeps_in_read(conn->loop);
    if (conn->state != MJ__CONN_CLOSED && read_once(conn, wait) &&
        conn->state != MJ__CONN_CLOSED) {
        (void)read_once(conn, false);
    }
}
