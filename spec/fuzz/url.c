/* url.c: bytes as a URL. */
#include "url.h"

#include "fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what came of it -------------------------------------------------------------------- */

static void note_text(struct text *log, const char *text) {
    text_quote(log, text, text != NULL ? strlen(text) : 0);
}

static void note_options(struct text *log, const struct mj__options *options) {
    text_print(log, "%d %d %d %d %d ", options->tcp_nodelay, options->direct_read,
               options->verify, options->binary_keys, (int)options->protocol);
    text_print(log, "%lld %lld %lld %lld ", (long long)options->timeout,
               (long long)options->stall_timeout, (long long)options->connect_timeout,
               (long long)options->tcp_keepalive);
    text_print(log, "%u %u %u %llu %llu %llu %d ", options->connections, options->max_inflight,
               options->weight, (unsigned long long)options->max_value,
               (unsigned long long)options->send_buffer,
               (unsigned long long)options->receive_buffer, (int)options->verify_mode);
    note_text(log, options->ca_path);
    note_text(log, options->cert_path);
    note_text(log, options->key_path);
    note_text(log, options->server_name);
}

static void note_endpoint(struct text *log, const struct mj__endpoint *endpoint) {
    text_print(log, "%d %d %u ", (int)endpoint->transport, endpoint->tls, endpoint->port);
    note_text(log, endpoint->host);
    note_text(log, endpoint->path);
    note_text(log, endpoint->user);
    note_text(log, endpoint->password);
    note_text(log, endpoint->name);
    note_options(log, &endpoint->options);
}

/* Parses a copy that begins `shift` bytes into its block and ends with it. */
static bool parse(struct text *log, const uint8_t *data, size_t size, size_t shift,
                  struct mj__url *url) {
    struct mj__error error;
    char *block = malloc(shift + size);
    HOLDS(block != NULL || shift + size == 0);
    memcpy(block + shift, data, size);
    memset(&error, 0xa5, sizeof error);
    memset(url, 0xa5, sizeof *url);
    int status = mj__url_parse(block + shift, size, url, &error);
    free(block);
    if (status == 0) {
        for (size_t i = 0; i < url->count; i++) {
            note_endpoint(log, &url->endpoints[i]);
        }
        return true;
    }
    HOLDS(status == -1 && url->count == 0 && url->endpoints == NULL);
    HOLDS(error.kind == MJ__BAD_URL && error.phase == MJ__PHASE_NONE);
    HOLDS(error.sent == MJ__SENT_NO);
    size_t length = strnlen(error.text, sizeof error.text);
    HOLDS(length > 0 && length < sizeof error.text);
    for (size_t i = 0; i < length; i++) {
        HOLDS(error.text[i] >= ' ' && error.text[i] <= '~');
    }
    text_add(log, error.text, length);
    return false;
}

/* ---- what it may be --------------------------------------------------------------------- */

static bool within(uint64_t value, uint64_t min, uint64_t max) {
    return value >= min && value <= max;
}

static void check_options(const struct mj__endpoint *endpoint) {
    const struct mj__options *options = &endpoint->options;
    const uint64_t second = 1000000000, year = 31536000 * second, giga = 1 << 30;
    HOLDS(within(options->protocol, MJ__AUTO, MJ__BINARY));
    HOLDS(within((uint64_t)options->timeout, 1000, year));
    HOLDS(within((uint64_t)options->connect_timeout, 1000, year));
    HOLDS(within((uint64_t)options->stall_timeout, 1000, year) ||
          options->stall_timeout == 3 * options->timeout);
    HOLDS(options->tcp_keepalive == 0 ||
          within((uint64_t)options->tcp_keepalive, second, 32767 * second));
    HOLDS(within(options->connections, 1, 65535));
    HOLDS(within(options->max_inflight, 1, 16777216));
    HOLDS(within(options->weight, 1, 1000));
    HOLDS(within(options->max_value, 1, giga));
    HOLDS(options->send_buffer <= giga && options->receive_buffer <= giga);
    HOLDS(within(options->verify_mode, MJ__PEER, MJ__NO_PEER));
    if (!endpoint->tls) {
        HOLDS(options->verify_mode == MJ__PEER && options->ca_path == NULL);
        HOLDS(options->cert_path == NULL && options->key_path == NULL);
        HOLDS(options->server_name == NULL);
    }
}

static void check_line_ends(const char *text) {
    HOLDS(text == NULL || (*text != '\0' && strpbrk(text, "\r\n") == NULL));
}

static void check_endpoint(const struct mj__endpoint *endpoint) {
    bool is_unix = endpoint->transport == MJ__UNIX;
    HOLDS(endpoint->transport <= MJ__UDP && endpoint->name != NULL);
    HOLDS((endpoint->path != NULL) == is_unix && (endpoint->host != NULL) == !is_unix);
    HOLDS(is_unix || endpoint->port > 0);
    HOLDS(!is_unix || within(strlen(endpoint->path), 2, 107));
    HOLDS(!endpoint->tls || endpoint->transport == MJ__TCP);
    HOLDS((endpoint->user != NULL) == (endpoint->password != NULL));
    HOLDS(endpoint->user == NULL || strchr(endpoint->user, ' ') == NULL);
    check_line_ends(endpoint->host);
    check_line_ends(endpoint->path);
    check_line_ends(endpoint->user);
    check_line_ends(endpoint->password);
    check_options(endpoint);
}

/* ---- there and back --------------------------------------------------------------------- */

static void print_encoded(struct text *url, const char *bytes) {
    for (; *bytes != '\0'; bytes++) {
        text_print(url, "%%%02x", (unsigned char)*bytes);
    }
}

static void print_text(struct text *url, const char *name, const char *value) {
    if (value != NULL) {
        text_print(url, "&%s=", name);
        print_encoded(url, value);
    }
}

static void print_span(struct text *url, const char *name, mj__time span) {
    text_print(url, "&%s=%lld.%09llds", name, (long long)(span / MJ__SECOND),
               (long long)(span % MJ__SECOND));
}

static void print_size(struct text *url, const char *name, uint64_t size) {
    if (size > 0) {
        text_print(url, "&%s=%llu", name, (unsigned long long)size);
    }
}

static const char *word(bool flag) {
    return flag ? "true" : "false";
}

static void print_options(struct text *url, const struct mj__endpoint *endpoint) {
    static const char *const protocols[] = {"auto", "meta", "ascii", "binary"};
    const struct mj__options *options = &endpoint->options;
    text_print(url, "?tcp_nodelay=%s&direct_read=%s&verify=%s&binary_keys=%s&protocol=%s",
               word(options->tcp_nodelay), word(options->direct_read), word(options->verify),
               word(options->binary_keys), protocols[options->protocol]);
    print_span(url, "timeout", options->timeout);
    if (options->stall_timeout != 3 * options->timeout) {
        print_span(url, "stall_timeout", options->stall_timeout);
    }
    print_span(url, "connect_timeout", options->connect_timeout);
    if (options->tcp_keepalive == 0) {
        text_print(url, "&tcp_keepalive=false");
    } else {
        print_span(url, "tcp_keepalive", options->tcp_keepalive);
    }
    text_print(url, "&connections=%u&max_inflight=%u&weight=%u", options->connections,
               options->max_inflight, options->weight);
    print_size(url, "max_value", options->max_value);
    print_size(url, "send_buffer", options->send_buffer);
    print_size(url, "receive_buffer", options->receive_buffer);
    if (endpoint->tls) {
        text_print(url, "&verify_mode=%s", options->verify_mode == MJ__PEER ? "peer" : "none");
        print_text(url, "ca_path", options->ca_path);
        print_text(url, "cert_path", options->cert_path);
        print_text(url, "key_path", options->key_path);
        print_text(url, "server_name", options->server_name);
    }
}

static void print_url(struct text *url, const struct mj__endpoint *endpoint) {
    bool is_unix = endpoint->transport == MJ__UNIX;
    const char *name = endpoint->name, *place = strstr(name, "://");
    HOLDS(place != NULL);
    text_print(url, "%.*s%s://", (int)(place - name), name, is_unix ? "+unix" : "");
    if (endpoint->user != NULL) {
        print_encoded(url, endpoint->user);
        text_add(url, ":", 1);
        print_encoded(url, endpoint->password);
        text_add(url, "@", 1);
    }
    text_add(url, place + 3, strlen(place + 3));
    print_options(url, endpoint);
}

/* A server's URL, written anew in full, gives the same server. */
static void check_back(const struct mj__endpoint *endpoint) {
    struct text before = {0}, after = {0}, printed = {0};
    struct mj__url url;
    note_endpoint(&before, endpoint);
    print_url(&printed, endpoint);
    HOLDS(parse(&after, (const uint8_t *)printed.bytes, printed.size, 0, &url));
    HOLDS(text_same(&before, &after));
    mj__url_free(&url);
    text_free(&before);
    text_free(&after);
    text_free(&printed);
}

static void check_copy(const struct mj__endpoint *endpoint) {
    struct text before = {0}, after = {0};
    struct mj__endpoint copy;
    note_endpoint(&before, endpoint);
    HOLDS(mj__endpoint_copy(&copy, endpoint) == 0);
    note_endpoint(&after, &copy);
    HOLDS(text_same(&before, &after));
    mj__endpoint_free(&copy);
    text_free(&before);
    text_free(&after);
}

/* Its servers are there already: the list stays as it was. */
static void check_addition(struct mj__url *url, const uint8_t *data, size_t size) {
    struct mj__error error;
    size_t count = url->count;
    HOLDS(mj__url_add(url, (const char *)data, size, &error) == -1);
    HOLDS(error.kind == MJ__BAD_URL && url->count == count);
}

/* ---- secrets ---------------------------------------------------------------------------- */

enum { MARK = 12, TELLTALE = 5 }; /* bytes of a mark, and how few of them give it away */

static bool has_telltale(const char *text, size_t size, const char *mark) {
    for (int i = 0; i + TELLTALE <= MARK; i++) {
        if (memmem(text, size, mark + i, TELLTALE) != NULL) {
            return true;
        }
    }
    return false;
}

/* Puts a mark where a password may be, from the first colon to the last @: no message shows it.
 * The mark follows from the input, lest the fuzzer learns it and writes it elsewhere. */
static void check_secret(const uint8_t *data, size_t size) {
    struct knife knife = knife_for(CRUMBS, data, size);
    struct mj__error error;
    struct mj__url url;
    char mark[MARK];
    char *text = malloc(size + 1);
    HOLDS(text != NULL);
    memcpy(text, data, size);
    char *scheme = memmem(text, size, "://", 3);
    char *end = memrchr(text, '@', size);
    char *rest = scheme != NULL ? scheme + 3 : NULL;
    char *colon = rest != NULL && end > rest ? memchr(rest, ':', (size_t)(end - rest)) : NULL;
    for (int i = 0; i < MARK; i++) {
        mark[i] = (char)('I' + knife_next(&knife, 16));
    }
    if (colon != NULL && end - colon > MARK && !has_telltale(text, size, mark)) {
        memcpy(end - MARK, mark, MARK);
        if (mj__url_parse(text, size, &url, &error) == 0) {
            mj__url_free(&url);
        } else {
            HOLDS(!has_telltale(error.text, strlen(error.text), mark));
        }
    }
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct text log = {0}, again = {0};
    struct mj__url url, other;
    bool fine = parse(&log, data, size, 0, &url);
    HOLDS(parse(&again, data, size, 1 + size % 15, &other) == fine);
    HOLDS(text_same(&log, &again));
    mj__url_free(&other);
    for (size_t i = 0; i < url.count; i++) {
        check_endpoint(&url.endpoints[i]);
        if (i < 3) { /* the others are as these */
            check_copy(&url.endpoints[i]);
            check_back(&url.endpoints[i]);
        }
    }
    if (fine) {
        check_addition(&url, data, size);
        mj__url_free(&url);
    }
    check_secret(data, size);
    text_free(&log);
    text_free(&again);
    return 0;
}
