/* conn_private.h: a connection's inside, shared by the conn_*.c files and nobody else.
 *
 *     conn.c         life: create, timers, closing, counters
 *     conn_open.c    resolve, connect, login, which protocol
 *     conn_write.c   submit, flush
 *     conn_park.c    waiting for room
 *     conn_expire.c  requests that are given up
 *     conn_read.c    read, parse, values
 *     conn_match.c   whose reply it is
 *     conn_batch.c   answers on their way to those who wait
 */
#ifndef MJ_CONN_PRIVATE_H
#define MJ_CONN_PRIVATE_H

#include "conn.h"
#include "stream.h"

enum mj__conn_state {
    MJ__CONN_RESOLVING,
    MJ__CONN_CONNECTING,
    MJ__CONN_HANDSHAKE,
    MJ__CONN_OPEN,
    MJ__CONN_CLOSED
};

/* A value that is larger than what had arrived with its line. */
struct mj__incoming {
    enum { MJ__NO_VALUE, MJ__TO_BLOCK, MJ__TO_SINK, MJ__TO_NOWHERE } to;
    char *block; /* the reply's line, then (TO_BLOCK) the value and its CRLF */
    size_t block_size, line_size;
    uint64_t want, got; /* of the value and its end */
    size_t end_size;    /* of what must follow the value: see mj__value_end */
    bool sink_refused;
    char end[8]; /* that, when the value itself went elsewhere */
};

enum { MJ__STRAYS_FIRST = 32, MJ__STRAYS_MAX = 8192, MJ__BATCH_MAX = 64 };

/* Error lines that came while quiet requests were outstanding: whose they are shows later. */
struct mj__strays {
    struct mj__error doubt; /* what those are told of whom it stays unknown */
    size_t capacity;
    struct mj__stray {
        enum mj__code code;
        size_t text_size;
        char text[160];
    } list[];
};

struct mj__waiting_answer {
    mj__done_fn *done; /* NULL: it was given up since */
    void *arg;
    uint64_t seq;
    uint64_t key_at;
    size_t key_size;
    uint32_t index;
    uint8_t id;
    bool more, own_token;
    /* It failed: the text is the batch's error's, the facts its own. */
    bool failed;
    enum mj__kind kind;
    enum mj__phase phase;
    enum mj__sent sent;
    struct mj__reply reply;
    const char *value;
};

/* Answers that were parsed and are to be handed over. */
struct mj__batch {
    struct mj__conn *conn;
    struct mj__batch *outer; /* of the same connection, under way below this one */
    size_t count, next;
    bool calling;     /* a done function was entered and has not returned */
    const char *text; /* of those that failed */
    struct mj__waiting_answer answers[MJ__BATCH_MAX];
};

struct mj__conn {
    struct mj__loop *loop;
    struct mj__pool *pool;
    struct mj__conn_owner owner;
    struct mj__endpoint endpoint;
    enum mj__conn_state state;
    enum mj__protocol protocol;

    struct mj__stream stream;
    struct mj__watch watch;
    struct mj__deferred flush, freed;
    struct mj__timer timer;
    bool wait_writable; /* the last write was short */
    bool owing;         /* the loop was told that something is still to leave or to be fenced */
    bool released;      /* mj__conn_free was called */
    bool half_left;     /* a half-written request was given up: the flush closes */

    struct mj__buffer in;
    struct mj__incoming incoming;
    struct mj__requests requests;
    struct mj__outgoing out;

    uint64_t undated;  /* the first request without a deadline */
    uint64_t expiring; /* the first request whose deadline has not passed */
    uint32_t opaque;   /* the last token given, as a number */
    uint32_t unfenced; /* quiet requests behind the last ordinary one */
    uint64_t silent;   /* quiet requests that no reply has fenced yet */
    bool fence_hurry;  /* somebody waits for the silence of a quiet request */
    mj__time fence_due;
    mj__time heard; /* when bytes last came, or when the first of these requests left */
    struct mj__parked *parked, **parked_tail;
    uint32_t granted; /* told that there is room, and not yet come */
    bool ticket;      /* the next submit is one of those */
    uint32_t allowed; /* submits behind it that need not wait for others either */
    mj__time ticket_deadline;
    uint64_t popped_end; /* place in the outgoing stream where the oldest request begins */

    struct mj__batch *batches; /* those under way */

    struct mj__strays *strays; /* made when the first comes */
    size_t stray_count;

    struct mj__error cause; /* why it is closed */
    struct mj__conn_counters counters;

    /* while connecting */
    struct mj__resolver *resolver;
    struct mj__lookup *lookup;
    struct addrinfo *addresses, *address;
    mj__time connect_deadline;
    mj__time attempt_deadline; /* of this address, where another is left to try */
    mj__time retry_at;
    struct mj__error last_failure; /* of the address before */
    uint8_t handshake_due;         /* replies of the handshake still to come */
    bool speaks_meta, classic_only;
};

/* conn.c */
/* Closes: everyone that waits fails with this kind and text, and with a phase and sent of its
 * own. Does nothing on a closed connection. */
void mj__conn_fail(struct mj__conn *, const struct mj__error *error);
/* Makes the timer fire at `when` at the latest. */
void mj__conn_wake_at(struct mj__conn *, mj__time when);
/* Gives back socket, look-up and buffers; requests and state stay. */
void mj__conn_drop_transport(struct mj__conn *);
/* Empties the queue and what is to be written. */
void mj__conn_forget_requests(struct mj__conn *);
/* Tells the loop whether this connection still has something to send or to hear. */
void mj__conn_owe(struct mj__conn *);

static inline mj__time mj__earlier(mj__time a, mj__time b) {
    return a < b ? a : b;
}

/* conn_batch.c */
/* A new, empty batch of this connection. Not initialised as a whole: it is large. */
void mj__batch_begin(struct mj__batch *, struct mj__conn *);
/* Makes room for one more answer: hands over what is in a full batch. Before the request is taken
 * off, since done functions may give it up or close the connection. */
void mj__batch_room(struct mj__batch *);
/* A place for one more answer to this request, the one at seq, with its caller filled in. */
struct mj__waiting_answer *mj__batch_add(struct mj__batch *, const struct mj__request *,
                                         uint64_t seq);
/* Hands over what is in it and empties it. Done functions may close the connection. */
void mj__conn_deliver(struct mj__batch *);
/* Hands over what is left in it, and ends it. */
void mj__batch_end(struct mj__batch *);
/* Nobody waits for the answer of this request any more; or for those of one done function. */
void mj__batches_forget(struct mj__conn *, uint64_t seq);
void mj__batches_forget_all(struct mj__conn *, mj__done_fn *done, const void *arg);

/* conn_open.c */
void mj__conn_start(struct mj__conn *);
/* The socket became writable while connecting. */
void mj__conn_connect_ready(struct mj__conn *);
/* The moment that the timer must not miss while connecting; MJ__NEVER when there is none. */
mj__time mj__conn_connect_timer(struct mj__conn *, mj__time now);
/* The peer went away in the middle of the handshake: true when it is tried again another way. */
bool mj__conn_retry_classic(struct mj__conn *);

/* conn_write.c */
void mj__conn_flush(struct mj__deferred *);
void mj__conn_write(struct mj__conn *);
void mj__conn_queue_flush(struct mj__conn *);
/* As mj__conn_submit, in whatever state and however full. */
int mj__conn_enqueue(struct mj__conn *, const struct mj__call *, const struct mj__lent *,
                     struct mj__sink *, mj__done_fn *, void *arg, uint32_t index, uint64_t *seq,
                     struct mj__error *error);

/* A noop of the connection's own, behind quiet requests. */
static inline bool mj__is_fence(const struct mj__request *request) {
    return request->id == MJ__NOOP && request->done == NULL;
}

/* conn_park.c */
bool mj__conn_is_full(const struct mj__conn *);
/* Tells parked ones that there is room, as far as there is. */
void mj__conn_room(struct mj__conn *);

/* conn_expire.c */
/* Ends requests and parked ones whose deadline has passed; may close the connection. Returns the
 * next moment to look again. */
mj__time mj__conn_expire(struct mj__conn *, mj__time now);
/* Fills in how far the request at seq has come: phase and sent. True: it is half written. */
bool mj__conn_progress(const struct mj__conn *, uint64_t seq, enum mj__phase *,
                       enum mj__sent *);
/* Closes, because what follows a half-written request cannot be in order. */
void mj__conn_half_written(struct mj__conn *, const char *how);

/* conn_read.c */
void mj__conn_readable(struct mj__conn *);

/* conn_match.c */
/* What must follow the value of a reply to this request: its CRLF, and in the classic protocol,
 * where one value was asked for, the END line. Returns its size; *end is it. */
size_t mj__value_end(const struct mj__request *, const char **end);
/* Which request this line answers, error lines aside; false when that cannot be told. Only the
 * cursor of a get_many moves. */
bool mj__conn_find(struct mj__conn *, const struct mj__reply *, uint64_t *seq);
/* Why a line answers none: -1. */
int mj__conn_mismatch(struct mj__conn *, const struct mj__reply *, struct mj__error *error);
/* Gives a whole reply to the request it answers: adds to the batch what is to be told. value is
 * NULL when it went elsewhere. -1: what follows is in doubt, or the connection closed meanwhile;
 * *error says so. */
int mj__conn_match(struct mj__batch *, uint64_t seq, const struct mj__reply *,
                   const char *value, struct mj__error *error);
/* The same for an ERROR, CLIENT_ERROR or SERVER_ERROR line, which names nobody. */
int mj__conn_match_error(struct mj__batch *, const struct mj__reply *, struct mj__error *error);

#endif
