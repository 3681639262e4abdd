#include "spell.h"

#include <stdbool.h>
#include <string.h>

enum {
    WORD_MAX = 64,     /* longer words are nobody's slip */
    SLIPS_MAX = 3,     /* more edits than these make another word */
    WHOLE_PART_MIN = 4 /* shorter words are part of too much */
};

static char small_letter(char c) {
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

static bool same(char a, char b) {
    return small_letter(a) == small_letter(b);
}

static size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

/* Optimal string alignment: insert, delete, replace, swap of neighbours. Both sizes are at most
 * WORD_MAX. Three rows of the usual matrix are enough, since a swap looks two rows back. */
static size_t distance(const char *a, size_t a_size, const char *b, size_t b_size) {
    size_t rows[3][WORD_MAX + 1];
    for (size_t j = 0; j <= b_size; j++) {
        rows[0][j] = j;
    }
    for (size_t i = 1; i <= a_size; i++) {
        size_t *row = rows[i % 3];
        const size_t *above = rows[(i + 2) % 3];
        const size_t *above2 = rows[(i + 1) % 3];
        row[0] = i;
        for (size_t j = 1; j <= b_size; j++) {
            size_t cost = same(a[i - 1], b[j - 1]) ? 0 : 1;
            row[j] = least(least(above[j] + 1, row[j - 1] + 1), above[j - 1] + cost);
            if (i > 1 && j > 1 && same(a[i - 1], b[j - 2]) && same(a[i - 2], b[j - 1])) {
                row[j] = least(row[j], above2[j - 2] + 1);
            }
        }
    }
    return rows[a_size % 3][b_size];
}

static bool holds(const char *name, const char *word, size_t size) {
    for (size_t length = strlen(name); length >= size; length--, name++) {
        size_t i = 0;
        while (i < size && same(name[i], word[i])) {
            i++;
        }
        if (i == size) {
            return true;
        }
    }
    return false;
}

static const char *only_holder(const char *word, size_t size, const char *const *names,
                               size_t count) {
    const char *found = NULL;
    for (size_t i = 0; i < count; i++) {
        if (holds(names[i], word, size)) {
            if (found) {
                return NULL;
            }
            found = names[i];
        }
    }
    return found;
}

const char *mj__nearest(const char *word, size_t size, const char *const *names, size_t count) {
    if (size == 0 || size > WORD_MAX) {
        return NULL;
    }
    const char *best = NULL;
    size_t limit = least(size < 3 ? 1 : size / 3, SLIPS_MAX);
    for (size_t i = 0; i < count; i++) {
        size_t length = strlen(names[i]);
        if (length > WORD_MAX) {
            continue;
        }
        size_t apart = distance(word, size, names[i], length);
        if (apart <= limit && (!best || apart < limit)) {
            best = names[i];
            limit = apart;
        }
    }
    if (!best && size >= WHOLE_PART_MIN) {
        best = only_holder(word, size, names, count);
    }
    return best;
}
