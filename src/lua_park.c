/* lua_park.c: tasks that wait for room on a full connection. */
#include "lua_conn.h"
#include "lua_error.h"

#include <lauxlib.h>
#include <stdlib.h>

static void remove_granted(struct mj__lua_parked *node) {
    struct mj__lua_conn *self = node->self;
    for (struct mj__lua_parked **at = &self->granted; *at != NULL; at = &(*at)->next) {
        if (*at == node) {
            *at = node->next;
            if (self->granted_tail == &node->next) {
                self->granted_tail = at;
            }
            return;
        }
    }
}

static void discard(struct mj__lua_parked *node) {
    free(node->refusal);
    free(node);
}

/* The task calls again: it has its arguments, which its error is to name. */
static void call_again(struct mj__lua_parked *node) {
    node->next = NULL;
    *node->self->granted_tail = node;
    node->self->granted_tail = &node->next;
    mj__lua_wake_with(node->task, MJ__RETRY);
}

static void on_room(struct mj__parked *parked, const struct mj__error *error) {
    struct mj__lua_parked *node = (struct mj__lua_parked *)parked;
    if (error == NULL) {
        call_again(node);
    } else if (node->batch != NULL) {
        mj__lua_batch_refused(node->batch, error);
        mj__lua_wake_with(node->task, MJ__RETRY);
        discard(node);
    } else {
        node->refused = true;
        node->refusal = malloc(sizeof *error);
        if (node->refusal != NULL) {
            *node->refusal = *error;
        }
        call_again(node);
    }
}

static void tell_refusal(const struct mj__lua_parked *node, struct mj__error *error) {
    if (node->refusal != NULL) {
        *error = *node->refusal;
        return;
    }
    mj__fail(error, MJ__NO_MEMORY,
             "there was no room on the connection, and no memory to tell why");
    error->phase = MJ__PHASE_QUEUE; /* nothing of it was sent */
}

static void abandon_parked(struct mj__task *task, void *arg, uint64_t tag,
                           struct mj__interrupted *out) {
    struct mj__lua_parked *node = arg;
    (void)task;
    (void)tag;
    out->op = node->op;
    out->server = mj__lua_conn_name(node->self);
    out->error.phase = MJ__PHASE_QUEUE;
    out->error.sent = MJ__SENT_NO;
    mj__conn_unpark(node->self->conn, &node->parked);
    if (node->batch != NULL) {
        mj__lua_batch_abandon(node->batch, &out->error);
    }
    free(node);
}

static const struct mj__wait_ops parked_wait = {.abandon = abandon_parked};

int mj__lua_park(lua_State *L, struct mj__lua_conn *self, struct mj__task *task, const char *op,
                 struct mj__lua_batch *batch) {
    struct mj__lua_parked *node = calloc(1, sizeof *node);
    if (node == NULL) {
        if (batch != NULL) { /* nobody will keep it */
            struct mj__error ignored;
            mj__lua_batch_abandon(batch, &ignored);
        }
        return luaL_error(L, "not enough memory");
    }
    node->parked.ready = on_room;
    node->self = self;
    node->task = task;
    node->op = op;
    node->batch = batch;
    if (batch != NULL) {
        node->parked.deadline = *mj__lua_batch_deadline(batch);
    }
    mj__conn_park(self->conn, &node->parked);
    if (batch != NULL) {
        *mj__lua_batch_deadline(batch) = node->parked.deadline;
    }
    return mj__task_wait(L, task, &parked_wait, node, 0);
}

/* Granted tasks run in the order they were woken, so that it is the first, if it is any. */
int mj__lua_redeem(struct mj__lua_conn *self, const struct mj__task *task,
                   struct mj__error *error) {
    struct mj__lua_parked *node = self->granted;
    while (node != NULL && node->task != task) {
        node = node->next;
    }
    if (node == NULL) {
        return 0;
    }
    remove_granted(node);
    bool refused = node->refused;
    if (refused) {
        tell_refusal(node, error);
    } else {
        mj__conn_redeem(self->conn, &node->parked);
    }
    discard(node);
    return refused ? -1 : 0;
}

void mj__lua_forget_granted(struct mj__lua_conn *self) {
    while (self->granted != NULL) {
        struct mj__lua_parked *node = self->granted;
        self->granted = node->next;
        discard(node);
    }
    self->granted_tail = &self->granted;
}
