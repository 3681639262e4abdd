/* url.h: a URL, checked whole before any I/O.
 *
 *     memcache://[user:password@]host[:port][,host[:port]...][/][?name=value[&...]]
 *     memcache:///path/to.sock   memcache+unix:///path   memcache+tls://   memcache+udp://
 *
 * What the grammar leaves open:
 * - Blanks and control bytes stand in a URL only as percent codes; bytes above 127 may stand as
 *   they are, except in a host. A percent code is refused in a host; + is no blank.
 * - A host keeps its capitals (the ring hashes the name as written, as other clients do); two
 *   hosts are the same server when they differ in capitals alone, or spell one IPv6 address.
 * - A name of numbers alone must be an IPv4 address in its one plain spelling. The dot that
 *   makes a name absolute stays.
 * - User and password are at least one byte each. Any byte is taken but CR, LF, NUL, and a
 *   blank in the user. UDP has no login. A unix socket takes one only where the scheme says so:
 *   memcache+unix://user:password@/path.
 * - The path of a unix socket is 2 to 107 bytes, and does not end in a slash.
 * - A question mark is followed by at least one option; no value is empty; names, words and
 *   units are written in small letters.
 * - Ranges: timeouts 1us to 31536000s; tcp_keepalive 1s to 32767s (the kernel's); max_value and
 *   buffers 1 to 1g; connections to 65535; max_inflight to 16777216. A duration's digits stand
 *   on both sides of its point, if it has one; a size has none.
 * - What has no effect on a transport (tcp_nodelay on a unix socket) is accepted, but not an
 *   option of TLS without +tls: who asks to check the peer must not go without in silence.
 * - A URL is at most 65536 bytes, and a list at most 1024 servers.
 */
#ifndef MJ_URL_H
#define MJ_URL_H

#include "error.h"
#include "span.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum mj__transport { MJ__TCP, MJ__UNIX, MJ__UDP };
enum mj__protocol { MJ__AUTO, MJ__META, MJ__ASCII, MJ__BINARY };
enum mj__verify_mode { MJ__PEER, MJ__NO_PEER }; /* peer, none */

/* Every option of a URL, defaults filled in. Spans are nanoseconds, sizes bytes. */
struct mj__options {
    bool tcp_nodelay, direct_read, verify, binary_keys;
    enum mj__protocol protocol;
    mj__time timeout, stall_timeout, connect_timeout;
    mj__time tcp_keepalive; /* 0: off; perhaps not whole seconds */
    uint32_t connections, max_inflight, weight;
    uint64_t max_value;
    uint64_t send_buffer, receive_buffer;               /* 0: the system's own */
    enum mj__verify_mode verify_mode;                   /* TLS */
    char *ca_path, *cert_path, *key_path, *server_name; /* NULL: not given */
};

struct mj__endpoint {
    enum mj__transport transport;
    bool tls;
    char *host; /* without brackets, zone decoded; NULL for a unix socket */
    uint16_t port;
    char *path;            /* of the unix socket; NULL otherwise */
    char *user, *password; /* NULL: no login */
    struct mj__options options;
    char *name; /* how messages and tables call this server, a URL without login and options:
                   "memcache://host:port" (the scheme with +tls or +udp), "memcache:///path" */
};

struct mj__url {
    size_t count; /* at least 1 */
    struct mj__endpoint *endpoints;
};

/* Parses text of `size` bytes (NUL inside is refused, not an end). 0: *url is filled, free it
 * with mj__url_free. -1: *error is bad_url (or no_memory), quotes the offending part (never
 * what may be a password), says what is accepted and, for a misspelt option, which was meant;
 * *url is left empty. */
int mj__url_parse(const char *text, size_t size, struct mj__url *url, struct mj__error *error);
/* Adds the servers of one more URL to *url (all zero, or filled before); a server that is there
 * already is refused. -1: as above, but *url is as it was. */
int mj__url_add(struct mj__url *url, const char *text, size_t size, struct mj__error *error);
void mj__url_free(struct mj__url *url);

/* A deep copy of one endpoint, for a connection to keep. -1: no memory, *to is all zero. */
int mj__endpoint_copy(struct mj__endpoint *to, const struct mj__endpoint *from);
void mj__endpoint_free(struct mj__endpoint *);

#endif
