/* conn_park.c: waiting for room: the bounds of what may be in flight, and who comes next. */
#include "conn_private.h"

enum {
    OUT_LIMIT = 4 << 20, /* bytes waiting to leave before tasks are parked */
    ALLOWED_MORE = 255,  /* submits of a pipeline in one go while others wait for room */
};

/* Those that were told there is room count as if they had come. */
bool mj__conn_is_full(const struct mj__conn *conn) {
    return mj__requests_count(&conn->requests) + conn->granted >=
               conn->endpoint.options.max_inflight ||
           mj__outgoing_pending(&conn->out) + conn->granted_size >= OUT_LIMIT;
}

void mj__conn_park(struct mj__conn *conn, struct mj__parked *parked) {
    conn->allowed = 0;
    conn->bound = false;
    parked->next = NULL;
    parked->link = conn->parked_tail;
    parked->size = conn->full_for;
    if (parked->deadline == 0) {
        parked->deadline = mj__clock() + conn->endpoint.options.timeout;
    }
    conn->parked_until = conn->parked == NULL
                             ? parked->deadline
                             : mj__earlier(conn->parked_until, parked->deadline);
    *conn->parked_tail = parked;
    conn->parked_tail = &parked->next;
    conn->counters.parked++;
    /* No ordinary request can follow the quiet ones and fence them: it is parked. */
    conn->fence_hurry |= conn->unfenced > 0;
    mj__conn_queue_flush(conn); /* sets the timer: nobody is told anything from inside park */
}

void mj__conn_unpark(struct mj__conn *conn, struct mj__parked *parked) {
    if (parked->link == NULL) {
        return;
    }
    *parked->link = parked->next;
    if (parked->next != NULL) {
        parked->next->link = parked->link;
    } else {
        conn->parked_tail = parked->link;
    }
    parked->link = NULL;
}

void mj__conn_redeem(struct mj__conn *conn, const struct mj__parked *parked) {
    if (conn->granted > 0) {
        conn->granted--;
        conn->granted_size -= parked->size;
        conn->ticket = true;
        conn->ticket_deadline = parked->deadline;
        mj__conn_queue_flush(conn); /* takes it back, should a throw come before a submit */
    }
}

void mj__conn_allow_more(struct mj__conn *conn) {
    conn->allowed = conn->ticket ? ALLOWED_MORE : 0;
    conn->bound = conn->ticket;
}

void mj__conn_bind(struct mj__conn *conn, mj__time deadline) {
    conn->bound = true;
    conn->ticket_deadline = deadline;
}

void mj__conn_return_ticket(struct mj__conn *conn) {
    conn->ticket = conn->bound = false;
    conn->allowed = 0;
    mj__conn_room(conn);
}

void mj__conn_room(struct mj__conn *conn) {
    if (conn->parked != NULL && conn->parked_until <= mj__loop_now(conn->loop)) {
        mj__conn_expire_parked(conn,
                               mj__loop_now(conn->loop)); /* room comes too late for them */
    }
    while (conn->parked != NULL && conn->state == MJ__CONN_OPEN && !mj__conn_is_full(conn)) {
        struct mj__parked *parked = conn->parked;
        mj__conn_unpark(conn, parked);
        conn->granted++;
        conn->granted_size += parked->size;
        parked->ready(parked, NULL);
    }
}
