/* control.c: what the proxy is told, one line at a time; each is answered by one line.
 *
 *   route NAME FROM TO      listen at FROM for TO, each tcp:PORT or unix:PATH; tcp:0: a free
 *                           port. ok PORT
 *   set NAME K=V ...        accept=forward|mute|reset|refuse, delay_up, delay_down and gap
 *                           (microseconds), piece_up, piece_down (bytes; 0: as they come),
 *                           cut_up, cut_down (bytes; new links; -1: never), ending=close|reset
 *                           (how a cut link ends), lie=none|flip|older|other|stored, lies (how
 *                           many)
 *   do NAME WHAT WHICH [US] reset, close, half_up, half_down, stall (for US), cut_value_up,
 *                           cut_value_down; all, one (any) or newest of the links. ok COUNT
 *   links NAME              ok COUNT
 *   counters                ok NAME=COUNT ... */
#include "proxy.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

static void fail(const char *what, const char *detail) {
    printf("error %s %s\n", what, detail ? detail : "");
}

static struct route *find(struct proxy *proxy, const char *name) {
    for (struct route *route = proxy->routes; route; route = route->next) {
        if (name && strcmp(route->name, name) == 0)
            return route;
    }
    return NULL;
}

static bool parse(const char *text, int64_t *value) {
    char *end;
    *value = strtoll(text, &end, 10);
    return end != text && *end == '\0';
}

/* The place of a word in a list that NULL ends, or -1. */
static int place(const char *const *words, const char *word) {
    for (int i = 0; words[i]; i++) {
        if (strcmp(words[i], word) == 0)
            return i;
    }
    return -1;
}

/* ---- route ---- */

static void make_route(struct proxy *proxy, char **save) {
    const char *name = strtok_r(NULL, " ", save);
    const char *from = strtok_r(NULL, " ", save), *to = strtok_r(NULL, " ", save);
    if (!to || strlen(name) >= NAME_SIZE || find(proxy, name)) {
        fail("route wants a new name and two addresses", name);
        return;
    }
    struct route *route = calloc(1, sizeof *route);
    if (!route || !address_parse(&route->from, from) || !address_parse(&route->to, to)) {
        free(route);
        fail("bad address", from);
        return;
    }
    memcpy(route->name, name, strlen(name) + 1);
    route->listener = -1;
    route->cut[UP] = route->cut[DOWN] = -1;
    const char *why = route_listen(proxy, route);
    if (why) {
        free(route);
        fail(from, why);
        return;
    }
    route->next = proxy->routes;
    proxy->routes = route;
    printf("ok %d\n", address_port(&route->from));
}

/* ---- set ---- */

static const char *set_mode(struct proxy *proxy, struct route *route, const char *value) {
    static const char *const modes[] = {"forward", "mute", "reset", "refuse", NULL};
    int mode = place(modes, value);
    if (mode < 0)
        return "no such mode";
    route->mode = (enum accept_mode)mode;
    if (route->mode != ACCEPT_REFUSE)
        return route_listen(proxy, route);
    if (route->listener >= 0)
        proxy->counters.refusals++;
    route_refuse(route);
    return NULL;
}

static const char *set_words(struct route *route, const char *key, const char *value) {
    static const char *const endings[] = {"close", "reset", NULL};
    static const char *const lies[] = {"none", "flip", "older", "other", "stored", NULL};
    bool ending = strcmp(key, "ending") == 0;
    int at = place(ending ? endings : lies, value);
    if (at < 0)
        return "no such word";
    if (ending) {
        route->ending = (enum ending)at;
    } else {
        route->lie = (enum lie)at;
    }
    return NULL;
}

static const char *set_number(struct route *route, const char *key, const char *value) {
    int64_t number;
    if (!parse(value, &number))
        return "not a number";
    static const char *const names[] = {"delay_up",   "delay_down", "piece_up",
                                        "piece_down", "cut_up",     "cut_down",
                                        "gap",        "lies",       NULL};
    int at = place(names, key);
    int direction = at & 1;
    switch (at) {
    case 0:
    case 1:
        route->delay[direction] = (uint64_t)number;
        return NULL;
    case 2:
    case 3:
        route->piece[direction] = (size_t)number;
        return NULL;
    case 4:
    case 5:
        route->cut[direction] = number;
        return NULL;
    case 6:
        route->gap = (uint64_t)number;
        return NULL;
    case 7:
        route->lies = (uint64_t)number;
        return NULL;
    default:
        return "no such setting";
    }
}

static void set(struct proxy *proxy, char **save) {
    struct route *route = find(proxy, strtok_r(NULL, " ", save));
    if (!route) {
        fail("no such route", NULL);
        return;
    }
    for (char *pair; (pair = strtok_r(NULL, " ", save)) != NULL;) {
        char *value = strchr(pair, '=');
        const char *why = "a value is wanted";
        if (value) {
            *value++ = '\0';
            if (strcmp(pair, "accept") == 0) {
                why = set_mode(proxy, route, value);
            } else if (strcmp(pair, "ending") == 0 || strcmp(pair, "lie") == 0) {
                why = set_words(route, pair, value);
            } else {
                why = set_number(route, pair, value);
            }
        }
        if (why) {
            fail(pair, why);
            return;
        }
    }
    printf("ok\n");
}

/* ---- do ---- */

enum deed { RESET, CLOSE, HALF_UP, HALF_DOWN, STALL, CUT_VALUE_UP, CUT_VALUE_DOWN };

static void half(struct proxy *proxy, struct link *link, enum direction direction) {
    struct flow *flow = &link->flows[direction];
    if (flow->shut || flow->to < 0)
        return;
    flow->shut = true;
    flow->start = flow->end = 0; /* what waited here is lost */
    flow->mark_count = 0;
    shutdown(flow->to, SHUT_WR);
    proxy->counters.halves++;
}

static void perform(struct proxy *proxy, struct link *link, enum deed deed, uint64_t span) {
    switch (deed) {
    case RESET:
        proxy->counters.resets++;
        link_end(link, END_RESET);
        break;
    case CLOSE:
        proxy->counters.closes++;
        link_end(link, END_CLOSE);
        break;
    case HALF_UP:
    case HALF_DOWN:
        half(proxy, link, deed == HALF_UP ? UP : DOWN);
        break;
    case STALL:
        proxy->counters.stalls++;
        link->stalled = proxy->now + span;
        break;
    case CUT_VALUE_UP:
    case CUT_VALUE_DOWN:
        link->flows[deed == CUT_VALUE_UP ? UP : DOWN].scan.armed = true;
        break;
    }
}

static uint64_t count_links(const struct proxy *proxy, const struct route *route) {
    uint64_t count = 0;
    for (const struct link *link = proxy->links; link; link = link->next) {
        count += link->route == route && !link->dead;
    }
    return count;
}

static void act(struct proxy *proxy, char **save) {
    static const char *const deeds[] = {"reset", "close",        "half_up",        "half_down",
                                        "stall", "cut_value_up", "cut_value_down", NULL};
    static const char *const choices[] = {"all", "one", "newest", NULL};
    struct route *route = find(proxy, strtok_r(NULL, " ", save));
    const char *what = strtok_r(NULL, " ", save), *which = strtok_r(NULL, " ", save);
    const char *span_text = strtok_r(NULL, " ", save);
    int64_t span = 0;
    int deed = what ? place(deeds, what) : -1, choice = which ? place(choices, which) : -1;
    if (!route || deed < 0 || choice < 0 || (span_text && !parse(span_text, &span))) {
        fail("do wants a route, a deed and a choice", what);
        return;
    }
    uint64_t live = count_links(proxy, route), at = 0, done = 0;
    uint64_t chosen = choice == 1 && live > 0 ? random_below(proxy, live) : 0;
    for (struct link *link = proxy->links; link; link = link->next) {
        if (link->route != route || link->dead)
            continue;
        if (choice == 0 || at == chosen) {
            perform(proxy, link, (enum deed)deed, (uint64_t)span);
            done++;
        }
        at++;
    }
    printf("ok %" PRIu64 "\n", done);
}

/* ---- the rest ---- */

static void print_counters(const struct proxy *proxy) {
    const struct counters *c = &proxy->counters;
    const struct {
        const char *name;
        uint64_t count;
    } all[] = {
        {"accepted", c->accepted},
        {"refusals", c->refusals},
        {"muted", c->muted},
        {"resets", c->resets},
        {"closes", c->closes},
        {"halves", c->halves},
        {"stalls", c->stalls},
        {"cut_values_up", c->cut_values_up},
        {"cut_values_down", c->cut_values_down},
        {"cut_counted", c->cut_counted},
        {"delayed", c->delayed},
        {"pieces", c->pieces},
        {"lies", c->lies},
        {"bytes_up", c->bytes_up},
        {"bytes_down", c->bytes_down},
    };
    fputs("ok", stdout);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        printf(" %s=%" PRIu64, all[i].name, all[i].count);
    }
    putchar('\n');
}

void control_line(struct proxy *proxy, char *line) {
    char *save = NULL;
    const char *word = strtok_r(line, " ", &save);
    if (word && strcmp(word, "route") == 0) {
        make_route(proxy, &save);
    } else if (word && strcmp(word, "set") == 0) {
        set(proxy, &save);
    } else if (word && strcmp(word, "do") == 0) {
        act(proxy, &save);
    } else if (word && strcmp(word, "links") == 0) {
        const struct route *route = find(proxy, strtok_r(NULL, " ", &save));
        printf("ok %" PRIu64 "\n", count_links(proxy, route));
    } else if (word && strcmp(word, "counters") == 0) {
        print_counters(proxy);
    } else {
        fail("no such command", word);
    }
    fflush(stdout);
}
