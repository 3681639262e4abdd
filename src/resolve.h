/* resolve.h: host names to addresses, on helper threads, at most 4 at a time per loop.
 *
 * getaddrinfo blocks, so it runs on detached threads; a look-up that nobody wants any more is
 * left to end by itself. Literal addresses (IPv4, IPv6, with a zone) are answered without a
 * thread, at the end of the same turn. Callbacks come on the loop's own thread, never from
 * inside a call. */
#ifndef MJ_RESOLVE_H
#define MJ_RESOLVE_H

#include "loop.h"

#include <netdb.h>

struct mj__resolver;
struct mj__lookup;

/* One per loop. Takes a descriptor at the first name, none for addresses. NULL: no memory. */
struct mj__resolver *mj__resolver_open(struct mj__loop *, struct mj__error *error);
/* Abandons every look-up (no callback comes) and frees the resolver; what threads still need
 * they free when they are done. Not from inside a callback of its own. NULL is harmless. */
void mj__resolver_close(struct mj__resolver *);

/* Called once: with addresses (the callee owns the list: freeaddrinfo) and a text of NULL, or
 * with NULL and the reason in words, borrowed for the call. The look-up is gone afterwards. */
typedef void mj__resolve_fn(void *arg, struct addrinfo *list, const char *reason);

/* Starts a look-up of stream-socket addresses; more than 4 at once queue up. host is copied.
 * NULL: no memory, descriptor or thread, and no callback comes; *error says why. */
struct mj__lookup *mj__resolve(struct mj__resolver *, const char *host, uint16_t port,
                               mj__resolve_fn *done, void *arg, struct mj__error *error);
/* The caller no longer wants it; no callback comes. Not after the callback came. */
void mj__resolve_abandon(struct mj__lookup *);

#endif
