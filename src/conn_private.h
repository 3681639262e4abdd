/* conn_private.h: a connection's inside, shared by the conn_*.c files and nobody else.
 *
 *     conn.c           it is made, timed, asked what it is like
 *     conn_open.c      resolve, connect, login, which protocol
 *     conn_write.c     submit, flush
 *     conn_park.c      waiting for room
 *     conn_expire.c    requests that are given up
 *     conn_read.c      read, parse
 *     conn_value.c     large values: where their bytes go
 *     conn_match.c     where a reply meets its request, and nowhere else
 *     conn_identity.c  is this an answer to that?
 *     conn_strays.c    error lines that name nobody
 *     conn_batch.c     answers on their way to those who wait
 *     conn_error.c     what a request without an answer is told: its phase, its `sent`
 *     conn_close.c     the one place where a connection is declared unfit
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

/* What a request that ends without the server's answer is told, but for the words. */
struct mj__loss {
    enum mj__kind kind;
    enum mj__phase phase;
    enum mj__sent sent;
};

struct mj__waiting_answer {
    mj__done_fn *done; /* NULL: it was given up since */
    void *arg;
    uint64_t seq;
    uint64_t key_at;
    uint32_t index;
    struct mj__loss lost;     /* kind NONE: it was answered; else its text is the batch's */
    struct mj__answer answer; /* but for its key and its error */
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
    int write_error;    /* errno of the write that failed; 0: none did */
    bool owing;         /* the loop was told that something is still to leave or to be fenced */
    bool released;      /* nobody holds it any more */
    bool orphan;        /* and it lives on until nothing is owed */
    bool half_left;     /* a half-written request was given up: the flush closes */
    bool close_soon;    /* its user closed it: the flush does */

    struct mj__buffer in;
    struct mj__incoming incoming;
    struct mj__requests requests;
    struct mj__outgoing out;

    uint64_t undated;  /* the first request without a deadline */
    uint64_t expiring; /* the first request whose deadline has not passed */
    uint64_t disorder; /* requests from here on expire in their order */
    mj__time latest;   /* the latest deadline given so far */
    uint32_t opaque;   /* the last token given, as a number */
    uint32_t unfenced; /* quiet requests behind the last ordinary one */
    uint64_t silent;   /* quiet requests that no reply has fenced yet */
    bool fence_hurry;  /* somebody waits for the silence of a quiet request */
    mj__time fence_due;
    mj__time heard; /* when bytes last came, or when the first of these requests left */
    bool hears;     /* bytes came in this turn: its flush reads the clock, and dates them */
    struct mj__parked *parked, **parked_tail;
    mj__time parked_until; /* none of them expires before */
    size_t full_for;       /* size of the call that found no room last */
    uint32_t granted;      /* told that there is room, and not yet come */
    uint64_t granted_size;
    bool ticket;      /* the next submit is one of those */
    uint32_t allowed; /* submits behind it that need not wait for others either */
    bool bound;       /* submits behind it have its deadline */
    mj__time ticket_deadline;
    bool unasked;        /* a line has begun that nobody asked for */
    uint64_t answered;   /* 1 + the request whose answer began last; 0: none */
    uint64_t popped_end; /* place in the outgoing stream where the oldest request begins */

    struct mj__batch *batches; /* those under way */
    /* What they refer to, where a done function closed: replies and keys. */
    struct mj__buffer held_in, held_keys;

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
/* Makes the timer fire at `when` at the latest. */
void mj__conn_wake_at(struct mj__conn *, mj__time when);
/* Tells the loop whether this connection still has something to send or to hear. */
void mj__conn_owe(struct mj__conn *);

static inline mj__time mj__earlier(mj__time a, mj__time b) {
    return a < b ? a : b;
}

/* conn_close.c */
/* Closes: everyone that waits fails with this kind and text, and with a phase and sent of its
 * own. Does nothing on a closed connection. */
void mj__conn_fail(struct mj__conn *, const struct mj__error *error);
/* Gives back socket, look-up and buffers; requests and state stay. */
void mj__conn_drop_transport(struct mj__conn *);
/* Empties the queue and what is to be written. */
void mj__conn_forget_requests(struct mj__conn *);

/* Closes an orphan that owes nothing any more. */
void mj__conn_end_orphan(struct mj__conn *);

/* conn_error.c */
enum mj__progress { MJ__UNWRITTEN, MJ__HALF_WRITTEN, MJ__WRITTEN };
enum mj__progress mj__conn_progress(const struct mj__conn *, uint64_t seq);
/* The connection has closed, or will before it writes again. */
struct mj__loss mj__loss_closed(const struct mj__conn *, uint64_t seq, enum mj__kind);
/* Its caller no longer waits, but the connection goes on, and its bytes will still leave. */
struct mj__loss mj__loss_given_up(const struct mj__conn *, uint64_t seq, enum mj__kind);
/* It never got as far as the outgoing bytes. */
struct mj__loss mj__loss_refused(enum mj__kind);
/* It was written, and what became of it cannot be told. */
struct mj__loss mj__loss_doubted(enum mj__kind);
/* The server answered it, but the answer cannot be handed over. */
struct mj__loss mj__loss_answered(enum mj__kind);
/* With its words: -1. */
int mj__loss_error(struct mj__loss, const char *text, struct mj__error *error);
/* What a submit on a connection that is not open is told: -1. */
int mj__conn_refuse(const struct mj__conn *, struct mj__error *error);
/* The words of an ERROR, CLIENT_ERROR or SERVER_ERROR line, as an error of the request. */
void mj__error_said(const struct mj__reply *, struct mj__error *error);
/* The same, or a no, to a quiet request; not `sure`: to one or another of several. */
void mj__error_quiet_said(const struct mj__reply *, bool sure, struct mj__error *error);
/* Why a connection closes on a reply that is nobody's for certain: -1. right_word: it would be an
 * answer, but names another. */
int mj__error_order_lost(struct mj__error *error, const struct mj__reply *, const char *why);
int mj__error_mismatch(struct mj__error *error, const struct mj__request *,
                       const struct mj__reply *, bool right_word);

/* conn_batch.c */
/* A new, empty batch of this connection. Not initialised as a whole: it is large. */
void mj__batch_begin(struct mj__batch *, struct mj__conn *);
/* Makes room for one more answer: hands over what is in a full batch. Before the request is taken
 * off, since done functions may give it up or close the connection. */
void mj__batch_room(struct mj__batch *);
/* One more answer to this request, the one at seq. value is borrowed until it is delivered. */
void mj__batch_add(struct mj__batch *, const struct mj__request *, uint64_t seq,
                   const struct mj__reply *, const char *value, bool more);
/* The same for one that ends without; its words are batch->text. */
void mj__batch_add_lost(struct mj__batch *, const struct mj__request *, uint64_t seq,
                        struct mj__loss);
/* The answer added last cannot be handed over after all. */
void mj__batch_lose_last(struct mj__batch *, struct mj__loss, const char *text);
/* Hands over what is in it and empties it. Done functions may close the connection. */
void mj__conn_deliver(struct mj__batch *);
/* Hands over what is left in it, and ends it; the last gives back what was held for it. */
void mj__batch_end(struct mj__batch *);
/* Nobody waits for the answer of this request any more; or for those of one done function (NULL:
 * of any). True: there were some, and *lost says how far the last of them had come. */
bool mj__batches_forget(struct mj__conn *, uint64_t seq, struct mj__loss *lost);
bool mj__batches_forget_all(struct mj__conn *, mj__done_fn *done, const void *arg,
                            struct mj__loss *lost);

/* Tells the owner of a quiet request that failed; NULL: it cannot be told which. */
void mj__tell_quiet_failed(struct mj__conn *, const struct mj__error *,
                           const struct mj__request *);

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
/* What came in this turn came now. */
void mj__conn_date_heard(struct mj__conn *);
/* As mj__conn_submit, in whatever state and however full. */
int mj__conn_enqueue(struct mj__conn *, const struct mj__call *, const struct mj__lent *,
                     struct mj__sink *, mj__done_fn *, void *arg, uint32_t index, uint64_t *seq,
                     struct mj__error *error);

/* What no server refuses, and what only its own reply answers. */
static inline bool mj__is_noop(const struct mj__request *request) {
    return request->id == MJ__NOOP || request->bits & MJ__META_MN;
}

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
/* Ends the parked ones alone. */
void mj__conn_expire_parked(struct mj__conn *, mj__time now);
/* Closes, because what follows a half-written request cannot be in order. */
void mj__conn_half_written(struct mj__conn *, const char *how);

/* conn_read.c */
void mj__conn_readable(struct mj__conn *);

/* conn_value.c */
/* Where the bytes of the incoming value go next; size 0: nowhere of its own. */
struct iovec mj__value_room(struct mj__conn *);
/* Bytes of the value were read into its room. */
void mj__value_read(struct mj__conn *, size_t count);
/* Bytes of the value that came with the receive buffer: copied over, or dropped. */
void mj__value_from_buffer(struct mj__conn *);
/* The line of a large value came: its final storage is taken at full size. -1: no memory. */
int mj__value_begin(struct mj__conn *, uint64_t seq, const struct mj__reply *, size_t line_size,
                    struct mj__error *error);
/* A whole value: its bytes, NULL when they went elsewhere; and whether its end is where its length
 * says. */
const char *mj__value_bytes(const struct mj__incoming *);
bool mj__value_ends_well(const struct mj__incoming *);
/* The request was given up: its sink is no longer there. */
void mj__value_disown(struct mj__conn *, struct mj__request *);
void mj__value_drop(struct mj__conn *);

/* conn_identity.c */
/* The codes that answer this request. */
uint16_t mj__accepted_codes(const struct mj__request *);
/* The reply may be an answer to this request: that has left, and the reply's code and all that it
 * says of itself fit. Moves only the cursor of a get_many. */
bool mj__belongs(struct mj__conn *, struct mj__request *, const struct mj__reply *);
/* The reply says whose it is, by a name that no other request has. */
bool mj__is_unique(const struct mj__request *, const struct mj__reply *);
/* These are a quiet request's own words: it is named, or it is the only one that can have
 * spoken. */
bool mj__quiet_spoke(struct mj__conn *, uint64_t seq, const struct mj__reply *);

/* conn_strays.c */
/* Notes an error line while the oldest request is a quiet one. -1: what follows is in doubt. */
int mj__stray_keep(struct mj__conn *, const struct mj__reply *, struct mj__error *error);
struct mj__reply mj__stray_reply(const struct mj__conn *, size_t index);
/* The first `count` strays were for quiet requests before `seq`: for all of these, where there are
 * no more of them, else for one or another. Tells of them, and returns what those are told that
 * wait; NULL: all were silent. */
const struct mj__error *mj__strays_settle(struct mj__conn *, uint64_t seq, size_t count);

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
