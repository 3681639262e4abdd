#include "words.h"

#include <string.h>

bool word_next(const char **at, const char *end, struct word *word) {
    while (*at < end && **at == ' ') {
        ++*at;
    }
    word->at = *at;
    while (*at < end && **at != ' ') {
        ++*at;
    }
    word->size = (size_t)(*at - word->at);
    return word->size > 0;
}

bool word_is(struct word word, const char *text) {
    return word.size == strlen(text) && memcmp(word.at, text, word.size) == 0;
}

bool word_number(struct word word, uint64_t *number) {
    uint64_t sum = 0;
    for (size_t i = 0; i < word.size; i++) {
        if (word.at[i] < '0' || word.at[i] > '9' || __builtin_mul_overflow(sum, 10, &sum) ||
            __builtin_add_overflow(sum, (unsigned)(word.at[i] - '0'), &sum)) {
            return false;
        }
    }
    *number = sum;
    return word.size > 0;
}
