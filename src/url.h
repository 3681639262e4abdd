/* url.h: a URL, checked whole before any I/O.
 *
 *     memcache://[user:password@]host[:port][,host[:port]...][/][?name=value[&...]]
 *     memcache:///path/to.sock   memcache+unix:///path   memcache+tls://   memcache+udp://
 */
#ifndef MJ_URL_H
#define MJ_URL_H

#include "error.h"
#include "loop.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum mj__transport { MJ__TCP, MJ__UNIX, MJ__UDP };
enum mj__protocol { MJ__AUTO, MJ__META, MJ__ASCII, MJ__BINARY };

/* Every option of a URL, defaults filled in. Spans are nanoseconds, sizes bytes. */
struct mj__options {
    bool tcp_nodelay, direct_read, verify, binary_keys;
    enum mj__protocol protocol;
    mj__time timeout, stall_timeout, connect_timeout;
    mj__time tcp_keepalive; /* 0: off */
    uint32_t connections, max_inflight, weight;
    uint64_t max_value;
    uint64_t send_buffer, receive_buffer; /* 0: the system's own */
    bool verify_peer;                     /* TLS: verify_mode=peer */
    char *ca_path, *cert_path, *key_path, *server_name; /* NULL: not given */
};

struct mj__endpoint {
    enum mj__transport transport;
    bool tls;
    char *host; /* without brackets, zone decoded; NULL for a unix socket */
    uint16_t port;
    char *path; /* of the unix socket; NULL otherwise */
    char *user, *password; /* NULL: no login */
    struct mj__options options;
    char *name; /* how messages and tables call this server: "memcache://host:port", without login
                   and options; "memcache:///path" */
};

struct mj__url {
    size_t count; /* at least 1 */
    struct mj__endpoint *endpoints;
};

/* Parses text of `size` bytes (NUL inside is refused, not an end). 0: *url is filled, free it with
 * mj__url_free. -1: *error is bad_url (or no_memory), names the offending part, says what is
 * accepted and, for a misspelt option, which was meant; *url is left empty. */
int mj__url_parse(const char *text, size_t size, struct mj__url *url, struct mj__error *error);
void mj__url_free(struct mj__url *url);

/* A deep copy of one endpoint, for a connection to keep. -1: no memory, *to is all zero. */
int mj__endpoint_copy(struct mj__endpoint *to, const struct mj__endpoint *from);
void mj__endpoint_free(struct mj__endpoint *);

#endif
