/* conn_match.c: whose reply it is, and whether it may be.
 *
 * Replies come in the order of the requests, but quiet requests are mostly silent, and error lines
 * name nobody. What cannot be told apart is never guessed: it ends the connection. */
#include "conn_private.h"

#include <stdlib.h>
#include <string.h>

static struct mj__request *request_at(const struct mj__conn *conn, uint64_t seq) {
    return mj__requests_at(&conn->requests, seq);
}

/* Takes the oldest request off: it is answered. A copy, because telling may close the connection,
 * and with it the queue. */
static struct mj__request pop(struct mj__conn *conn) {
    struct mj__requests *queue = &conn->requests;
    struct mj__request request = *request_at(conn, queue->head);
    conn->popped_end = request.out_end;
    conn->counters.replies += !mj__is_fence(&request);
    mj__requests_pop(queue);
    if (request.bits & MJ__QUIET) {
        conn->silent--;
        mj__conn_owe(conn);
    }
    if (mj__requests_count(queue) < conn->unfenced) {
        conn->unfenced = (uint32_t)mj__requests_count(queue);
    }
    return request;
}

size_t mj__value_end(const struct mj__request *request, const char **end) {
    bool with_end = request->bits & MJ__ASCII_REPLY &&
                    mj__command((enum mj__command_id)request->id)->verb == MJ__VERB_READ;
    *end = "\r\nEND\r\n";
    return with_end ? 7 : 2;
}

static bool same(const char *a, size_t a_size, const char *b, size_t b_size) {
    return a_size == b_size && memcmp(a, b, a_size) == 0;
}

/* ---- is it an answer to this request? --------------------------------------------------- */

static uint16_t accepted_codes(const struct mj__request *request) {
    if (request->bits & MJ__META_BARE) {
        return MJ__CODE(MJ__MN) | MJ__CODE(MJ__ME) | MJ__CODE(MJ__EN);
    }
    return mj__command((enum mj__command_id)request->id)->answers;
}

static bool echo_matches(const char *echo, size_t echo_size, const char *sent, size_t sent_size,
                         bool may_be_missing) {
    return echo == NULL ? may_be_missing : same(echo, echo_size, sent, sent_size);
}

/* A server echoes the key as the item was stored, whichever way it was asked for: `mg foo k` gets
 * "kZm9v b" where the item was stored with b, and `mg Zm9v b k` gets "kfoo" where it was not. */
static bool key_echo_matches(const struct mj__request *request, const struct mj__reply *reply,
                             const char *key) {
    bool sent = (request->bits & MJ__USER_ENCODED) != 0;
    bool came = (reply->marks & MJ__KEY_ENCODED) != 0;
    if (reply->key == NULL || sent == came) {
        return echo_matches(reply->key, reply->key_size, key, request->key_size,
                            reply->code != MJ__VA);
    }
    return came ? mj__base64_is(reply->key, reply->key_size, key, request->key_size)
                : mj__base64_is(key, request->key_size, reply->key, reply->key_size);
}

/* Servers before 1.6.18 left the token out where there is no item; VA always has it. */
static bool meta_identity(const struct mj__conn *conn, const struct mj__request *request,
                          const struct mj__reply *reply) {
    bool bare = reply->code != MJ__VA;
    if (reply->code == MJ__MN || reply->code == MJ__ME) {
        return true;
    }
    if (request->bits & MJ__OPAQUE) {
        return reply->opaque == NULL
                   ? bare || request->bits & MJ__LOOSE
                   : reply->opaque_size == MJ__OPAQUE_SIZE &&
                         memcmp(reply->opaque, request->opaque, MJ__OPAQUE_SIZE) == 0;
    }
    const char *key = mj__requests_key(&conn->requests, request->key_at);
    if (request->bits & MJ__USER_OPAQUE) {
        return echo_matches(reply->opaque, reply->opaque_size, key + request->key_size,
                            request->token_size, bare);
    }
    if (request->bits & MJ__USER_KEY) {
        return key_echo_matches(request, reply, key);
    }
    return reply->opaque == NULL;
}

/* The classic protocol has a yes of its own for each verb: STORED is no answer to a delete. */
static bool yes_matches(const struct mj__request *request, const struct mj__reply *reply) {
    static const char *const words[] = {[MJ__VERB_STORE] = "STORED",
                                        [MJ__VERB_REMOVE] = "DELETED",
                                        [MJ__VERB_TOUCH] = "TOUCHED",
                                        [MJ__VERB_PLAIN] = "OK"};
    const char *word = words[mj__command((enum mj__command_id)request->id)->verb];
    return same(reply->text, reply->text_size, word, strlen(word));
}

static bool ascii_identity(struct mj__conn *conn, struct mj__request *request,
                           const struct mj__reply *reply) {
    if (reply->code == MJ__HD) {
        return yes_matches(request, reply);
    }
    if (reply->code == MJ__EN) {
        return request->id != MJ__TOUCH; /* it may over meta alone, where it is an mg */
    }
    if (reply->code != MJ__VA) {
        return true;
    }
    if (request->id == MJ__INCR || request->id == MJ__DECR) {
        return false; /* the same: over this protocol a counter is a line of digits */
    }
    if (reply->key == NULL) {
        return false; /* a meta reply, to a request behind this one */
    }
    if (!conn->endpoint.options.verify) {
        return true;
    }
    if (request->id == MJ__GET_MANY) {
        return mj__requests_has_key(&conn->requests, request, reply->key, reply->key_size);
    }
    const char *key = mj__requests_key(&conn->requests, request->key_at);
    return same(reply->key, reply->key_size, key, request->key_size);
}

static bool belongs(struct mj__conn *conn, struct mj__request *request,
                    const struct mj__reply *reply) {
    if (!(accepted_codes(request) & MJ__CODE(reply->code))) {
        return false;
    }
    return request->bits & MJ__ASCII_REPLY ? ascii_identity(conn, request, reply)
                                           : meta_identity(conn, request, reply);
}

/* A quiet request's own words: it is named, or it is the only one that can have spoken. */
static bool quiet_spoke(struct mj__conn *conn, uint64_t seq, const struct mj__reply *reply) {
    struct mj__request *request = request_at(conn, seq);
    if (request->bits & MJ__ASCII_REPLY || reply->code == MJ__MN ||
        !belongs(conn, request, reply)) {
        return false;
    }
    bool named = reply->opaque != NULL || (request->bits & MJ__USER_KEY && reply->key != NULL);
    if (named || seq != conn->requests.head) {
        return named;
    }
    if (seq + 1 == conn->requests.tail) {
        return true;
    }
    const struct mj__request *next = request_at(conn, seq + 1);
    return next->id == MJ__NOOP || next->bits & MJ__META_BARE;
}

/* ---- telling ---------------------------------------------------------------------------- */

static void tell_quiet_failed(struct mj__conn *conn, const struct mj__error *error,
                              const struct mj__request *request) {
    conn->counters.quiet_failed++;
    if (conn->owner.quiet_failed != NULL) {
        const char *key =
            request != NULL ? mj__requests_key(&conn->requests, request->key_at) : NULL;
        conn->owner.quiet_failed(conn->owner.arg, conn, error,
                                 request != NULL ? mj__command((enum mj__command_id)request->id)
                                                 : NULL,
                                 key, request != NULL ? request->key_size : 0);
    }
}

static void count_reply(struct mj__conn *conn, const struct mj__request *request,
                        const struct mj__reply *reply) {
    if (mj__command((enum mj__command_id)request->id)->verb == MJ__VERB_READ) {
        bool hit = reply->code == MJ__VA && !mj__reply_is_stub(reply);
        conn->counters.hits += hit;
        conn->counters.misses += !hit && reply->code < MJ__SAYS_ERROR;
    }
}

/* A quiet request that nobody waits for was refused: only on_error and the counters hear of it. */
static void quiet_refused(struct mj__conn *conn, const struct mj__request *request,
                          const struct mj__reply *reply) {
    static const struct {
        enum mj__code code;
        const char *text;
    } words[] = {{MJ__NS, "not stored"},
                 {MJ__EX, "exists: the cas token is old"},
                 {MJ__NF, "there is no such item"}};
    struct mj__error error;
    const char *text = "refused";
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (words[i].code == reply->code) {
            text = words[i].text;
        }
    }
    mj__fail(&error, MJ__CLIENT_ERROR, "a quiet request failed: %s", text);
    error.phase = MJ__PHASE_READ;
    error.sent = MJ__SENT_YES;
    tell_quiet_failed(conn, &error, request);
}

static void tell(struct mj__batch *batch, const struct mj__request *request, uint64_t seq,
                 const struct mj__reply *reply, const char *value, bool more) {
    struct mj__conn *conn = batch->conn;
    count_reply(conn, request, reply);
    if (request->done == NULL) {
        if (request->bits & MJ__QUIET) {
            quiet_refused(conn, request, reply);
        } else if (!more && !mj__is_fence(request)) {
            conn->counters.late++;
        }
        return;
    }
    struct mj__waiting_answer *answer = mj__batch_add(batch, request, seq);
    answer->reply = *reply;
    answer->value = value;
    answer->more = more;
}

/* Silence up to the fence: EN for a read, HD for the rest. */
static void tell_silence(struct mj__batch *batch, const struct mj__request *request,
                         uint64_t seq, const struct mj__error *doubt) {
    if (request->done == NULL) {
        return;
    }
    struct mj__waiting_answer *answer = mj__batch_add(batch, request, seq);
    if (doubt != NULL) {
        answer->failed = true;
        answer->kind = doubt->kind;
        answer->phase = MJ__PHASE_READ;
        answer->sent = MJ__SENT_MAYBE;
        return;
    }
    answer->reply =
        (struct mj__reply){.code = request->bits & MJ__META_READ ? MJ__EN : MJ__HD, .text = ""};
}

/* ---- strays: error lines while quiet requests are outstanding --------------------------- */

/* True when some request from the oldest up to the first that must answer carried a block. */
static bool block_in_doubt(const struct mj__conn *conn) {
    for (uint64_t seq = conn->requests.head; seq != conn->requests.tail; seq++) {
        const struct mj__request *request = request_at(conn, seq);
        if (request->bits & MJ__BLOCK_SENT) {
            return true;
        }
        if (!(request->bits & MJ__QUIET)) {
            return false;
        }
    }
    return false;
}

static int order_lost(struct mj__error *error, const struct mj__reply *reply, const char *why) {
    char words[96];
    mj__printable(words, sizeof words, reply->text, reply->text_size);
    static const char *const names[] = {"ERROR", "CLIENT_ERROR", "SERVER_ERROR"};
    const char *name =
        reply->code >= MJ__SAYS_ERROR ? names[reply->code - MJ__SAYS_ERROR] : "a reply";
    return mj__fail(error, MJ__PROTOCOL, "closed: the server answered %s %s%s", name, words,
                    why);
}

static int grow_strays(struct mj__conn *conn) {
    size_t capacity = conn->strays == NULL ? MJ__STRAYS_FIRST : conn->strays->capacity * 2;
    size_t size = sizeof *conn->strays + capacity * sizeof *conn->strays->list;
    struct mj__strays *strays = realloc(conn->strays, size);
    if (strays == NULL) {
        return -1;
    }
    strays->capacity = capacity;
    conn->strays = strays;
    return 0;
}

static int keep_stray(struct mj__conn *conn, const struct mj__reply *reply,
                      struct mj__error *error) {
    bool ascii = (request_at(conn, conn->requests.head)->bits & MJ__ASCII_REPLY) != 0;
    if (ascii || (reply->code != MJ__SAYS_SERVER_ERROR && block_in_doubt(conn))) {
        order_lost(error, reply,
                   " while quiet requests were outstanding, and it cannot be told to which");
        return -1;
    }
    if (conn->stray_count == MJ__STRAYS_MAX) {
        return order_lost(error, reply, ", one of too many errors to quiet requests");
    }
    if ((conn->strays == NULL || conn->stray_count == conn->strays->capacity) &&
        grow_strays(conn) != 0) {
        return mj__fail(error, MJ__NO_MEMORY, "no memory to note a server's error");
    }
    struct mj__stray *stray = &conn->strays->list[conn->stray_count++];
    stray->code = reply->code;
    stray->text_size =
        reply->text_size < sizeof stray->text ? reply->text_size : sizeof stray->text;
    memcpy(stray->text, reply->text, stray->text_size);
    conn->unfenced += conn->unfenced == 0; /* a noop behind them all will tell them apart */
    conn->fence_hurry = true;
    mj__conn_queue_flush(conn);
    return 0;
}

static struct mj__reply stray_reply(const struct mj__stray *stray) {
    return (struct mj__reply){
        .code = stray->code, .text = stray->text, .text_size = stray->text_size};
}

static void stray_error(const struct mj__stray *stray, const char *prefix,
                        struct mj__error *error) {
    mj__fail(error, stray->code == MJ__SAYS_SERVER_ERROR ? MJ__SERVER_ERROR : MJ__CLIENT_ERROR,
             "%s%.*s", prefix, (int)stray->text_size, stray->text);
    error->phase = MJ__PHASE_READ;
    error->sent = MJ__SENT_YES;
}

/* The first `count` strays were for quiet requests before `seq`: for all of these, where there are
 * no more of them, else for one or another. True: they are in doubt. */
static bool settle_quiet(struct mj__conn *conn, uint64_t seq, size_t count) {
    size_t quiet = 0;
    for (uint64_t at = conn->requests.head; at != seq; at++) {
        quiet += (request_at(conn, at)->bits & MJ__QUIET) != 0;
    }
    uint64_t at = conn->requests.head;
    for (size_t i = 0; i < count && conn->state != MJ__CONN_CLOSED; i++, at++) {
        while (quiet == count && !(request_at(conn, at)->bits & MJ__QUIET)) {
            at++;
        }
        stray_error(&conn->strays->list[i],
                    quiet == count
                        ? "a quiet request failed: "
                        : "one of several quiet requests failed, it cannot be told which: ",
                    &conn->strays->doubt);
        const struct mj__request *request = quiet == count ? request_at(conn, at) : NULL;
        if (request == NULL || request->done == NULL) { /* else its caller is told */
            tell_quiet_failed(conn, &conn->strays->doubt, request);
        }
    }
    return count > 0;
}

/* The reply to `seq` came, so all before it is answered: the quiet ones by silence or by a stray,
 * the ordinary ones by the last strays, in order. */
static int settle_before(struct mj__batch *batch, uint64_t seq, const struct mj__reply *reply,
                         struct mj__error *error) {
    struct mj__conn *conn = batch->conn;
    size_t ordinary = 0;
    for (uint64_t at = conn->requests.head; at != seq; at++) {
        ordinary += !(request_at(conn, at)->bits & MJ__QUIET);
    }
    if (ordinary > conn->stray_count) {
        return order_lost(error, reply, ", which belongs to a later request");
    }
    size_t next = conn->stray_count - ordinary;
    const struct mj__error *doubt = settle_quiet(conn, seq, next) ? &conn->strays->doubt : NULL;
    if (doubt != NULL) {
        batch->text = doubt->text;
    }
    for (;;) {
        mj__batch_room(batch);
        if (conn->state == MJ__CONN_CLOSED || conn->requests.head == seq) {
            break;
        }
        uint64_t at = conn->requests.head;
        struct mj__request request = pop(conn);
        if (request.bits & MJ__QUIET) {
            tell_silence(batch, &request, at, doubt);
        } else {
            struct mj__reply said = stray_reply(&conn->strays->list[next++]);
            tell(batch, &request, at, &said, NULL, false);
        }
    }
    if (conn->stray_count > 0) { /* what was told refers to their text */
        mj__conn_deliver(batch);
        batch->text = "";
        conn->stray_count = 0;
    }
    if (conn->state == MJ__CONN_CLOSED) {
        *error = conn->cause;
        return -1;
    }
    return 0;
}

/* ---- match ------------------------------------------------------------------------------ */

/* The reply says itself whose it is. */
static bool is_named(const struct mj__conn *conn, const struct mj__request *request,
                     const struct mj__reply *reply) {
    if (request->bits & MJ__ASCII_REPLY) {
        return reply->code == MJ__VA && conn->endpoint.options.verify;
    }
    return reply->opaque != NULL || (request->bits & MJ__USER_KEY && reply->key != NULL);
}

/* A later request than the one at seq may be what this reply answers. */
static bool another_may(struct mj__conn *conn, uint64_t seq, const struct mj__reply *reply) {
    while (++seq != conn->requests.tail) {
        struct mj__request *request = request_at(conn, seq);
        if (!(request->bits & MJ__QUIET) && belongs(conn, request, reply)) {
            return true;
        }
    }
    return false;
}

/* The request that this reply answers: a quiet one that spoke, or the first that must. One that a
 * stray may have answered already is not taken where the reply may as well be a later one's. */
bool mj__conn_find(struct mj__conn *conn, const struct mj__reply *reply, uint64_t *found) {
    size_t ordinary = 0;
    for (uint64_t seq = conn->requests.head; seq != conn->requests.tail; seq++) {
        struct mj__request *request = request_at(conn, seq);
        if (request->bits & MJ__QUIET) {
            if (quiet_spoke(conn, seq, reply)) {
                *found = seq;
                return true;
            }
            continue;
        }
        if (belongs(conn, request, reply)) {
            bool doubtful = conn->stray_count > ordinary && request->id != MJ__NOOP &&
                            !is_named(conn, request, reply); /* no server refuses a noop */
            *found = seq;
            return !doubtful || !another_may(conn, seq, reply);
        }
        if (++ordinary > conn->stray_count) {
            return false;
        }
    }
    return false;
}

int mj__conn_mismatch(struct mj__conn *conn, const struct mj__reply *reply,
                      struct mj__error *error) {
    static const char *const names[] = {[MJ__HD] = "HD (or STORED, DELETED, OK)",
                                        [MJ__VA] = "a value",
                                        [MJ__EN] = "EN (or END)",
                                        [MJ__NF] = "NF (or NOT_FOUND)",
                                        [MJ__NS] = "NS (or NOT_STORED)",
                                        [MJ__EX] = "EX (or EXISTS)",
                                        [MJ__MN] = "MN",
                                        [MJ__ME] = "ME",
                                        [MJ__NUMBER] = "a number",
                                        [MJ__VERSION_LINE] = "VERSION",
                                        [MJ__STAT] = "STAT",
                                        [MJ__RESET_LINE] = "RESET"};
    const struct mj__request *request = request_at(conn, conn->requests.head);
    const char *op = mj__command((enum mj__command_id)request->id)->name;
    bool word = reply->code == MJ__HD || reply->code == MJ__EN;
    if (request->bits & MJ__ASCII_REPLY && word) {
        return mj__fail(error, MJ__PROTOCOL, "%.*s is no answer to %s: closed",
                        (int)reply->text_size, reply->text, op);
    }
    if (accepted_codes(request) & MJ__CODE(reply->code)) {
        return mj__fail(
            error, MJ__PROTOCOL,
            "a reply to %s belongs to another request (%s does not match): closed", op,
            request->bits & MJ__ASCII_REPLY ? "its key" : "its opaque token or key");
    }
    return mj__fail(error, MJ__PROTOCOL, "%s is no answer to %s: closed", names[reply->code],
                    op);
}

static bool goes_on(const struct mj__request *request, const struct mj__reply *reply) {
    return reply->code == MJ__STAT || (reply->code == MJ__VA && request->id == MJ__GET_MANY);
}

/* Room for what is to be told, made before a request is taken off. -1: a done function closed
 * the connection. */
static int make_room(struct mj__batch *batch, struct mj__error *error) {
    mj__batch_room(batch);
    if (batch->conn->state != MJ__CONN_CLOSED) {
        return 0;
    }
    *error = batch->conn->cause;
    return -1;
}

/* An error line to an ordinary request. After one to a command with a data block the server may
 * have run the block as commands; only SERVER_ERROR is known to swallow it. */
static int error_answer(struct mj__batch *batch, const struct mj__reply *reply,
                        struct mj__error *error) {
    struct mj__conn *conn = batch->conn;
    uint64_t seq = conn->requests.head;
    struct mj__request request = pop(conn);
    tell(batch, &request, seq, reply, NULL, false);
    if (request.bits & MJ__BLOCK_SENT && reply->code != MJ__SAYS_SERVER_ERROR &&
        request.id != MJ__LOGIN) {
        return order_lost(error, reply,
                          " to a command with a data block, and may have run the block");
    }
    return 0;
}

int mj__conn_match_error(struct mj__batch *batch, const struct mj__reply *reply,
                         struct mj__error *error) {
    struct mj__conn *conn = batch->conn;
    if (make_room(batch, error) != 0) {
        return -1;
    }
    return request_at(conn, conn->requests.head)->bits & MJ__QUIET
               ? keep_stray(conn, reply, error)
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
    if (make_room(batch, error) != 0) {
        return -1;
    }
    struct mj__request request = *request_at(conn, seq);
    if (!counter_is_sound(&request, reply, value)) {
        return mj__fail(error, MJ__PROTOCOL, "the reply to a counter is no number: closed");
    }
    bool more = goes_on(&request, reply);
    if (!more) {
        pop(conn);
    }
    tell(batch, &request, seq, reply, value, more);
    return 0;
}
