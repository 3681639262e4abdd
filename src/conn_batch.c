/* conn_batch.c: answers that were parsed, on their way to those who wait. */
#include "conn_private.h"

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
    struct mj__conn *conn = batch->conn;
    mj__conn_deliver(batch);
    conn->batches = batch->outer;
    if (conn->batches == NULL) {
        mj__buffer_release(conn->pool, &conn->held_in);
        mj__buffer_release(conn->pool, &conn->held_keys);
    }
}

static void give_up(struct mj__waiting_answer *answer, struct mj__loss *lost) {
    bool answered = answer->lost.kind == MJ__KIND_NONE;
    *lost = answered ? mj__loss_answered(MJ__CANCELLED) : answer->lost;
    answer->done = NULL;
}

bool mj__batches_forget(struct mj__conn *conn, uint64_t seq, struct mj__loss *lost) {
    bool some = false;
    for (struct mj__batch *batch = conn->batches; batch != NULL; batch = batch->outer) {
        for (size_t i = batch->next; i < batch->count; i++) {
            if (batch->answers[i].seq == seq && batch->answers[i].done != NULL) {
                give_up(&batch->answers[i], lost);
                some = true;
            }
        }
    }
    return some;
}

bool mj__batches_forget_all(struct mj__conn *conn, mj__done_fn *done, const void *arg,
                            struct mj__loss *lost) {
    bool some = false;
    for (struct mj__batch *batch = conn->batches; batch != NULL; batch = batch->outer) {
        for (size_t i = batch->next; i < batch->count; i++) {
            struct mj__waiting_answer *answer = &batch->answers[i];
            if (done == NULL || (answer->done == done && answer->arg == arg)) {
                give_up(answer, lost);
                some = true;
            }
        }
    }
    return some;
}

void mj__batch_room(struct mj__batch *batch) {
    if (batch->count == MJ__BATCH_MAX) {
        mj__conn_deliver(batch);
    }
}

static struct mj__waiting_answer *add(struct mj__batch *batch,
                                      const struct mj__request *request, uint64_t seq) {
    struct mj__waiting_answer *waiting = &batch->answers[batch->count++];
    waiting->done = request->done;
    waiting->arg = request->arg;
    waiting->seq = seq;
    waiting->index = request->index;
    waiting->key_at = request->key_at;
    waiting->answer.command = mj__command((enum mj__command_id)request->id);
    waiting->answer.key_size = request->key_size;
    waiting->answer.own_token = (request->bits & MJ__OPAQUE) != 0;
    waiting->answer.owner = batch->conn->owner.arg;
    return waiting;
}

void mj__batch_add(struct mj__batch *batch, const struct mj__request *request, uint64_t seq,
                   const struct mj__reply *reply, const char *value, bool more) {
    struct mj__waiting_answer *waiting = add(batch, request, seq);
    waiting->lost.kind = MJ__KIND_NONE;
    waiting->answer.more = more;
    waiting->answer.reply = *reply;
    waiting->answer.value = value;
}

void mj__batch_add_lost(struct mj__batch *batch, const struct mj__request *request,
                        uint64_t seq, struct mj__loss lost) {
    struct mj__waiting_answer *waiting = add(batch, request, seq);
    waiting->lost = lost;
    waiting->answer.more = false;
}

void mj__batch_lose_last(struct mj__batch *batch, struct mj__loss lost, const char *text) {
    if (batch->count > 0) {
        batch->answers[batch->count - 1].lost = lost;
        batch->text = text;
    }
}

void mj__tell_quiet_failed(struct mj__conn *conn, const struct mj__error *error,
                           const struct mj__request *request) {
    conn->counters.quiet_failed++;
    if (conn->owner.quiet_failed == NULL) {
        return;
    }
    if (request == NULL) {
        conn->owner.quiet_failed(conn->owner.arg, conn, error, NULL, NULL, 0);
        return;
    }
    conn->owner.quiet_failed(
        conn->owner.arg, conn, error, mj__command((enum mj__command_id)request->id),
        mj__requests_key(&conn->requests, request->key_at), request->key_size);
}

static void make_failure(struct mj__answer *answer, struct mj__loss lost, const char *text,
                         struct mj__error *error) {
    mj__loss_error(lost, text, error);
    answer->error = error;
    answer->more = false;
    answer->reply = (struct mj__reply){0};
    answer->value = NULL;
}

/* A done function before this one may have closed the connection, and with it the bytes that the
 * answer points to: then it fails as what is still outstanding does. */
static void hand_over_one(struct mj__batch *batch, struct mj__waiting_answer *waiting) {
    const struct mj__conn *conn = batch->conn;
    struct mj__answer *answer = &waiting->answer;
    struct mj__error error;
    answer->error = NULL;
    answer->key = mj__requests_key(&conn->requests, waiting->key_at);
    if (conn->requests.keys.data == NULL) {
        answer->key_size = 0;
    }
    if (waiting->lost.kind != MJ__KIND_NONE) {
        make_failure(answer, waiting->lost, batch->text, &error);
    } else if (conn->state == MJ__CONN_CLOSED) {
        make_failure(answer, mj__loss_answered(conn->cause.kind), conn->cause.text, &error);
    } else if (answer->reply.code >= MJ__SAYS_ERROR) {
        mj__error_said(&answer->reply, &error);
        answer->error = &error;
    }
    waiting->done(waiting->arg, waiting->index, answer);
}

void mj__batch_hand_over(struct mj__batch *batch) {
    while (batch->next < batch->count) {
        struct mj__waiting_answer *waiting = &batch->answers[batch->next++];
        if (waiting->done == NULL) {
            continue; /* given up since */
        }
        if (waiting->answer.more && batch->conn->state == MJ__CONN_CLOSED) {
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
    *more = waiting->answer.more;
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
