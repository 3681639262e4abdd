/* ledger.h: what left this process, socket by socket, and which requests that makes.
 *
 * Kept by the call that sends, so that it knows better than the library what left. */
#ifndef LEDGER_H
#define LEDGER_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/uio.h>

/* Forgets everything. */
void ledger_clear(void);
/* A socket was made. */
void ledger_open(int fd);
/* The first `size` bytes of these left. */
void ledger_add(int fd, const struct iovec *parts, size_t size);
/* Which socket the descriptor is now; -1: it is none. */
int ledger_of(int fd);

/* Of the requests that were queued on a socket one after another, the connection's own (mn,
 * version, the login) aside: how many left with some byte, and how many whole. Doubtful: behind
 * these some bytes left that may be either's. */
struct ledger_count {
    size_t begun, whole;
    bool doubtful;
};
struct ledger_count ledger_count(int ledger);

#endif
