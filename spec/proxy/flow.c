/* flow.c: one direction of a link. What is read waits here for its delay and its turn. */
#include "proxy.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

bool flow_open(struct flow *flow, int from, int to) {
    *flow = (struct flow){.from = from, .to = to, .cut_at = UINT64_MAX};
    flow->scan.hold = UINT64_MAX;
    flow->room = malloc(FLOW_ROOM);
    return flow->room != NULL;
}

bool flow_has_room(const struct flow *flow) {
    return !flow->eof && flow->end - flow->start < FLOW_ROOM && flow->mark_count < FLOW_MARKS;
}

static uint64_t read_upto(const struct flow *flow) {
    return flow->written + (flow->end - flow->start);
}

/* Bytes from this offset on go out `delay` later, and never before those ahead of them. */
static void mark(struct proxy *proxy, struct flow *flow, uint64_t from, uint64_t delay) {
    uint64_t due = proxy->now + delay;
    if (delay > 0)
        proxy->counters.delayed++;
    if (flow->mark_count > 0) {
        size_t last = (flow->first_mark + flow->mark_count - 1) % FLOW_MARKS;
        if (due <= flow->marks[last].due + MARK_SPAN)
            return; /* goes with that one */
    } else if (delay == 0) {
        return;
    }
    flow->marks[(flow->first_mark + flow->mark_count++) % FLOW_MARKS] =
        (struct mark){.from = from, .due = due};
}

bool flow_read(struct proxy *proxy, struct link *link, enum direction direction) {
    struct flow *flow = &link->flows[direction];
    if (flow->start > 0) {
        memmove(flow->room, flow->room + flow->start, flow->end - flow->start);
        flow->end -= flow->start;
        flow->start = 0;
    }
    ssize_t count = recv(flow->from, flow->room + flow->end, FLOW_ROOM - flow->end, 0);
    if (count < 0)
        return errno == EAGAIN || errno == EINTR;
    if (count == 0) {
        flow->eof = true;
        flow->scan.hold = UINT64_MAX; /* what it waited for will not come */
        return true;
    }
    *(direction == UP ? &proxy->counters.bytes_up : &proxy->counters.bytes_down) +=
        (uint64_t)count;
    if (link->mute || flow->shut)
        return true; /* read and dropped */
    uint64_t from = read_upto(flow);
    flow->end += (size_t)count;
    scan_look(proxy, link, direction);
    mark(proxy, flow, from, link->route->delay[direction]);
    return true;
}

/* How many bytes may go now; *wake is when more may. */
static size_t allowed(struct proxy *proxy, struct flow *flow, uint64_t *wake) {
    uint64_t upto = read_upto(flow);
    while (flow->mark_count > 0 && flow->marks[flow->first_mark].due <= proxy->now) {
        flow->first_mark = (flow->first_mark + 1) % FLOW_MARKS;
        flow->mark_count--;
    }
    if (flow->mark_count > 0) {
        const struct mark *first = &flow->marks[flow->first_mark];
        if (first->from < upto)
            upto = first->from;
        if (first->due < *wake)
            *wake = first->due;
    }
    if (flow->scan.hold < upto)
        upto = flow->scan.hold;
    if (flow->cut_at < upto)
        upto = flow->cut_at;
    return upto > flow->written ? (size_t)(upto - flow->written) : 0;
}

/* The end that was ordered for this offset has come. */
static bool cut(struct proxy *proxy, struct link *link, enum direction direction) {
    if (!link->flows[direction].cut_in_value) {
        proxy->counters.cut_counted++;
    } else if (direction == UP) {
        proxy->counters.cut_values_up++;
    } else {
        proxy->counters.cut_values_down++;
    }
    link_end(link, link->route->ending);
    return false;
}

/* Writes once. False: the receiver is gone. */
static bool write_some(struct flow *flow, size_t size) {
    ssize_t count = send(flow->to, flow->room + flow->start, size, MSG_NOSIGNAL);
    flow->blocked = count < (ssize_t)size;
    if (count < 0)
        return errno == EAGAIN || errno == EINTR;
    flow->start += (size_t)count;
    flow->written += (uint64_t)count;
    if (flow->start == flow->end)
        flow->start = flow->end = 0;
    return true;
}

bool flow_write(struct proxy *proxy, struct link *link, enum direction direction,
                uint64_t *wake) {
    struct flow *flow = &link->flows[direction];
    size_t piece = link->route->piece[direction], size = allowed(proxy, flow, wake);
    if (size > 0 && piece > 0) {
        if (flow->next_piece > proxy->now) {
            if (flow->next_piece < *wake)
                *wake = flow->next_piece;
            return true;
        }
        if (size > piece)
            size = piece;
        flow->next_piece = proxy->now + link->route->gap;
        proxy->counters.pieces++;
    }
    if (size > 0) {
        if (!write_some(flow, size))
            return false;
        if (piece > 0 && !flow->blocked && flow->next_piece < *wake)
            *wake = flow->next_piece;
    }
    if (flow->written >= flow->cut_at)
        return cut(proxy, link, direction);
    if (flow->eof && !flow->shut && flow->start == flow->end) {
        flow->shut = true;
        shutdown(flow->to, SHUT_WR);
    }
    return !(link->flows[UP].shut && link->flows[DOWN].shut);
}
