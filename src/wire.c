/* wire.c: what both protocols share: lines, numbers, error lines. */
#include "wire.h"

#include <string.h>

int mj__line_length(const char *bytes, size_t size) {
    size_t seen = size < MJ__LINE_MAX ? size : MJ__LINE_MAX;
    const char *end = memchr(bytes, '\n', seen);
    if (end == NULL) {
        return size >= MJ__LINE_MAX ? -1 : 0;
    }
    if (end == bytes || end[-1] != '\r') {
        return -1;
    }
    return (int)(end - bytes) + 1;
}

bool mj__parse_number(const char *bytes, size_t size, uint64_t *number) {
    if (size == 0 || size > 20) {
        return false;
    }
    uint64_t sum = 0;
    size_t safe = size < 20 ? size : 19; /* 19 digits cannot overflow */
    for (size_t i = 0; i < safe; i++) {
        unsigned digit = (unsigned)(unsigned char)bytes[i] - '0';
        if (digit > 9) {
            return false;
        }
        sum = sum * 10 + digit;
    }
    if (size == 20) {
        unsigned digit = (unsigned)(unsigned char)bytes[19] - '0';
        if (digit > 9 || sum > (UINT64_MAX - digit) / 10) {
            return false;
        }
        sum = sum * 10 + digit;
    }
    *number = sum;
    return true;
}

size_t mj__write_number(char *out, uint64_t number) {
    char digits[20];
    size_t count = 0;
    do {
        digits[count++] = (char)('0' + number % 10);
        number /= 10;
    } while (number > 0);
    for (size_t i = 0; i < count; i++) {
        out[i] = digits[count - 1 - i];
    }
    return count;
}

const char *mj__next_token(const char **text, const char *end, size_t *size) {
    const char *at = *text;
    while (at < end && *at == ' ') {
        at++;
    }
    if (at == end) {
        *text = end;
        return NULL;
    }
    const char *stop = memchr(at, ' ', (size_t)(end - at));
    *text = stop != NULL ? stop : end;
    *size = (size_t)(*text - at);
    return at;
}

static bool begins(const char *line, size_t size, const char *word, size_t word_size) {
    return size >= word_size && memcmp(line, word, word_size) == 0 &&
           (size == word_size || line[word_size] == ' ' || line[word_size] == ':');
}

static bool error_words(const char *line, size_t size, const char *word, enum mj__code code,
                        struct mj__reply *reply) {
    size_t word_size = strlen(word);
    if (!begins(line, size, word, word_size)) {
        return false;
    }
    size_t skip = word_size;
    while (skip < size && (line[skip] == ' ' || line[skip] == ':')) {
        skip++;
    }
    reply->code = code;
    reply->text = line + skip;
    reply->text_size = size - skip;
    return true;
}

bool mj__error_line(const char *line, size_t size, struct mj__reply *reply) {
    if (error_words(line, size, "SERVER_ERROR", MJ__SAYS_SERVER_ERROR, reply) ||
        error_words(line, size, "CLIENT_ERROR", MJ__SAYS_CLIENT_ERROR, reply)) {
        return true;
    }
    if (!error_words(line, size, "ERROR", MJ__SAYS_ERROR, reply)) {
        return false;
    }
    /* The greeting of a server at its connection limit is no judgement on any command. */
    static const char full[] = "Too many open connections";
    if (reply->text_size >= sizeof full - 1 &&
        memcmp(reply->text, full, sizeof full - 1) == 0) {
        reply->code = MJ__SAYS_SERVER_ERROR;
    }
    return true;
}
