/* conn_batch.c: answers that were parsed, on their way to those who wait. */
#include "conn_private.h"

#include <string.h>

void mj__batch_begin(struct mj__batch *batch, struct mj__conn *conn) {
    batch->conn = conn;
    batch->outer = conn->batches;
    conn->batches = batch;
    batch->count = 0;
    batch->next = 0;
    batch->calling = false;
    batch->text = "";
}

void mj__batch_end(struct mj__batch *batch) {
    mj__conn_deliver(batch);
    batch->conn->batches = batch->outer;
}

void mj__batches_forget(struct mj__conn *conn, uint64_t seq) {
    for (struct mj__batch *batch = conn->batches; batch != NULL; batch = batch->outer) {
        for (size_t i = batch->next; i < batch->count; i++) {
            if (batch->answers[i].seq == seq) {
                batch->answers[i].done = NULL;
            }
        }
    }
}

void mj__batches_forget_all(struct mj__conn *conn, mj__done_fn *done, const void *arg) {
    for (struct mj__batch *batch = conn->batches; batch != NULL; batch = batch->outer) {
        for (size_t i = batch->next; i < batch->count; i++) {
            struct mj__waiting_answer *answer = &batch->answers[i];
            if (done == NULL || (answer->done == done && answer->arg == arg)) {
                answer->done = NULL;
            }
        }
    }
}

void mj__batch_room(struct mj__batch *batch) {
    if (batch->count == MJ__BATCH_MAX) {
        mj__conn_deliver(batch);
    }
}

struct mj__waiting_answer *mj__batch_add(struct mj__batch *batch,
                                         const struct mj__request *request, uint64_t seq) {
    struct mj__waiting_answer *answer = &batch->answers[batch->count++];
    answer->done = request->done;
    answer->arg = request->arg;
    answer->seq = seq;
    answer->index = request->index;
    answer->key_at = request->key_at;
    answer->key_size = request->key_size;
    answer->id = request->id;
    answer->own_token = (request->bits & MJ__OPAQUE) != 0;
    answer->more = false;
    answer->failed = false;
    answer->value = NULL;
    return answer;
}

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

/* The words of an ERROR, CLIENT_ERROR or SERVER_ERROR line, as an error of the request. */
static void server_says(const struct mj__reply *reply, struct mj__error *error) {
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

/* A done function before this one may have closed the connection, and with it the bytes that the
 * answer points to: then it fails as what is still outstanding does. */
static void hand_over_one(struct mj__batch *batch, const struct mj__waiting_answer *waiting) {
    const struct mj__conn *conn = batch->conn;
    bool keyless = conn->requests.keys.data == NULL;
    struct mj__error error;
    struct mj__answer answer = {
        .command = mj__command((enum mj__command_id)waiting->id),
        .key = mj__requests_key(&conn->requests, waiting->key_at),
        .key_size = keyless ? 0 : waiting->key_size,
        .own_token = waiting->own_token,
        .owner = conn->owner.arg,
    };
    if (!waiting->failed && conn->state == MJ__CONN_CLOSED) {
        error = conn->cause;
        error.phase = MJ__PHASE_READ;
        error.sent = MJ__SENT_YES;
        answer.error = &error;
    } else if (waiting->failed) {
        mj__fail(&error, waiting->kind, "%s", batch->text);
        error.phase = waiting->phase;
        error.sent = waiting->sent;
        answer.error = &error;
    } else {
        answer.more = waiting->more;
        answer.value = waiting->value;
        answer.reply = waiting->reply;
        if (waiting->reply.code >= MJ__SAYS_ERROR) {
            server_says(&waiting->reply, &error);
            answer.error = &error;
        }
    }
    waiting->done(waiting->arg, waiting->index, &answer);
}

void mj__batch_hand_over(struct mj__batch *batch) {
    while (batch->next < batch->count) {
        const struct mj__waiting_answer *waiting = &batch->answers[batch->next++];
        if (waiting->done == NULL) {
            continue; /* given up since */
        }
        if (waiting->more && batch->conn->state == MJ__CONN_CLOSED) {
            continue; /* a line of a request that was outstanding: the close told its end */
        }
        batch->calling = true;
        hand_over_one(batch, waiting);
        batch->calling = false;
    }
}

bool mj__batch_interrupted(struct mj__batch *batch, mj__done_fn **done, void **arg,
                           bool *more) {
    if (!batch->calling) {
        return false;
    }
    const struct mj__waiting_answer *waiting = &batch->answers[batch->next - 1];
    batch->calling = false;
    *done = waiting->done;
    *arg = waiting->arg;
    *more = waiting->more && !waiting->failed && batch->conn->state != MJ__CONN_CLOSED;
    return true;
}

void mj__batch_again(struct mj__batch *batch) {
    batch->next--;
}

void mj__conn_deliver(struct mj__batch *batch) {
    struct mj__conn *conn = batch->conn;
    if (batch->count > 0 && conn->owner.deliver != NULL) {
        conn->owner.deliver(conn->owner.arg, conn, batch);
    } else {
        mj__batch_hand_over(batch);
    }
    batch->count = 0;
    batch->next = 0;
}
