/* conn_match.c: where a reply meets its request, and nowhere else.
 *
 * Replies come in the order of the requests, but quiet requests are mostly silent, and error lines
 * name nobody. A reply is given to a request only when it can be no other's (conn_identity.c says
 * what it may answer); what cannot be told apart is never guessed: it ends the connection. */
#include "conn_private.h"

static struct mj__request *request_at(const struct mj__conn *conn, uint64_t seq) {
    return mj__requests_at(&conn->requests, seq);
}

size_t mj__value_end(const struct mj__request *request, const char **end) {
    bool with_end = request->bits & MJ__ASCII_REPLY &&
                    mj__command((enum mj__command_id)request->id)->verb == MJ__VERB_READ;
    *end = "\r\nEND\r\n";
    return with_end ? 7 : 2;
}

/* ---- whose it is ------------------------------------------------------------------------ */

/* A later request than the one at seq may be what this reply is for: one that must answer, and if
 * a token of a script's is all that tells, a quiet one too. (By their keys quiet ones are told well
 * enough: it is a value of that key.) Nothing behind a noop is answered before that. */
static bool another_may(struct mj__conn *conn, uint64_t seq, const struct mj__reply *reply) {
    bool by_token = (request_at(conn, seq)->bits & MJ__USER_OPAQUE) != 0;
    while (++seq != conn->requests.tail && mj__conn_progress(conn, seq) != MJ__UNWRITTEN) {
        struct mj__request *request = request_at(conn, seq);
        bool could = by_token || !(request->bits & MJ__QUIET);
        if (could && mj__belongs(conn, request, reply)) {
            return true;
        }
        if (mj__is_noop(request)) {
            return false;
        }
    }
    return false;
}

/* A quiet request that spoke, or the first that must; none of which no byte has left yet. A quiet
 * one, and one that a stray may have answered already, is not taken where the reply may as well be
 * a later one's. */
bool mj__conn_find(struct mj__conn *conn, const struct mj__reply *reply, uint64_t *found) {
    size_t ordinary = 0;
    for (uint64_t seq = conn->requests.head; seq != conn->requests.tail; seq++) {
        struct mj__request *request = request_at(conn, seq);
        bool doubtful = false;
        if (seq != conn->requests.head && mj__conn_progress(conn, seq) == MJ__UNWRITTEN) {
            return false; /* the oldest has begun to leave, else nothing would be read */
        }
        if (request->bits & MJ__QUIET) {
            if (!mj__quiet_spoke(conn, seq, reply)) {
                continue;
            }
            doubtful = true;
        } else if (mj__belongs(conn, request, reply)) {
            doubtful = conn->stray_count > ordinary && !mj__is_noop(request);
        } else if (++ordinary > conn->stray_count) {
            return false;
        } else {
            continue;
        }
        *found = seq;
        return !doubtful || mj__is_unique(request, reply) || !another_may(conn, seq, reply);
    }
    return false;
}

int mj__conn_mismatch(struct mj__conn *conn, const struct mj__reply *reply,
                      struct mj__error *error) {
    const struct mj__request *request = request_at(conn, conn->requests.head);
    if (mj__conn_progress(conn, conn->requests.head) != MJ__WRITTEN) {
        return mj__fail(error, MJ__PROTOCOL,
                        "a reply came to %s, of which a part had not left yet: closed",
                        mj__command((enum mj__command_id)request->id)->name);
    }
    bool right_word = (mj__accepted_codes(request) & MJ__CODE(reply->code)) != 0;
    return mj__error_mismatch(error, request, reply, right_word);
}

/* ---- telling ---------------------------------------------------------------------------- */

/* Takes the oldest request off: it is answered. It stays readable until somebody is told, who may
 * submit another, or close the connection, and with it the queue. */
static const struct mj__request *pop(struct mj__conn *conn) {
    struct mj__requests *queue = &conn->requests;
    const struct mj__request *request = request_at(conn, queue->head);
    conn->popped_end = request->out_end;
    conn->counters.replies += !mj__is_fence(request);
    mj__requests_pop(queue);
    if (request->bits & MJ__QUIET) {
        conn->silent--;
        mj__conn_owe(conn);
    }
    if (mj__requests_count(queue) < conn->unfenced) {
        conn->unfenced = (uint32_t)mj__requests_count(queue);
    }
    return request;
}

static void count_reply(struct mj__conn *conn, const struct mj__request *request,
                        const struct mj__reply *reply) {
    if (mj__command((enum mj__command_id)request->id)->verb == MJ__VERB_READ) {
        bool hit = reply->code == MJ__VA && !mj__reply_is_stub(reply);
        conn->counters.hits += hit;
        conn->counters.misses += !hit && reply->code < MJ__SAYS_ERROR;
    }
}

/* Quiet requests speak when they fail; a counter that was made from its initial value also says
 * yes. */
static void tell_quiet(struct mj__conn *conn, const struct mj__request *request,
                       const struct mj__reply *reply) {
    struct mj__error error;
    if (mj__command((enum mj__command_id)request->id)->yes & MJ__CODE(reply->code)) {
        return;
    }
    mj__error_quiet_said(reply, true, &error);
    mj__tell_quiet_failed(conn, &error, request);
}

static void tell(struct mj__batch *batch, const struct mj__request *request, uint64_t seq,
                 const struct mj__reply *reply, const char *value, bool more) {
    struct mj__conn *conn = batch->conn;
    count_reply(conn, request, reply);
    if (request->done != NULL) {
        mj__batch_add(batch, request, seq, reply, value, more);
    } else if (request->bits & MJ__QUIET) { /* only the owner and the counters hear of it */
        tell_quiet(conn, request, reply);
    } else if (!more && !mj__is_fence(request)) {
        conn->counters.late++;
    }
}

/* Silence up to the fence: EN for a read, HD for the rest. */
static void tell_silence(struct mj__batch *batch, const struct mj__request *request,
                         uint64_t seq, const struct mj__error *doubt) {
    if (request->done == NULL) {
        return;
    }
    if (doubt != NULL) {
        mj__batch_add_lost(batch, request, seq, mj__loss_doubted(doubt->kind));
        return;
    }
    struct mj__reply silence = {.code = request->bits & MJ__META_READ ? MJ__EN : MJ__HD,
                                .text = ""};
    mj__batch_add(batch, request, seq, &silence, NULL, false);
}

/* Takes off and tells the requests before `seq`: quiet ones hear silence, or the doubt; ordinary
 * ones the strays from `next` on. A done function may close the connection meanwhile. */
static void tell_before(struct mj__batch *batch, uint64_t seq, size_t next,
                        const struct mj__error *doubt) {
    struct mj__conn *conn = batch->conn;
    for (;;) {
        mj__batch_room(batch);
        if (conn->state == MJ__CONN_CLOSED || conn->requests.head == seq) {
            return;
        }
        uint64_t at = conn->requests.head;
        const struct mj__request *request = pop(conn);
        if (request->bits & MJ__QUIET) {
            tell_silence(batch, request, at, doubt);
        } else {
            struct mj__reply said = mj__stray_reply(conn, next++);
            tell(batch, request, at, &said, NULL, false);
        }
    }
}

/* -1: a done function closed the connection; *error says why. */
static int still_open(const struct mj__conn *conn, struct mj__error *error) {
    if (conn->state != MJ__CONN_CLOSED) {
        return 0;
    }
    *error = conn->cause;
    return -1;
}

/* The reply to `seq` came, so all before it is answered: the quiet ones by silence or by a stray,
 * the ordinary ones by the last strays, in order. With quiet ones behind ordinary ones, and strays
 * for some of them, it cannot be told which of the strays are the ordinary ones'. */
static int settle_before(struct mj__batch *batch, uint64_t seq, const struct mj__reply *reply,
                         struct mj__error *error) {
    struct mj__conn *conn = batch->conn;
    size_t ordinary = 0;
    bool mixed = false;
    for (uint64_t at = conn->requests.head; at != seq; at++) {
        bool quiet = (request_at(conn, at)->bits & MJ__QUIET) != 0;
        mixed |= quiet && ordinary > 0;
        ordinary += !quiet;
    }
    if (mixed && conn->stray_count > ordinary) {
        return mj__error_order_lost(error, reply,
                                    ", and errors before it may be of one request or another");
    }
    if (ordinary > conn->stray_count) {
        return mj__error_order_lost(error, reply, ", which belongs to a later request");
    }
    size_t next = conn->stray_count - ordinary;
    const struct mj__error *doubt = mj__strays_settle(conn, seq, next);
    if (doubt != NULL) {
        batch->text = doubt->text;
    }
    tell_before(batch, seq, next, doubt);
    if (conn->stray_count > 0) { /* what was told refers to their text */
        mj__conn_deliver(batch);
        batch->text = "";
        conn->stray_count = 0;
    }
    return still_open(conn, error);
}

/* ---- match ------------------------------------------------------------------------------ */

static bool goes_on(const struct mj__request *request, const struct mj__reply *reply) {
    return reply->code == MJ__STAT || (reply->code == MJ__VA && request->id == MJ__GET_MANY);
}

/* One more line of an answer that goes on: -1 when it is more than any right answer has. */
static int take_line(struct mj__request *request, const struct mj__reply *reply,
                     struct mj__error *error) {
    bool stat = reply->code == MJ__STAT;
    size_t size = stat ? reply->key_size + reply->text_size + 8 : 1; /* "STAT ", " ", CRLF */
    if (size <= request->left) {
        request->left -= (uint32_t)size;
        return 0;
    }
    return stat ? mj__fail(error, MJ__TOO_LARGE, "the answer to stats does not end: closed")
                : mj__fail(error, MJ__PROTOCOL,
                           "more values came than keys were asked for: closed");
}

/* An error line to an ordinary request. After one to a command with a data block the server may
 * have run the block as commands; only SERVER_ERROR is known to swallow it. */
static int error_answer(struct mj__batch *batch, const struct mj__reply *reply,
                        struct mj__error *error) {
    struct mj__conn *conn = batch->conn;
    uint64_t seq = conn->requests.head;
    const struct mj__request *request = pop(conn);
    bool block_in_doubt = request->bits & MJ__BLOCK_SENT &&
                          reply->code != MJ__SAYS_SERVER_ERROR && request->id != MJ__LOGIN;
    tell(batch, request, seq, reply, NULL, false);
    if (block_in_doubt) {
        return mj__error_order_lost(
            error, reply, " to a command with a data block, and may have run the block");
    }
    return 0;
}

int mj__conn_match_error(struct mj__batch *batch, const struct mj__reply *reply,
                         struct mj__error *error) {
    struct mj__conn *conn = batch->conn;
    mj__batch_room(batch); /* before a request is taken off */
    if (still_open(conn, error) != 0) {
        return -1;
    }
    return request_at(conn, conn->requests.head)->bits & MJ__QUIET
               ? mj__stray_keep(conn, reply, error)
               : error_answer(batch, reply, error);
}

static bool counter_is_sound(const struct mj__request *request, const struct mj__reply *reply,
                             const char *value) {
    uint64_t number;
    return mj__command((enum mj__command_id)request->id)->verb != MJ__VERB_COUNT ||
           reply->code != MJ__VA ||
           (value != NULL && mj__parse_number(value, (size_t)reply->value_size, &number));
}

int mj__conn_match(struct mj__batch *batch, uint64_t seq, const struct mj__reply *reply,
                   const char *value, struct mj__error *error) {
    struct mj__conn *conn = batch->conn;
    if (seq != conn->requests.head && settle_before(batch, seq, reply, error) != 0) {
        return -1;
    }
    mj__batch_room(batch);
    if (still_open(conn, error) != 0) {
        return -1;
    }
    const struct mj__request *request = request_at(conn, seq);
    if (!counter_is_sound(request, reply, value)) {
        return mj__fail(error, MJ__PROTOCOL, "the reply to a counter is no number: closed");
    }
    bool more = goes_on(request, reply);
    if (more && take_line(request_at(conn, seq), reply, error) != 0) {
        return -1;
    }
    if (!more) {
        pop(conn);
    }
    tell(batch, request, seq, reply, value, more);
    return 0;
}
