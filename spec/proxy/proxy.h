/* proxy.h: a fault proxy between a memcached client and a real memcached.
 *
 * A program of its own, which shares no line with what it tests: it knows bytes, and just
 * enough of the protocol to tell where a value begins and how long it is.
 *
 *   route   a listening address and the server behind it; its settings hold for all its links
 *   link    one client's connection and the one made for it to the server
 *   flow    one direction of a link: what was read and is not written yet, at most FLOW_ROOM
 *   scan    where the values are in a flow; cuts one, or lies about one */
#ifndef PROXY_H
#define PROXY_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

enum {
    FLOW_ROOM = 65536,    /* bytes held in a direction; more is left to the sender's socket */
    FLOW_MARKS = 256,     /* reads whose delay is not over yet */
    SCAN_LINE = 2200,     /* a line longer than this is no reply: the rest is passed unseen */
    SCAN_HELD = 16384,    /* values up to this are held back until whole, where we lie */
    SCAN_REMEMBERED = 64, /* values kept to lie with */
    MARK_SPAN = 200,      /* microseconds: reads this close together share a delay */
    NAME_SIZE = 32,
};

enum direction { UP, DOWN }; /* to the server, to the client */

enum accept_mode {
    ACCEPT_FORWARD,
    ACCEPT_MUTE,   /* take the connection, read it, say nothing, ask nobody */
    ACCEPT_RESET,  /* take it and reset it */
    ACCEPT_REFUSE, /* close the listening socket */
};

enum ending { END_CLOSE, END_RESET };

enum lie {
    LIE_NONE,
    LIE_FLIP,   /* one byte of a value is changed */
    LIE_OLDER,  /* a value is replaced by an earlier one of the same name and size */
    LIE_OTHER,  /* a value is replaced by one of another name, of the same size */
    LIE_STORED, /* "not stored" becomes "stored" */
};

/* What was done, over the life of the process. */
struct counters {
    uint64_t accepted, refusals, resets, closes, halves, stalls, muted;
    uint64_t cut_values_up, cut_values_down, cut_counted;
    uint64_t delayed, pieces; /* reads that were delayed; writes that were made small */
    uint64_t lies, bytes_up, bytes_down;
};

/* A value that went by, to lie with. */
struct memory {
    char name[NAME_SIZE];
    char *bytes;
    size_t size;
};

/* What epoll watches. A handle is the first member of what it belongs to. */
struct proxy;
struct handle {
    void (*ready)(struct proxy *, struct handle *, uint32_t events);
};

struct address {
    union {
        struct sockaddr any;
        struct sockaddr_in internet;
        struct sockaddr_un local;
    } as;
    socklen_t size;
};

struct route {
    struct handle handle; /* the listener */
    uint32_t watched;
    struct route *next;
    char name[NAME_SIZE];
    struct address from, to;
    int listener; /* -1: it refuses */
    enum accept_mode mode;
    uint64_t delay[2]; /* microseconds a byte waits */
    size_t piece[2];   /* bytes in one write; 0: as they come */
    uint64_t gap;      /* microseconds between two pieces */
    int64_t cut[2];    /* new links end after so many bytes; -1: never */
    enum ending ending;
    enum lie lie;
    uint64_t lies; /* how many more lies to tell */
    struct memory memories[SCAN_REMEMBERED];
    size_t next_memory;
};

/* Offsets count the bytes of a direction from its beginning. */
struct scan {
    uint64_t done;      /* looked at so far */
    uint64_t line;      /* where the present line began */
    uint64_t block_end; /* of the present value with its CRLF; 0: between values */
    bool blind;         /* lost its way: bytes pass as they are */
    bool armed;         /* cut the next value */
    uint64_t hold;      /* nothing from here on is written yet; UINT64_MAX: all may */
};

struct flow {
    int from, to;
    char *room; /* bytes [start, end) of it are waiting */
    size_t start, end;
    uint64_t written; /* the offset of room[start] */
    struct mark {
        uint64_t from, due; /* bytes from here on go at this time */
    } marks[FLOW_MARKS];
    size_t first_mark, mark_count;
    uint64_t next_piece; /* when the next piece may go */
    uint64_t cut_at;     /* the link ends when this much was written; UINT64_MAX: never */
    bool cut_in_value;
    bool eof, shut; /* its sender has ended; its receiver was told so */
    bool blocked;   /* the last write was short */
    struct scan scan;
};

struct end {
    struct handle handle;
    struct link *link;
    int fd;
    uint32_t watched;
};

struct link {
    struct link *next;
    struct route *route;
    struct end client, server;
    struct flow flows[2];
    bool connecting, mute, dead;
    uint64_t stalled; /* nothing moves before this */
};

struct proxy {
    int epoll;
    uint64_t now; /* microseconds, read once a turn */
    uint64_t seed;
    struct route *routes;
    struct link *links; /* the newest first */
    struct counters counters;
    bool ending;
};

/* main.c */
uint64_t random_below(struct proxy *, uint64_t limit); /* limit > 0 */
void watch(struct proxy *, struct handle *, int fd, uint32_t *watched, uint32_t wanted);

/* route.c. Each returns NULL or why it could not. */
const char *route_listen(struct proxy *, struct route *);
void route_refuse(struct route *);
bool address_parse(struct address *, const char *text); /* tcp:PORT, unix:PATH */
int address_port(const struct address *);               /* 0: it has none */

/* link.c */
void link_open(struct proxy *, struct route *, int client);
/* Moves what may move now; keeps *wake at the earliest moment when more may. */
void link_move(struct proxy *, struct link *, uint64_t *wake);
void link_end(struct link *, enum ending);
void link_free(struct link *);

/* flow.c */
bool flow_open(struct flow *, int from, int to);
/* Reads and writes what it can. False: the link is over. */
bool flow_read(struct proxy *, struct link *, enum direction);
bool flow_write(struct proxy *, struct link *, enum direction, uint64_t *wake);
bool flow_has_room(const struct flow *);

/* scan.c: looks at the bytes read since the last call. */
void scan_look(struct proxy *, struct link *, enum direction);
void scan_forget(struct route *);

/* control.c: one line in, one line out. */
void control_line(struct proxy *, char *line);

#endif
