/* limit_link.c: a connection: what it sends, and what it makes of what comes. */
#include "contender.h"
#include "limit.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { RECEIVE_LEAST = 1 << 16 }; /* of room for replies */

static int connect_unix(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path)
        fail(MISUSED, "the path %s is too long for a socket", path);
    memcpy(address.sun_path, path, strlen(path));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) < 0)
        fail(WRONG, "connect to %s: %s", path, strerror(errno));
    return fd;
}

static int connect_tcp(const char *host, const char *port) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    int status = getaddrinfo(host, port, &hints, &found);
    if (status != 0)
        fail(WRONG, "%s port %s: %s", host, port, gai_strerror(status));
    int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, found->ai_addr, found->ai_addrlen) < 0)
        fail(WRONG, "connect to %s port %s: %s", host, port, strerror(errno));
    freeaddrinfo(found);
    if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)) < 0)
        fail(WRONG, "TCP_NODELAY: %s", strerror(errno));
    return fd;
}

void link_open(struct link *link, const struct plan *plan) {
    size_t reply = plan->size + 128; /* one whole, with its lines */
    link->room_size = reply > RECEIVE_LEAST ? reply : RECEIVE_LEAST;
    link->room = allocate(link->room_size, 1);
    link->gather = plan->gather;
    link->fd =
        *plan->host == '/' ? connect_unix(plan->host) : connect_tcp(plan->host, plan->port);
}

void link_close(struct link *link) {
    close(link->fd);
    free(link->room);
}

void link_play(struct link *link, const struct script *script, int first) {
    link->script = script;
    link->next_request = first;
    link->next_answer = 0;
    for (int passed = 0; passed < first; link->next_answer++)
        passed += script->answers[link->next_answer].last;
}

void link_send(struct link *link, int requests, struct tally *tally) {
    const struct script *script = link->script;
    size_t at = script->starts[link->next_request];
    size_t end = script->starts[link->next_request + requests];
    while (at < end) {
        ssize_t count = send(link->fd, script->text + at, end - at, MSG_NOSIGNAL);
        if (count < 0)
            fail(WRONG, "send: %s", strerror(errno));
        tally->calls++;
        at += (size_t)count;
    }
    link->next_request = (link->next_request + requests) % script->requests;
    link->in_flight += requests;
}

static void link_receive(struct link *link, struct tally *tally) {
    ssize_t count = recv(link->fd, link->room + link->have, link->room_size - link->have, 0);
    if (count < 0)
        fail(WRONG, "receive: %s", strerror(errno));
    if (count == 0)
        fail(WRONG, "the server closed the connection with %d requests unanswered",
             link->in_flight);
    tally->calls++;
    link->have += (size_t)count;
}

_Noreturn static void fail_reply(const struct answer *answer, const char *text, size_t size) {
    char shown[41] = "";
    for (size_t i = 0; i < size && i < sizeof shown - 1; i++)
        shown[i] = text[i] >= ' ' && text[i] <= '~' ? text[i] : '_';
    char wanted[sizeof answer->head];
    snprintf(wanted, sizeof wanted, "%.*s", (int)strcspn(answer->head, "\r"), answer->head);
    fail(WRONG, "instead of %s%s the server said %s", wanted,
         answer->has_value ? "and the length and bytes of its value" : "", shown);
}

/* How many bytes the answer takes; 0: it is not here in full. Any other reply than the one
 * expected is the end. */
static size_t parse(const char *text, size_t have, const struct answer *answer, size_t size) {
    size_t at = answer->head_size;
    if (memcmp(text, answer->head, have < at ? have : at) != 0)
        fail_reply(answer, text, have);
    if (have < at || !answer->has_value)
        return have < at ? 0 : at;
    size_t length = 0;
    for (; at < have && text[at] >= '0' && text[at] <= '9' && length <= size; at++)
        length = length * 10 + (size_t)(text[at] - '0');
    if (have < at + 2)
        return 0;
    if (length != size || text[at] != '\r' || text[at + 1] != '\n')
        fail_reply(answer, text, have);
    at += 2;
    if (have < at + length + 2)
        return 0;
    const char *end = text + at + length;
    if (memcmp(text + at, answer->key, KEY_SIZE) != 0 ||
        memcmp(end - KEY_SIZE, answer->key, KEY_SIZE) != 0 || end[0] != '\r' || end[1] != '\n')
        fail_reply(answer, text, have);
    return at + length + 2;
}

/* Takes all answers that are here in full; returns how many requests have theirs. */
static int link_take(struct link *link, struct tally *tally) {
    const struct script *script = link->script;
    size_t at = 0, taken = 0;
    int done = 0;
    while (at < link->have) {
        const struct answer *answer = &script->answers[link->next_answer];
        if (done == link->in_flight)
            fail(WRONG, "the server answered what nobody had asked");
        taken = parse(link->room + at, link->have - at, answer, script->value_size);
        if (taken == 0)
            break;
        at += taken;
        tally->operations += answer->counts;
        done += answer->last;
        if (++link->next_answer == script->answer_count)
            link->next_answer = 0;
    }
    link->have -= at;
    if (link->have > 0 && at > 0)
        memmove(link->room, link->room + at, link->have);
    link->in_flight -= done;
    return done;
}

void link_turn(struct link *link, struct tally *tally) {
    link_receive(link, tally);
    link->unasked += link_take(link, tally);
    if (link->unasked >= link->gather) {
        link_send(link, link->unasked, tally);
        link->unasked = 0;
    }
}

void link_drain(struct link *link, struct tally *tally) {
    while (link->in_flight > 0) {
        link_receive(link, tally);
        link_take(link, tally);
    }
}
