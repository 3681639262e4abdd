/* play.h: one connection's life in the simulated world, and what must hold of it.
 *
 *     play.c         begin, ask, hear what is written, say, end
 *     play_told.c    what requests are told: done functions, sinks
 *     play_check.c   what must hold at the end */
#ifndef PLAY_H
#define PLAY_H

#include "conn.h"

#include "server.h"
#include "sim.h"

enum { PLAY_REQUESTS = 150 }; /* more than two batches of answers */

/* What a letter of the input asks for. */
struct letter {
    char letter;
    uint8_t traits;
    enum mj__command_id id;
    uint16_t given;
    const char *meta; /* a script's own meta command: its word and flags, "mg v k" */
};

enum trait {
    QUIET = 1,      /* silence is an answer */
    UNHEARD = 2,    /* nobody waits for it */
    SINKING = 4,    /* its value goes to a sink */
    CLUMSY = 8,     /* which fails */
    LARGE = 16,     /* it lends a large value */
    META_ONLY = 32, /* it is not asked over ascii */
    CLOSES = 64,    /* its done function closes the connection */
    GIVES_UP = 128  /* its done function gives up the next that waits */
};

/* A request, and all that came of it. */
struct part {
    const struct letter *letter;
    struct play *play;
    char key[16];
    uint64_t seq;
    char *large; /* the value that was lent, until it is given back */
    bool queued, waits;
    struct mj__parked parked; /* waits for room on the connection */
    bool granted;             /* there is some */
    bool over;                /* it was told its end, or given up */
    bool answered;            /* told its end by an answer */
    bool known, spoke;        /* an honest server has answered it: truth is what that tells */
    struct text told, truth;  /* as server_reply has it */
    struct text outcome;      /* the error that ended it, or how it was given up */
    struct mj__sink sink;
    struct text sunk;
    char token[MJ__OPAQUE_SIZE]; /* the connection's own, as the server saw it */
    bool has_token;
};

/* A request as the server has read it. */
struct heard {
    int part;  /* -1: the connection's own */
    size_t at; /* in what was written */
};

struct play {
    struct mj__loop *loop;
    struct mj__pool *pool;
    size_t used;
    struct mj__conn *conn;
    struct knife knife;
    struct part parts[PLAY_REQUESTS];
    size_t count; /* of parts */

    struct heard heard[2 * PLAY_REQUESTS];
    size_t heard_count, heard_size; /* requests, and bytes of them */
    size_t answered;                /* by an honest server */
    size_t order[PLAY_REQUESTS];    /* of parts, as they were queued */
    size_t ordered, next_heard;     /* how many, and which of them is heard next */
    unsigned stream;                /* which of the client's connections it is */

    struct text said;           /* all that the server said on it */
    struct text quiet_log, log; /* log: what must not depend on the cuts */
    size_t quiet;               /* requests that were quiet */
    size_t bulk;                /* large answers, and fillings */
    unsigned opened, closed;
    bool failed;     /* it never opened */
    bool honest;     /* the server said nothing but honest answers */
    bool erred;      /* and errors were among them */
    bool blamed;     /* one of them a CLIENT_ERROR to a command with a block */
    bool calm;       /* nothing was given up, delayed or broken */
    uint8_t meddled; /* CLOSES, GIVES_UP: a done function did so */
    bool crowded;    /* some request had to wait for room */
    bool alike;      /* a quiet request has a token that others may have too */
    bool gave_up;    /* somebody no longer waits */
    bool timed_out;
    bool blocked;  /* writes did not take all, at times */
    bool fenced;   /* the silence of quiet requests is proved */
    bool verified; /* replies are held against their requests */
};

/* ---- play.c */
void play_begin(struct play *, enum cut, const uint8_t *data, size_t size);
void play_open(struct play *, const char *url, size_t size);
void play_turns(struct play *, int count);
/* Turns until nothing more is written; a server that takes it too slowly takes no more. */
void play_settle(struct play *);
/* Submits the request of this letter, if it is one. */
void play_ask(struct play *, char letter);
void play_give_up(struct play *, bool oldest);
void play_give_up_all(struct play *);
/* Adds an honest answer of this number to the oldest request without one. */
void play_answer(struct play *, struct text *stage, unsigned number);
/* Says this at the cuts of the play, and empties it. */
void play_say(struct play *, struct text *stage);
/* True for the first few times: more bulk would find nothing more, and take long. */
bool play_bulk(struct play *);
void play_hang_up(struct play *, int code);
/* An honest server answers the noops that stand before the next request. */
void play_serve_noops(struct play *);
/* The server leaves, what must hold is checked, the log is made. */
void play_end(struct play *);
/* Makes it ready for the next; the room of its texts is kept. */
void play_clear(struct play *);

/* ---- play_told.c */
void told_answer(void *arg, uint32_t index, const struct mj__answer *);
void told_error(struct text *, const struct mj__error *, bool meddled);
struct mj__sink told_sink(void);

/* ---- play_check.c */
void play_check(const struct play *);

#endif
