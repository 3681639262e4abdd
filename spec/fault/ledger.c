#include "ledger.h"

#include <stdlib.h>
#include <string.h>

enum {
    LEDGERS = 64,         /* sockets of one round */
    LEDGER_SIZE = 1 << 20 /* more than any of them sends */
};

static struct {
    int fd;
    size_t size;
} ledgers[LEDGERS];
static char texts[LEDGERS][LEDGER_SIZE];
static int opened;

void ledger_clear(void) {
    opened = 0;
}

void ledger_open(int fd) {
    if (opened < LEDGERS) {
        ledgers[opened].fd = fd;
        ledgers[opened].size = 0;
        opened++;
    }
}

int ledger_of(int fd) {
    for (int i = opened - 1; i >= 0; i--) {
        if (ledgers[i].fd == fd) {
            return i;
        }
    }
    return -1;
}

void ledger_add(int fd, const struct iovec *parts, size_t size) {
    int ledger = ledger_of(fd);
    for (; ledger >= 0 && size > 0; parts++) {
        size_t part = parts->iov_len < size ? parts->iov_len : size;
        size_t room = LEDGER_SIZE - ledgers[ledger].size;
        size_t kept = part < room ? part : room;
        memcpy(texts[ledger] + ledgers[ledger].size, parts->iov_base, kept);
        ledgers[ledger].size += kept;
        size -= part;
    }
}

/* ---- requests ---- */

static bool begins(const char *line, const char *word) {
    return strncmp(line, word, strlen(word)) == 0;
}

/* A line of the connection's own. */
static bool is_own(const char *line) {
    return begins(line, "mn\r\n") || begins(line, "version\r\n") || begins(line, "set login ");
}

/* What may still become one. */
static bool may_be_own(const char *line, size_t size) {
    static const char *const own[] = {"mn\r\n", "version\r\n", "set login "};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        size_t length = strlen(own[i]);
        if (strncmp(line, own[i], size < length ? size : length) == 0) {
            return true;
        }
    }
    return false;
}

/* The bytes of the data block behind a line, with its end; 0: it has none. */
static size_t block_behind(const char *line) {
    static const struct {
        const char *word;
        int blanks; /* before the block's size */
    } blocks[] = {{"ms ", 2}, {"set ", 4}, {"add ", 4}};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) {
        if (begins(line, blocks[i].word)) {
            for (int blank = 0; blank < blocks[i].blanks; blank++) {
                line = strchr(line, ' ') + 1;
            }
            return strtoul(line, NULL, 10) + 2;
        }
    }
    return 0;
}

struct ledger_count ledger_count(int ledger) {
    struct ledger_count count = {0, 0, false};
    if (ledger < 0) {
        return count;
    }
    const char *at = texts[ledger], *end = at + ledgers[ledger].size;
    while (at < end) {
        size_t left = (size_t)(end - at);
        const char *line_end = memmem(at, left, "\r\n", 2);
        if (line_end == NULL) {
            count.doubtful = may_be_own(at, left);
            count.begun += !count.doubtful;
            break;
        }
        bool own = is_own(at);
        size_t size = (size_t)(line_end + 2 - at) + block_behind(at);
        count.begun += !own;
        count.whole += !own && size <= left;
        at += size <= left ? size : left;
    }
    return count;
}
