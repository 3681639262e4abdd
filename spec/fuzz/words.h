/* words.h: a line's words, split at blanks. */
#ifndef WORDS_H
#define WORDS_H

#include "fuzz.h"

struct word {
    const char *at;
    size_t size;
};

/* The next word from *at on. False: there is none. */
bool word_next(const char **at, const char *end, struct word *);
bool word_is(struct word, const char *text);
/* Its digits as a number. False: something else, or more than 64 bits. */
bool word_number(struct word, uint64_t *number);

#endif
