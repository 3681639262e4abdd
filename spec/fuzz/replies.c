#include "replies.h"

#include <stdlib.h>
#include <string.h>

enum {
    SMALL = 64,         /* a value up to this size waits behind its line */
    VALUE_MAX = 1 << 20 /* a larger one ends the stream */
};

struct reader {
    replies_parse *parse;
    replies_judge *judge;
    struct text waiting, log;
    struct text large; /* a large value and its CRLF, as far as they have come */
    struct text line;  /* what is to be noted of it */
    size_t large_size; /* of the value; 0: there is none */
    bool over;         /* something was malformed */
};

static bool inside(const char *part, size_t size, const char *bytes, size_t line) {
    return part == NULL || (part >= bytes && part + size <= bytes + line);
}

static void note(struct text *log, const struct mj__reply *reply, int length) {
    text_print(log, "%d code=%d value=%d:%llu marks=%d cas=%d:%llu flags=%u ", length,
               (int)reply->code, reply->has_value, (unsigned long long)reply->value_size,
               reply->marks, reply->has_cas, (unsigned long long)reply->cas, reply->flags);
    text_quote(log, reply->key, reply->key_size);
    text_quote(log, reply->opaque, reply->opaque_size);
    text_quote(log, reply->text, reply->text_size);
}

/* Parses what waits, from a block of exactly its size, where the sanitizer sees a read past it. */
static int parse(struct reader *reader, struct mj__reply *reply, char **block) {
    size_t size = reader->waiting.size;
    *block = malloc(size);
    HOLDS(*block != NULL);
    memcpy(*block, reader->waiting.bytes, size);
    memset(reply, 0xa5, sizeof *reply);
    int length = reader->parse(*block, size, reply);
    HOLDS(length >= -1 && length <= MJ__LINE_MAX && (length < 0 || (size_t)length <= size));
    if (length > 0) {
        size_t line = (size_t)length - 2;
        HOLDS(length >= 2 && memcmp(*block + line, "\r\n", 2) == 0);
        HOLDS(inside(reply->key, reply->key_size, *block, line));
        HOLDS(inside(reply->opaque, reply->opaque_size, *block, line));
        HOLDS(inside(reply->text, reply->text_size, *block, line));
        HOLDS(reply->has_value == (reply->code == MJ__VA));
        reader->judge(*block, line, reply);
    }
    return length;
}

static void end(struct reader *reader, const char *why) {
    text_print(&reader->log, "%s", why);
    reader->over = true;
}

/* What has come of a value's CRLF is right. */
static bool ends_well(const char *value, size_t have, size_t size) {
    size_t come = have <= size ? 0 : have - size < 2 ? have - size : 2;
    return come == 0 || memcmp(value + size, "\r\n", come) == 0;
}

/* The value behind a line of this length. False: more must come. */
static bool take_value(struct reader *reader, const struct mj__reply *reply, int length) {
    struct text *waiting = &reader->waiting;
    if (reply->value_size > VALUE_MAX) {
        end(reader, "too large");
        return false;
    }
    size_t size = (size_t)reply->value_size, have = waiting->size - (size_t)length;
    if (!ends_well(waiting->bytes + length, have, size)) {
        end(reader, "bad end");
        return false;
    }
    if (have >= size + 2) {
        note(&reader->log, reply, length);
        text_quote(&reader->log, waiting->bytes + length, size);
        text_drop(waiting, (size_t)length + size + 2);
        return true;
    }
    if (size <= SMALL) {
        return false;
    }
    note(&reader->line, reply, length);
    text_drop(waiting, (size_t)length);
    reader->large_size = size;
    return true;
}

/* A line, and what comes with it. False: more must come, or it is over. */
static bool take_reply(struct reader *reader) {
    struct mj__reply reply;
    char *block;
    int length = parse(reader, &reply, &block);
    bool more = false;
    if (length < 0) {
        end(reader, "malformed");
    } else if (length > 0 && reply.has_value) {
        more = take_value(reader, &reply, length);
    } else if (length > 0) {
        note(&reader->log, &reply, length);
        text_drop(&reader->waiting, (size_t)length);
        more = true;
    }
    free(block);
    return more;
}

/* Bytes of a large value. False: more must come, or it is over. */
static bool take_large(struct reader *reader) {
    struct text *waiting = &reader->waiting, *large = &reader->large;
    size_t left = reader->large_size + 2 - large->size;
    size_t count = waiting->size < left ? waiting->size : left;
    text_add(large, waiting->bytes, count);
    text_drop(waiting, count);
    if (!ends_well(large->bytes, large->size, reader->large_size)) {
        end(reader, "bad end");
        return false;
    }
    if (count < left) {
        return false;
    }
    text_add(&reader->log, reader->line.bytes, reader->line.size);
    text_quote(&reader->log, large->bytes, reader->large_size);
    text_clear(&reader->line);
    text_clear(large);
    reader->large_size = 0;
    return true;
}

static void feed(struct reader *reader, const uint8_t *bytes, size_t size) {
    text_add(&reader->waiting, bytes, size);
    while (!reader->over && reader->waiting.size > 0 &&
           (reader->large_size > 0 ? take_large(reader) : take_reply(reader))) {
    }
}

static void read_all(struct reader *reader, enum cut cut, const uint8_t *data, size_t size) {
    struct knife knife = knife_for(cut, data, size);
    for (size_t at = 0; at < size && !reader->over;) {
        size_t count = knife_next(&knife, size - at);
        feed(reader, data + at, count);
        at += count;
    }
}

void replies_check(replies_parse *parser, replies_judge *judge, const uint8_t *data,
                   size_t size) {
    struct text first = {0};
    for (int cut = WHOLE; cut < CUTS; cut++) {
        struct reader reader = {.parse = parser, .judge = judge};
        read_all(&reader, (enum cut)cut, data, size);
        if (cut == WHOLE) {
            first = reader.log;
            reader.log = (struct text){0};
        } else {
            text_agree("the replies are the same for every cut", &first, &reader.log);
        }
        text_free(&reader.log);
        text_free(&reader.waiting);
        text_free(&reader.large);
        text_free(&reader.line);
    }
    text_free(&first);
}

void judge_error(const char *line, size_t size, const struct mj__reply *reply) {
    static const struct {
        const char *word;
        enum mj__code code;
    } words[] = {{"ERROR", MJ__SAYS_ERROR},
                 {"CLIENT_ERROR", MJ__SAYS_CLIENT_ERROR},
                 {"SERVER_ERROR", MJ__SAYS_SERVER_ERROR}};
    const char *end = line + size, *at = line;
    while (at < end && *at != ' ' && *at != ':') {
        at++;
    }
    struct word first = {line, (size_t)(at - line)};
    while (at < end && (*at == ' ' || *at == ':')) {
        at++;
    }
    HOLDS(reply->text == at && reply->text_size == (size_t)(end - at));
    bool full = (size_t)(end - at) >= 25 && memcmp(at, "Too many open connections", 25) == 0;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (word_is(first, words[i].word)) {
            HOLDS(reply->code == words[i].code ||
                  (i == 0 && full && reply->code == MJ__SAYS_SERVER_ERROR));
            HOLDS(reply->key == NULL && reply->opaque == NULL && reply->marks == 0);
            return;
        }
    }
    HOLDS(!"an error line begins with ERROR, CLIENT_ERROR or SERVER_ERROR");
}
