/* conn_error.c: what is told of a request that ends without the server's answer: the one place
 * where its phase and its `sent` are decided.
 *
 *     no     not a byte of it was written, and none will be
 *     maybe  some or all of it was written, or still will be
 *     yes    the server has answered it, or has begun to */
#include "conn_private.h"

#include <string.h>

/* ---- how far it has come ---------------------------------------------------------------- */

static uint64_t start_of(const struct mj__conn *conn, uint64_t seq) {
    return seq == conn->requests.head ? conn->popped_end
                                      : mj__requests_at(&conn->requests, seq - 1)->out_end;
}

enum mj__progress mj__conn_progress(const struct mj__conn *conn, uint64_t seq) {
    uint64_t written = conn->out.written;
    if (written <= start_of(conn, seq)) {
        return MJ__UNWRITTEN;
    }
    return written < mj__requests_at(&conn->requests, seq)->out_end ? MJ__HALF_WRITTEN
                                                                    : MJ__WRITTEN;
}

static struct mj__loss loss(enum mj__kind kind, enum mj__phase phase, enum mj__sent sent) {
    return (struct mj__loss){.kind = kind, .phase = phase, .sent = sent};
}

static struct mj__loss by_progress(const struct mj__conn *conn, uint64_t seq,
                                   enum mj__kind kind, enum mj__sent unwritten) {
    if (conn->answered == seq + 1) {
        return mj__loss_answered(kind);
    }
    switch (mj__conn_progress(conn, seq)) {
    case MJ__UNWRITTEN:
        return loss(kind, MJ__PHASE_QUEUE, unwritten);
    case MJ__HALF_WRITTEN:
        return loss(kind, MJ__PHASE_WRITE, MJ__SENT_MAYBE);
    default:
        return loss(kind, MJ__PHASE_READ, MJ__SENT_MAYBE);
    }
}

struct mj__loss mj__loss_closed(const struct mj__conn *conn, uint64_t seq, enum mj__kind kind) {
    return by_progress(conn, seq, kind, MJ__SENT_NO);
}

struct mj__loss mj__loss_given_up(const struct mj__conn *conn, uint64_t seq,
                                  enum mj__kind kind) {
    return by_progress(conn, seq, kind, MJ__SENT_MAYBE);
}

struct mj__loss mj__loss_refused(enum mj__kind kind) {
    return loss(kind, MJ__PHASE_QUEUE, MJ__SENT_NO);
}

struct mj__loss mj__loss_doubted(enum mj__kind kind) {
    return loss(kind, MJ__PHASE_READ, MJ__SENT_MAYBE);
}

struct mj__loss mj__loss_answered(enum mj__kind kind) {
    return loss(kind, MJ__PHASE_READ, MJ__SENT_YES);
}

int mj__loss_error(struct mj__loss lost, const char *text, struct mj__error *error) {
    mj__fail(error, lost.kind, "%s", text);
    error->phase = lost.phase;
    error->sent = lost.sent;
    return -1;
}

/* ---- what a closed connection says ------------------------------------------------------ */

int mj__conn_refuse(const struct mj__conn *conn, struct mj__error *error) {
    if (conn->state != MJ__CONN_CLOSED) {
        return mj__fail(error, MJ__CLOSED, "the connection is not open yet");
    }
    /* An error of the server's at the door (a full house, no login) stays what it is. */
    bool own = conn->cause.kind == MJ__SERVER_ERROR || conn->cause.kind == MJ__AUTH;
    return mj__fail(error, own ? conn->cause.kind : MJ__CLOSED, "the connection is closed: %s",
                    conn->cause.text);
}

/* ---- what the server says --------------------------------------------------------------- */

/* What a server with logins (-Y) says to who has not logged in; it takes any classic set for a
 * login, and blames its value. */
static bool wants_login(const char *words) {
    static const char *const begins[] = {"unauthenticated", "authentication failure",
                                         "bad authentication token format"};
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++) {
        if (strncmp(words, begins[i], strlen(begins[i])) == 0) {
            return true;
        }
    }
    return false;
}

void mj__error_said(const struct mj__reply *reply, struct mj__error *error) {
    char words[MJ__ERROR_TEXT - 64];
    mj__printable(words, sizeof words, reply->text, reply->text_size);
    if (reply->code == MJ__SAYS_ERROR) {
        mj__fail(error, MJ__CLIENT_ERROR, "the server does not know the command (ERROR%s%s)",
                 *words != '\0' ? " " : "", words);
    } else if (reply->code == MJ__SAYS_SERVER_ERROR) {
        mj__fail(error, MJ__SERVER_ERROR, "the server failed: %s",
                 *words != '\0' ? words : "SERVER_ERROR without a word");
    } else if (wants_login(words)) {
        mj__fail(error, MJ__AUTH,
                 "the server wants a login: put user:password@ into the URL (%s)", words);
    } else {
        mj__fail(error, MJ__CLIENT_ERROR, "the server refused the request: %s",
                 *words != '\0' ? words : "CLIENT_ERROR without a word");
    }
    error->phase = MJ__PHASE_READ;
    error->sent = MJ__SENT_YES;
}

void mj__error_quiet_said(const struct mj__reply *reply, bool sure, struct mj__error *error) {
    static const char *const no[] = {[MJ__NS] = "not stored",
                                     [MJ__EX] = "exists: the cas token is old",
                                     [MJ__NF] = "there is no such item"};
    enum mj__kind kind =
        reply->code == MJ__SAYS_SERVER_ERROR ? MJ__SERVER_ERROR : MJ__CLIENT_ERROR;
    const char *which = sure
                            ? "a quiet request failed: "
                            : "one of several quiet requests failed, it cannot be told which: ";
    if (reply->code >= MJ__SAYS_ERROR) {
        mj__fail(error, kind, "%s%.*s", which, (int)reply->text_size, reply->text);
    } else {
        bool known = reply->code < sizeof no / sizeof *no && no[reply->code] != NULL;
        mj__fail(error, kind, "%s%s", which, known ? no[reply->code] : "refused");
    }
    error->phase = MJ__PHASE_READ;
    error->sent = MJ__SENT_YES;
}

/* ---- why order is lost ------------------------------------------------------------------ */

int mj__error_order_lost(struct mj__error *error, const struct mj__reply *reply,
                         const char *why) {
    static const char *const names[] = {"ERROR", "CLIENT_ERROR", "SERVER_ERROR"};
    char words[96];
    mj__printable(words, sizeof words, reply->text, reply->text_size);
    const char *name =
        reply->code >= MJ__SAYS_ERROR ? names[reply->code - MJ__SAYS_ERROR] : "a reply";
    return mj__fail(error, MJ__PROTOCOL, "closed: the server answered %s %s%s", name, words,
                    why);
}

int mj__error_mismatch(struct mj__error *error, const struct mj__request *request,
                       const struct mj__reply *reply, bool right_word) {
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
    const char *op = mj__command((enum mj__command_id)request->id)->name;
    bool classic = (request->bits & MJ__ASCII_REPLY) != 0;
    if (classic && (reply->code == MJ__HD || reply->code == MJ__EN)) {
        return mj__fail(error, MJ__PROTOCOL, "%.*s is no answer to %s: closed",
                        (int)reply->text_size, reply->text, op);
    }
    if (right_word) {
        return mj__fail(error, MJ__PROTOCOL,
                        "a reply to %s belongs to another request (%s does not match): closed",
                        op, classic ? "its key" : "its opaque token or key");
    }
    return mj__fail(error, MJ__PROTOCOL, "%s is no answer to %s: closed", names[reply->code],
                    op);
}
