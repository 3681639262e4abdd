#include "url_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *mj__part_show(const struct mj__source *source, struct mj__part part,
                          char out[MJ__SHOWN]) {
    const struct mj__part *secret = &source->secret;
    if (secret->size > 0 && part.at < secret->at + secret->size &&
        part.at + part.size > secret->at) {
        return "(not shown; a password holds no raw @ / ? #)";
    }
    char text[64];
    snprintf(out, MJ__SHOWN, "\"%s\"", mj__printable(text, sizeof text, part.at, part.size));
    return out;
}

bool mj__part_split(struct mj__part part, char mark, struct mj__part *head,
                    struct mj__part *tail) {
    const char *end = part.at + part.size;
    const char *found = part.size > 0 ? memchr(part.at, mark, part.size) : NULL;
    *head = (struct mj__part){part.at, found ? (size_t)(found - part.at) : part.size};
    *tail = found ? (struct mj__part){found + 1, (size_t)(end - found - 1)}
                  : (struct mj__part){end, 0};
    return found != NULL;
}

bool mj__part_is(struct mj__part part, const char *word) {
    return part.size == strlen(word) && memcmp(part.at, word, part.size) == 0;
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    if (c >= 'a' && c <= 'f') {
        return c - 'a' + 10;
    }
    if (c >= 'A' && c <= 'F') {
        return c - 'A' + 10;
    }
    return -1;
}

/* The byte at part[i], decoded, and i moved past it. -1: a broken percent code. */
static int next_byte(struct mj__part part, size_t *i) {
    char c = part.at[*i];
    if (c != '%') {
        *i += 1;
        return (unsigned char)c;
    }
    if (part.size - *i < 3) {
        return -1;
    }
    int high = hex_digit(part.at[*i + 1]);
    int low = hex_digit(part.at[*i + 2]);
    *i += 3;
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

char *mj__part_decode(const struct mj__source *source, struct mj__part part, const char *what) {
    char shown[MJ__SHOWN];
    char *text = malloc(part.size + 1);
    if (!text) {
        mj__source_no_memory(source);
        return NULL;
    }
    size_t length = 0;
    for (size_t i = 0; i < part.size;) {
        int byte = next_byte(part, &i);
        if (byte < 0) {
            mj__fail(source->error, MJ__BAD_URL,
                     "%s %s holds a %% without two hex digits; a %% itself is written %%25",
                     what, mj__part_show(source, part, shown));
            free(text);
            return NULL;
        }
        if (byte == '\r' || byte == '\n' || byte == '\0') {
            mj__fail(source->error, MJ__BAD_URL, "%s %s holds a %s, which is accepted nowhere",
                     what, mj__part_show(source, part, shown),
                     byte == '\0' ? "NUL" : "line break");
            free(text);
            return NULL;
        }
        text[length++] = (char)byte;
    }
    text[length] = '\0';
    return text;
}

bool mj__part_number(struct mj__part part, uint64_t max, uint64_t *number) {
    uint64_t value = 0;
    for (size_t i = 0; i < part.size; i++) {
        unsigned digit = (unsigned)(unsigned char)part.at[i] - '0';
        if (digit > 9 || value > (UINT64_MAX - digit) / 10) {
            return false;
        }
        value = value * 10 + digit;
    }
    *number = value;
    return part.size > 0 && value <= max;
}

int mj__source_no_memory(const struct mj__source *source) {
    return mj__fail(source->error, MJ__NO_MEMORY, "out of memory while reading a URL");
}
