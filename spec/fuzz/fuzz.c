#include "fuzz.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void fuzz_failed(const char *file, int line, const char *what) {
    fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, what);
    abort();
}

/* ---- text ------------------------------------------------------------------------------- */

static void reserve(struct text *text, size_t more) {
    if (text->room - text->size >= more) {
        return;
    }
    text->room = 2 * text->room + more;
    text->bytes = realloc(text->bytes, text->room);
    HOLDS(text->bytes != NULL);
}

void text_add(struct text *text, const void *bytes, size_t size) {
    if (size > 0) {
        reserve(text, size);
        memcpy(text->bytes + text->size, bytes, size);
        text->size += size;
    }
}

void text_print(struct text *text, const char *format, ...) {
    char words[512];
    va_list args;
    va_start(args, format);
    int size = vsnprintf(words, sizeof words, format, args);
    va_end(args);
    HOLDS(size >= 0 && (size_t)size < sizeof words);
    text_add(text, words, (size_t)size);
}

void text_quote(struct text *text, const void *bytes, size_t size) {
    if (bytes == NULL) {
        text_print(text, "none ");
        return;
    }
    text_print(text, "%zu:", size);
    text_add(text, bytes, size);
    text_add(text, " ", 1);
}

void text_drop(struct text *text, size_t size) {
    text->size -= size;
    if (text->size > 0) {
        memmove(text->bytes, text->bytes + size, text->size);
    }
}

void text_clear(struct text *text) {
    text->size = 0;
}

void text_free(struct text *text) {
    free(text->bytes);
    *text = (struct text){0};
}

const char *text_bytes(const struct text *text) {
    return text->bytes != NULL ? text->bytes : "";
}

bool text_same(const struct text *a, const struct text *b) {
    return a->size == b->size && (a->size == 0 || memcmp(a->bytes, b->bytes, a->size) == 0);
}

static void show(const struct text *text) {
    for (size_t i = 0; i < text->size; i++) {
        unsigned char byte = (unsigned char)text->bytes[i];
        fprintf(stderr, (byte >= ' ' && byte <= '~') || byte == '\n' ? "%c" : "\\x%02x", byte);
    }
    fprintf(stderr, "\n");
}

void text_agree(const char *what, const struct text *a, const struct text *b) {
    if (!text_same(a, b)) {
        show(a);
        show(b);
        fuzz_failed(__FILE__, __LINE__, what);
    }
}

/* ---- cuts ------------------------------------------------------------------------------- */

struct knife knife_for(enum cut cut, const uint8_t *data, size_t size) {
    uint64_t state = UINT64_C(0xcbf29ce484222325) + cut;
    for (size_t i = 0; i < size; i++) {
        state = (state ^ data[i]) * UINT64_C(0x100000001b3);
    }
    return (struct knife){cut, state};
}

static uint64_t roll(struct knife *knife, uint64_t sides) {
    knife->state = knife->state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (knife->state >> 33) % sides;
}

size_t knife_next(struct knife *knife, size_t left) {
    size_t size = left;
    switch (knife->cut) {
    case BYTES:
        return 1;
    case CRUMBS:
        size = 1 + (size_t)roll(knife, 16);
        break;
    case CHUNKS:
        size = 1 + (size_t)roll(knife, left);
        break;
    default:
        break;
    }
    return size < left ? size : left;
}
