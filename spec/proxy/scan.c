/* scan.c: finds the values in a direction's bytes, to cut one in its middle or to lie about it.
 *
 * A reply's value follows "VA <size> ..." or "VALUE <key> <flags> <size> ..."; a request's
 * follows "ms <key> <size> ..." or "set <key> <flags> <ttl> <size> ..." and its kin. All else
 * is lines. */
#include "proxy.h"

#include <stdlib.h>
#include <string.h>

enum { WORDS = 5 };

struct header {
    const char *words[WORDS];
    size_t sizes[WORDS];
    size_t count;
};

static void split(struct header *header, const char *line, size_t size) {
    header->count = 0;
    size_t at = 0;
    while (header->count < WORDS) {
        while (at < size && (line[at] == ' ' || line[at] == '\r'))
            at++;
        if (at == size)
            return;
        size_t from = at;
        while (at < size && line[at] != ' ' && line[at] != '\r')
            at++;
        header->words[header->count] = line + from;
        header->sizes[header->count++] = at - from;
    }
}

static bool is(const struct header *header, size_t at, const char *word) {
    return at < header->count && header->sizes[at] == strlen(word) &&
           memcmp(header->words[at], word, header->sizes[at]) == 0;
}

/* The number that word is, or -1. */
static int64_t number(const struct header *header, size_t at) {
    if (at >= header->count || header->sizes[at] > 10)
        return -1;
    int64_t value = 0;
    for (size_t i = 0; i < header->sizes[at]; i++) {
        char digit = header->words[at][i];
        if (digit < '0' || digit > '9')
            return -1;
        value = value * 10 + (digit - '0');
    }
    return value;
}

/* The size of the value that follows this line, or -1. */
static int64_t value_size(const char *line, size_t size, enum direction direction) {
    struct header header;
    split(&header, line, size);
    if (direction == DOWN) {
        if (is(&header, 0, "VA"))
            return number(&header, 1);
        return is(&header, 0, "VALUE") ? number(&header, 3) : -1;
    }
    if (is(&header, 0, "ms"))
        return number(&header, 2);
    static const char *const storing[] = {"set", "add", "replace", "append", "prepend", "cas"};
    for (size_t i = 0; i < sizeof storing / sizeof *storing; i++) {
        if (is(&header, 0, storing[i]))
            return number(&header, 4);
    }
    return -1;
}

/* ---- lies ---- */

/* A value's name is what stands before its first blank. */
static size_t name_of(const char *value, size_t size, char name[NAME_SIZE]) {
    size_t length = 0;
    while (length < size && length < NAME_SIZE - 1 && value[length] != ' ')
        length++;
    memcpy(name, value, length);
    name[length] = '\0';
    return length;
}

static void remember(struct route *route, const char *value, size_t size) {
    struct memory *memory = &route->memories[route->next_memory];
    route->next_memory = (route->next_memory + 1) % SCAN_REMEMBERED;
    free(memory->bytes);
    memory->bytes = malloc(size);
    memory->size = memory->bytes ? size : 0;
    if (!memory->bytes)
        return;
    memcpy(memory->bytes, value, size);
    name_of(value, size, memory->name);
}

/* A value that went by, of this size and of the same name or another; NULL if none did. */
static const struct memory *recall(const struct route *route, const char *value, size_t size,
                                   bool same) {
    char name[NAME_SIZE];
    name_of(value, size, name);
    for (size_t i = 0; i < SCAN_REMEMBERED; i++) {
        const struct memory *memory = &route->memories[i];
        if (memory->bytes && memory->size == size &&
            (strcmp(memory->name, name) == 0) == same &&
            memcmp(memory->bytes, value, size) != 0) {
            return memory;
        }
    }
    return NULL;
}

static bool lie_about(struct proxy *proxy, struct route *route, char *value, size_t size) {
    if (route->lie == LIE_FLIP) {
        value[random_below(proxy, size)] ^= 1;
        return true;
    }
    if (route->lie != LIE_OLDER && route->lie != LIE_OTHER)
        return false;
    const struct memory *memory = recall(route, value, size, route->lie == LIE_OLDER);
    if (memory)
        memcpy(value, memory->bytes, size);
    return memory != NULL;
}

static void told(struct proxy *proxy, struct route *route) {
    proxy->counters.lies++;
    route->lies--;
}

/* The value is whole, and none of it is written yet. */
static void value_came(struct proxy *proxy, struct route *route, char *value, size_t size) {
    if (route->lies == 0 || size == 0)
        return;
    char *truth = malloc(size);
    if (!truth)
        return;
    memcpy(truth, value, size);
    if (lie_about(proxy, route, value, size))
        told(proxy, route);
    remember(route, truth, size);
    free(truth);
}

/* "Not stored" becomes "stored", where the words have the same length. */
static void line_came(struct proxy *proxy, struct route *route, char *line, size_t size) {
    if (route->lie != LIE_STORED || route->lies == 0)
        return;
    if (size >= 2 && (memcmp(line, "NS", 2) == 0 || memcmp(line, "EX", 2) == 0) &&
        (size == 2 || line[2] == ' ' || line[2] == '\r')) {
        memcpy(line, "HD", 2);
    } else if (size >= 6 && memcmp(line, "EXISTS", 6) == 0) {
        memcpy(line, "STORED", 6);
    } else {
        return;
    }
    told(proxy, route);
}

void scan_forget(struct route *route) {
    for (size_t i = 0; i < SCAN_REMEMBERED; i++) {
        free(route->memories[i].bytes);
        route->memories[i].bytes = NULL;
    }
}

/* ---- the walk ---- */

/* A value of this size begins at `at`. */
static void value_begins(struct proxy *proxy, struct link *link, enum direction direction,
                         uint64_t at, uint64_t size) {
    struct flow *flow = &link->flows[direction];
    flow->scan.block_end = at + size + 2;
    if (flow->scan.armed && size >= 2) {
        flow->scan.armed = false;
        flow->cut_in_value = true;
        flow->cut_at = at + 1 + random_below(proxy, size - 1);
    }
    if (direction == DOWN && link->route->lies > 0 && size > 0 && size <= SCAN_HELD) {
        flow->scan.hold = at;
    }
}

/* Takes the bytes of the present value. False: more of it has to come. */
static bool skip_value(struct proxy *proxy, struct link *link, struct flow *flow,
                       uint64_t upto) {
    struct scan *scan = &flow->scan;
    if (scan->block_end > upto) {
        scan->done = upto;
        return false;
    }
    if (scan->hold != UINT64_MAX) {
        char *value = flow->room + flow->start + (scan->hold - flow->written);
        value_came(proxy, link->route, value, (size_t)(scan->block_end - 2 - scan->hold));
        scan->hold = UINT64_MAX;
    }
    scan->done = scan->line = scan->block_end;
    scan->block_end = 0;
    return true;
}

/* Takes a line. False: its end has to come. */
static bool take_line(struct proxy *proxy, struct link *link, enum direction direction,
                      uint64_t upto) {
    struct flow *flow = &link->flows[direction];
    struct scan *scan = &flow->scan;
    char *bytes = flow->room + flow->start;
    char *from = bytes + (scan->done - flow->written);
    char *newline = memchr(from, '\n', (size_t)(upto - scan->done));
    scan->hold = newline ? UINT64_MAX : scan->line; /* a header must not go before it is read */
    if (!newline) {
        scan->done = upto;
        if (upto - scan->line > SCAN_LINE) {
            scan->blind = true;
            scan->hold = UINT64_MAX;
        }
        return false;
    }
    char *line = bytes + (scan->line - flow->written);
    uint64_t end = flow->written + (uint64_t)(newline + 1 - bytes);
    size_t size = (size_t)(newline - line);
    if (direction == DOWN)
        line_came(proxy, link->route, line, size);
    int64_t value = value_size(line, size, direction);
    scan->done = scan->line = end;
    if (value >= 0)
        value_begins(proxy, link, direction, end, (uint64_t)value);
    return true;
}

void scan_look(struct proxy *proxy, struct link *link, enum direction direction) {
    struct flow *flow = &link->flows[direction];
    uint64_t upto = flow->written + (flow->end - flow->start);
    while (!flow->scan.blind && flow->scan.done < upto) {
        bool more = flow->scan.block_end ? skip_value(proxy, link, flow, upto)
                                         : take_line(proxy, link, direction, upto);
        if (!more)
            return;
    }
}
