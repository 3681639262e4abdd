/* limit.h: the parts of limit.
 *
 * A script is what is asked and what must be answered, made beforehand; a link is a connection
 * that plays it. Whatever goes wrong ends the program. */
#ifndef BENCH_LIMIT_H
#define BENCH_LIMIT_H

#include <stdbool.h>
#include <stddef.h>

enum mode { GET, MG, SET, MS, MULTI_GET, MIXED };

enum { MIXED_CYCLE = 10 }; /* in MIXED one request in so many is a set, the others are gets */

struct plan {
    const char *name;
    enum mode mode;
    int depth, gather; /* requests in flight; how many of them must end before more are sent */
    int values;        /* so many are asked for in turn, at the least */
    int connections;
    size_t size; /* of a value */
    double seconds;
    const char *host, *port;
};

/* ---- limit_script.c: requests, and the answers they must get ----
 *
 * Both are circles. The text of the requests stands twice in a row, so that any stretch of the
 * circle can be sent from where it stands. */

enum { KEY_SIZE = 11 }; /* "bench:00042"; a value begins and ends with its key */

struct answer {
    char head[32]; /* the reply, or what comes before the length of its value */
    size_t head_size;
    char key[KEY_SIZE + 1];
    bool has_value;
    bool counts; /* as an operation */
    bool last;   /* of its request */
};

struct script {
    char *text;
    size_t *starts; /* of each request in the text, and of what follows the last */
    int requests;
    struct answer *answers;
    int answer_count;
    size_t value_size;
};

/* A circle of so many requests, each for a key of its own; with MULTI_GET for so many keys. */
struct script script_make(enum mode mode, int requests, int keys, size_t value_size);
void script_free(struct script *script);

/* ---- limit_link.c: one connection ---- */

struct link {
    int fd;
    const struct script *script;
    int next_request, next_answer; /* places in the script's circles */
    int in_flight, unasked;        /* unasked: answered, and not sent again yet */
    int gather;
    char *room; /* for replies */
    size_t room_size, have;
};

struct tally {
    unsigned long long operations, calls;
};

void link_open(struct link *link, const struct plan *plan);
void link_close(struct link *link);

/* From now on it plays this script, from its request number `first` on. */
void link_play(struct link *link, const struct script *script, int first);

/* Asks for the next so many of the script, in one send. */
void link_send(struct link *link, int requests, struct tally *tally);

/* One receive; then one send that asks again for as many as were answered, if they suffice. */
void link_turn(struct link *link, struct tally *tally);

/* Takes the answers that are still to come, and asks for nothing. */
void link_drain(struct link *link, struct tally *tally);

#endif
