#include "url.h"

#include "spell.h"
#include "url_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/un.h>

enum {
    URL_MAX = 65536,
    SERVERS_MAX = 1024,
    UNIX_PATH_MAX = sizeof((struct sockaddr_un){0}.sun_path) - 1
};

/* A URL, taken apart and half read. */
struct reader {
    struct mj__source source;
    struct mj__part scheme, login, hosts, path, query;
    bool has_login, has_query;
    bool unix_scheme;
    struct mj__endpoint model; /* what all its servers share; owns its strings */
};

/* ---- taking apart ----------------------------------------------------------------------- */

static int check_bytes(const struct mj__source *source, struct mj__part text) {
    if (text.size > URL_MAX) {
        return mj__fail(source->error, MJ__BAD_URL,
                        "a URL of %zu bytes is too long: at most %d are accepted", text.size,
                        URL_MAX);
    }
    for (size_t i = 0; i < text.size; i++) {
        unsigned byte = (unsigned char)text.at[i];
        if (byte == '\0' || byte == '\r' || byte == '\n') {
            return mj__fail(source->error, MJ__BAD_URL,
                            "a %s at byte %zu: none is accepted in a URL",
                            byte == '\0' ? "NUL" : "line break", i + 1);
        }
        if (byte <= ' ' || byte == 0x7f) {
            return mj__fail(source->error, MJ__BAD_URL,
                            "a %s at byte %zu: inside a URL it is written %%%02X",
                            byte == ' ' ? "blank" : "control byte", i + 1, byte);
        }
    }
    return 0;
}

/* The stretch from the first colon to the last @ may be a password, also where a raw / ? # or @
 * in it made it look like something else. */
static struct mj__part find_secret(struct mj__part rest) {
    const char *at = rest.size > 0 ? memrchr(rest.at, '@', rest.size) : NULL;
    const char *colon = at ? memchr(rest.at, ':', (size_t)(at - rest.at)) : NULL;
    return colon ? (struct mj__part){colon + 1, (size_t)(at - colon - 1)}
                 : (struct mj__part){NULL, 0};
}

/* Splits "scheme://rest". False: there is no such beginning, and *rest is all of the text. */
static bool split_scheme(struct mj__part text, struct mj__part *scheme, struct mj__part *rest) {
    static const char mark[] = "://";
    size_t size = 0;
    while (size < text.size && !strchr(":/?#@", text.at[size])) {
        size++;
    }
    *scheme = (struct mj__part){text.at, size};
    bool found =
        text.size - size >= strlen(mark) && memcmp(text.at + size, mark, strlen(mark)) == 0;
    size_t skip = found ? size + strlen(mark) : 0;
    *rest = (struct mj__part){text.at + skip, text.size - skip};
    return found;
}

static int take_apart(struct reader *reader, struct mj__part text) {
    struct mj__source *source = &reader->source;
    char shown[MJ__SHOWN];
    struct mj__part rest, fragment, authority;
    bool found = split_scheme(text, &reader->scheme, &rest);
    source->secret = find_secret(rest);
    if (check_bytes(source, text) != 0) {
        return -1;
    }
    if (!found) {
        return mj__fail(
            source->error, MJ__BAD_URL,
            "%s: a URL begins with memcache://, memcache+unix://, memcache+tls:// or "
            "memcache+udp://",
            mj__part_show(source, reader->scheme, shown));
    }
    if (mj__part_split(rest, '#', &rest, &fragment)) {
        fragment = (struct mj__part){fragment.at - 1, fragment.size + 1};
        return mj__fail(source->error, MJ__BAD_URL,
                        "the fragment %s is not accepted; a # inside a part is written %%23",
                        mj__part_show(source, fragment, shown));
    }
    reader->has_query = mj__part_split(rest, '?', &rest, &reader->query);
    if (mj__part_split(rest, '/', &authority, &reader->path)) {
        reader->path = (struct mj__part){reader->path.at - 1, reader->path.size + 1};
    }
    reader->has_login = mj__part_split(authority, '@', &reader->login, &reader->hosts);
    if (!reader->has_login) {
        reader->hosts = authority;
    }
    return 0;
}

/* ---- scheme ----------------------------------------------------------------------------- */

struct scheme {
    const char *name;
    enum mj__transport transport;
    bool tls;
};

static const struct scheme schemes[] = {
    {"memcache", MJ__TCP, false},
    {"memcache+unix", MJ__UNIX, false},
    {"memcache+tls", MJ__TCP, true},
    {"memcache+udp", MJ__UDP, false},
};

enum { SCHEMES = sizeof schemes / sizeof schemes[0] };

static bool is_scheme(struct mj__part part, const char *name) {
    return part.size == strlen(name) && strncasecmp(part.at, name, part.size) == 0;
}

static int read_scheme(struct reader *reader) {
    char shown[MJ__SHOWN];
    const char *names[SCHEMES];
    for (size_t i = 0; i < SCHEMES; i++) {
        names[i] = schemes[i].name;
        if (is_scheme(reader->scheme, names[i])) {
            reader->model.transport = schemes[i].transport;
            reader->model.tls = schemes[i].tls;
            reader->unix_scheme = schemes[i].transport == MJ__UNIX;
            return 0;
        }
    }
    const char *meant = mj__nearest(reader->scheme.at, reader->scheme.size, names, SCHEMES);
    return mj__fail(reader->source.error, MJ__BAD_URL,
                    "the scheme %s is not one of memcache, memcache+unix, memcache+tls and "
                    "memcache+udp%s%s%s",
                    mj__part_show(&reader->source, reader->scheme, shown),
                    meant ? "; did you mean " : "", meant ? meant : "", meant ? "?" : "");
}

/* ---- login ------------------------------------------------------------------------------ */

/* No message here shows any of it. */
static int read_login(struct reader *reader) {
    struct mj__source *source = &reader->source;
    struct mj__endpoint *model = &reader->model;
    struct mj__part user, password;
    if (!reader->has_login) {
        return 0;
    }
    if (reader->hosts.size > 0 && memchr(reader->hosts.at, '@', reader->hosts.size)) {
        return mj__fail(
            source->error, MJ__BAD_URL,
            "more than one @: one login stands before all hosts, and an @ inside user "
            "or password is written %%40");
    }
    if (!mj__part_split(reader->login, ':', &user, &password) || user.size == 0 ||
        password.size == 0) {
        return mj__fail(source->error, MJ__BAD_URL,
                        "a login is user:password@, with neither of them empty");
    }
    model->user = mj__part_decode(source, user, "the user");
    model->password = model->user ? mj__part_decode(source, password, "the password") : NULL;
    if (!model->password) {
        return -1;
    }
    if (strchr(model->user, ' ')) {
        return mj__fail(source->error, MJ__BAD_URL,
                        "the user holds a blank, which memcached would take for the end of it");
    }
    if (model->transport == MJ__UDP) {
        return mj__fail(source->error, MJ__BAD_URL,
                        "a login is not accepted with memcache+udp: UDP has none");
    }
    return 0;
}

/* ---- unix sockets ----------------------------------------------------------------------- */

static int check_unix(const struct reader *reader) {
    const struct mj__source *source = &reader->source;
    char shown[MJ__SHOWN];
    if (reader->hosts.size > 0) {
        return mj__fail(source->error, MJ__BAD_URL,
                        "%s stands where memcache+unix has no host: the path follows three "
                        "slashes, memcache+unix:///path",
                        mj__part_show(source, reader->hosts, shown));
    }
    if (!reader->unix_scheme && (reader->model.tls || reader->model.transport == MJ__UDP)) {
        return mj__fail(source->error, MJ__BAD_URL,
                        "a host is missing; a unix socket, with neither TLS nor UDP, is "
                        "memcache:///path");
    }
    if (!reader->unix_scheme && reader->has_login) {
        return mj__fail(
            source->error, MJ__BAD_URL,
            "a host is missing after the login; for a unix socket with a login write "
            "memcache+unix://user:password@/path");
    }
    return 0;
}

static int read_unix(struct reader *reader) {
    const struct mj__source *source = &reader->source;
    struct mj__endpoint *model = &reader->model;
    char shown[MJ__SHOWN];
    if (check_unix(reader) != 0) {
        return -1;
    }
    model->transport = MJ__UNIX;
    model->path = mj__part_decode(source, reader->path, "the path");
    if (!model->path) {
        return -1;
    }
    size_t size = strlen(model->path);
    if (size == 0 || model->path[size - 1] == '/') {
        return mj__fail(source->error, MJ__BAD_URL,
                        "the path %s does not name a unix socket: memcache:///path/to.sock",
                        mj__part_show(source, reader->path, shown));
    }
    if (size > UNIX_PATH_MAX) {
        return mj__fail(
            source->error, MJ__BAD_URL,
            "the path %s of a unix socket is %zu bytes long: at most %d are accepted",
            mj__part_show(source, reader->path, shown), size, UNIX_PATH_MAX);
    }
    return 0;
}

/* ---- servers ---------------------------------------------------------------------------- */

static const char *scheme_name(const struct mj__endpoint *endpoint) {
    for (size_t i = 0; i < SCHEMES; i++) {
        if (schemes[i].transport == endpoint->transport && schemes[i].tls == endpoint->tls &&
            endpoint->transport != MJ__UNIX) {
            return schemes[i].name;
        }
    }
    return schemes[0].name;
}

/* Writes text with what a URL would not hold as it is in percent codes; out has room for three
 * times its size and a NUL. */
static void write_encoded(char *out, const char *text) {
    static const char hex[] = "0123456789ABCDEF";
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "-._~/:";
    for (; *text != '\0'; text++) {
        if (strchr(plain, *text)) {
            *out++ = *text;
        } else {
            *out++ = '%';
            *out++ = hex[(unsigned char)*text >> 4];
            *out++ = hex[(unsigned char)*text & 15];
        }
    }
    *out = '\0';
}

/* "memcache://host:port", "memcache://[::1]:port" or "memcache:///path". NULL: no memory. */
static char *make_name(const struct mj__endpoint *endpoint) {
    const char *place = endpoint->host ? endpoint->host : endpoint->path;
    bool bracketed = endpoint->host && strchr(place, ':');
    char *name = NULL;
    char *encoded = malloc(3 * strlen(place) + 1);
    if (!encoded) {
        return NULL;
    }
    write_encoded(encoded, place);
    int written = endpoint->host ? asprintf(&name, "%s://%s%s%s:%u", scheme_name(endpoint),
                                            bracketed ? "[" : "", encoded, bracketed ? "]" : "",
                                            (unsigned)endpoint->port)
                                 : asprintf(&name, "%s://%s", scheme_name(endpoint), encoded);
    free(encoded);
    return written < 0 ? NULL : name;
}

static bool same_server(const struct mj__endpoint *a, const struct mj__endpoint *b) {
    if (a->path || b->path) {
        return a->path && b->path && strcmp(a->path, b->path) == 0;
    }
    return a->port == b->port && mj__host_same(a->host, b->host);
}

/* Puts a copy of the model at the end of the list. On failure the list is as it was. */
static int add_server(const struct reader *reader, struct mj__url *url) {
    struct mj__error *error = reader->source.error;
    const struct mj__endpoint *model = &reader->model;
    if (url->count == SERVERS_MAX) {
        return mj__fail(error, MJ__BAD_URL, "more than %d servers in one list", SERVERS_MAX);
    }
    for (size_t i = 0; i < url->count; i++) {
        if (same_server(&url->endpoints[i], model)) {
            return mj__fail(error, MJ__BAD_URL, "the server %s is in the list twice",
                            url->endpoints[i].name);
        }
    }
    struct mj__endpoint *grown =
        realloc(url->endpoints, (url->count + 1) * sizeof *url->endpoints);
    if (!grown) {
        return mj__source_no_memory(&reader->source);
    }
    url->endpoints = grown;
    struct mj__endpoint *added = &grown[url->count];
    if (mj__endpoint_copy(added, model) != 0) {
        return mj__source_no_memory(&reader->source);
    }
    added->name = make_name(added);
    if (!added->name) {
        mj__endpoint_free(added);
        return mj__source_no_memory(&reader->source);
    }
    url->count++;
    return 0;
}

static int add_hosts(struct reader *reader, struct mj__url *url) {
    const struct mj__source *source = &reader->source;
    struct mj__endpoint *model = &reader->model;
    char shown[MJ__SHOWN];
    if (reader->path.size > 1) {
        return mj__fail(source->error, MJ__BAD_URL,
                        "the path %s after a host is not accepted; a unix socket has no host: "
                        "memcache:///path",
                        mj__part_show(source, reader->path, shown));
    }
    for (bool more = true; more;) {
        struct mj__part host;
        more = mj__part_split(reader->hosts, ',', &host, &reader->hosts);
        free(model->host);
        model->host = NULL;
        if (mj__host_read(source, host, &model->host, &model->port) != 0 ||
            add_server(reader, url) != 0) {
            return -1;
        }
    }
    return 0;
}

/* ---- the whole -------------------------------------------------------------------------- */

static int read_url(struct reader *reader, struct mj__part text, struct mj__url *url) {
    if (take_apart(reader, text) != 0 || read_scheme(reader) != 0 || read_login(reader) != 0 ||
        mj__options_read(&reader->source, reader->query, reader->has_query, reader->model.tls,
                         &reader->model.options) != 0) {
        return -1;
    }
    bool is_unix = reader->unix_scheme || (reader->hosts.size == 0 && reader->path.size > 0);
    if (!is_unix) {
        return add_hosts(reader, url);
    }
    return read_unix(reader) != 0 ? -1 : add_server(reader, url);
}

int mj__url_add(struct mj__url *url, const char *text, size_t size, struct mj__error *error) {
    struct reader reader = {.source = {.error = error}};
    size_t before = url->count;
    int result = read_url(&reader, (struct mj__part){text, size}, url);
    mj__endpoint_free(&reader.model);
    while (result != 0 && url->count > before) {
        mj__endpoint_free(&url->endpoints[--url->count]);
    }
    return result;
}

int mj__url_parse(const char *text, size_t size, struct mj__url *url, struct mj__error *error) {
    *url = (struct mj__url){0, NULL};
    int result = mj__url_add(url, text, size, error);
    if (result != 0) {
        mj__url_free(url);
    }
    return result;
}

void mj__url_free(struct mj__url *url) {
    for (size_t i = 0; i < url->count; i++) {
        mj__endpoint_free(&url->endpoints[i]);
    }
    free(url->endpoints);
    *url = (struct mj__url){0, NULL};
}

/* ---- endpoints -------------------------------------------------------------------------- */

/* A copy of a string that may be NULL. False: no memory. */
static bool copy_text(char **to, const char *from) {
    *to = from ? strdup(from) : NULL;
    return *to || !from;
}

int mj__endpoint_copy(struct mj__endpoint *to, const struct mj__endpoint *from) {
    *to = (struct mj__endpoint){
        .transport = from->transport, .tls = from->tls, .port = from->port};
    if (mj__options_copy(&to->options, &from->options) != 0 ||
        !copy_text(&to->host, from->host) || !copy_text(&to->path, from->path) ||
        !copy_text(&to->user, from->user) || !copy_text(&to->password, from->password) ||
        !copy_text(&to->name, from->name)) {
        mj__endpoint_free(to);
        return -1;
    }
    return 0;
}

void mj__endpoint_free(struct mj__endpoint *endpoint) {
    free(endpoint->host);
    free(endpoint->path);
    free(endpoint->user);
    free(endpoint->password);
    free(endpoint->name);
    mj__options_free(&endpoint->options);
    *endpoint = (struct mj__endpoint){0};
}
