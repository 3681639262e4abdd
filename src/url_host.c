#include "url_parts.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { DEFAULT_PORT = 11211, LABEL_MAX = 63 };

/* ---- names and IPv4 --------------------------------------------------------------------- */

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static bool is_name_byte(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '-' ||
           c == '_';
}

bool mj__host_is_name(struct mj__part part) {
    size_t label = 0;
    for (size_t i = 0; i < part.size; i++) {
        if (part.at[i] == '.') {
            if (label == 0) {
                return false;
            }
            label = 0;
        } else if (!is_name_byte(part.at[i]) || ++label > LABEL_MAX) {
            return false;
        }
    }
    return part.size > 0 && part.size <= MJ__HOST_MAX;
}

/* Whether every label is a number: the C library takes 127.1, 0x7f000001 and 010.0.0.1 for IPv4
 * addresses that nobody meant, and would look 256.1.1.1 up as a name. */
static bool looks_like_ipv4(const char *name) {
    while (*name != '\0') {
        bool hex = name[0] == '0' && (name[1] == 'x' || name[1] == 'X');
        name += hex ? 2 : 0;
        name += strspn(name, hex ? "0123456789abcdefABCDEF" : "0123456789");
        if (*name != '\0' && *name++ != '.') {
            return false;
        }
    }
    return true;
}

static int read_name(const struct mj__source *source, struct mj__part part, char **host) {
    char name[MJ__HOST_MAX + 1];
    char shown[MJ__SHOWN];
    struct in_addr address;
    if (part.size == 0) {
        return mj__fail(source->error, MJ__BAD_URL,
                        "a host is missing: memcache://host[:port], or memcache:///path for a "
                        "unix socket");
    }
    if (!mj__host_is_name(part)) {
        return mj__fail(
            source->error, MJ__BAD_URL,
            "the host %s is not a name (letters, digits, - _ .), an IPv4 address or "
            "an [IPv6] address",
            mj__part_show(source, part, shown));
    }
    memcpy(name, part.at, part.size);
    name[part.size] = '\0';
    if (looks_like_ipv4(name) && inet_pton(AF_INET, name, &address) != 1) {
        return mj__fail(
            source->error, MJ__BAD_URL,
            "the host %s is not an IPv4 address: four numbers from 0 to 255, without "
            "leading zeros",
            mj__part_show(source, part, shown));
    }
    *host = strdup(name);
    return *host ? 0 : mj__source_no_memory(source);
}

/* ---- IPv6 ------------------------------------------------------------------------------- */

static int refuse_ipv6(const struct mj__source *source, struct mj__part part) {
    char shown[MJ__SHOWN];
    return mj__fail(source->error, MJ__BAD_URL,
                    "%s between brackets is not an IPv6 address, such as [::1] or "
                    "[fe80::1%%25eth0]",
                    mj__part_show(source, part, shown));
}

/* `%25zone`: the name or the number of an interface. The result begins with '%'. */
static char *read_zone(const struct mj__source *source, struct mj__part part) {
    char shown[MJ__SHOWN];
    char *zone = mj__part_decode(source, part, "the zone");
    if (zone && (zone[0] != '%' || zone[1] == '\0' || strlen(zone + 1) >= IF_NAMESIZE ||
                 strpbrk(zone + 1, " /%"))) {
        mj__fail(source->error, MJ__BAD_URL,
                 "the zone %s is not the name of an interface (1 to %d bytes), written "
                 "[fe80::1%%25eth0]",
                 mj__part_show(source, part, shown), IF_NAMESIZE - 1);
        free(zone);
        return NULL;
    }
    return zone;
}

static int read_ipv6(const struct mj__source *source, struct mj__part part, char **host) {
    char text[INET6_ADDRSTRLEN];
    struct in6_addr address;
    struct mj__part digits, zone;
    bool zoned = mj__part_split(part, '%', &digits, &zone);
    if (digits.size >= sizeof text) {
        return refuse_ipv6(source, part);
    }
    memcpy(text, digits.at, digits.size);
    text[digits.size] = '\0';
    if (inet_pton(AF_INET6, text, &address) != 1) {
        return refuse_ipv6(source, part);
    }
    char *tail = NULL;
    if (zoned) {
        struct mj__part code = {zone.at - 1, zone.size + 1};
        if (zone.size < 2 || memcmp(zone.at, "25", 2) != 0) {
            return refuse_ipv6(source, part);
        }
        tail = read_zone(source, code);
        if (!tail) {
            return -1;
        }
    }
    size_t tail_size = tail ? strlen(tail) : 0;
    *host = malloc(digits.size + tail_size + 1);
    if (*host) {
        memcpy(*host, text, digits.size + 1);
        memcpy(*host + digits.size, tail ? tail : "", tail_size + 1);
    }
    free(tail);
    return *host ? 0 : mj__source_no_memory(source);
}

/* ---- host and port ---------------------------------------------------------------------- */

static int read_port(const struct mj__source *source, struct mj__part part, uint16_t *port) {
    char shown[MJ__SHOWN];
    uint64_t number = DEFAULT_PORT;
    if (part.size > 0 && (!mj__part_number(part, UINT16_MAX, &number) || number == 0)) {
        return mj__fail(source->error, MJ__BAD_URL,
                        "the port %s is not a number from 1 to 65535",
                        mj__part_show(source, part, shown));
    }
    *port = (uint16_t)number;
    return 0;
}

static int split_brackets(const struct mj__source *source, struct mj__part part,
                          struct mj__part *host, struct mj__part *port) {
    char shown[MJ__SHOWN];
    struct mj__part inner = {part.at + 1, part.size - 1};
    struct mj__part rest;
    if (!mj__part_split(inner, ']', host, &rest)) {
        return mj__fail(source->error, MJ__BAD_URL, "the host %s lacks its closing bracket",
                        mj__part_show(source, part, shown));
    }
    if (rest.size > 0 && rest.at[0] != ':') {
        return mj__fail(source->error, MJ__BAD_URL,
                        "%s after the bracket is not accepted: only :port may follow",
                        mj__part_show(source, rest, shown));
    }
    *port = rest.size > 0 ? (struct mj__part){rest.at + 1, rest.size - 1} : rest;
    return 0;
}

int mj__host_read(const struct mj__source *source, struct mj__part part, char **host,
                  uint16_t *port) {
    char shown[MJ__SHOWN];
    struct mj__part name = part, digits = {NULL, 0};
    bool bracketed = part.size > 0 && part.at[0] == '[';
    if (bracketed) {
        if (split_brackets(source, part, &name, &digits) != 0) {
            return -1;
        }
    } else if (mj__part_split(part, ':', &name, &digits) && digits.size > 0 &&
               memchr(digits.at, ':', digits.size)) {
        return mj__fail(source->error, MJ__BAD_URL,
                        "%s holds more than one colon: an IPv6 address is written in brackets, "
                        "[::1]:11211",
                        mj__part_show(source, part, shown));
    }
    if (read_port(source, digits, port) != 0) {
        return -1;
    }
    return bracketed ? read_ipv6(source, name, host) : read_name(source, name, host);
}

/* Splits "fe80::1%eth0", which was checked when it was read. */
static const char *parse_ipv6(const char *host, struct in6_addr *address) {
    char text[INET6_ADDRSTRLEN];
    size_t size = strcspn(host, "%");
    snprintf(text, sizeof text, "%.*s", (int)size, host);
    inet_pton(AF_INET6, text, address);
    return host + size;
}

bool mj__host_same(const char *a, const char *b) {
    if (!strchr(a, ':') || !strchr(b, ':')) {
        return strcasecmp(a, b) == 0;
    }
    struct in6_addr a_address = {0}, b_address = {0};
    const char *a_zone = parse_ipv6(a, &a_address);
    const char *b_zone = parse_ipv6(b, &b_address);
    return memcmp(&a_address, &b_address, sizeof a_address) == 0 && strcmp(a_zone, b_zone) == 0;
}
