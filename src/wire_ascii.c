/* wire_ascii.c: the classic text protocol: "get key\r\n" and "VALUE key 0 3\r\n". */
#include "wire.h"

#include <string.h>

/* ---- replies ---------------------------------------------------------------------------- */

struct status_word {
    const char *word;
    enum mj__code code;
};

static bool status(const char *line, size_t size, struct mj__reply *reply) {
    static const struct status_word words[] = {
        {"END", MJ__EN},           {"STORED", MJ__HD},
        {"NOT_STORED", MJ__NS},    {"EXISTS", MJ__EX},
        {"NOT_FOUND", MJ__NF},     {"DELETED", MJ__HD},
        {"TOUCHED", MJ__HD},       {"OK", MJ__HD},
        {"RESET", MJ__RESET_LINE}, {"VERSION", MJ__VERSION_LINE}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (size == strlen(words[i].word) && memcmp(line, words[i].word, size) == 0) {
            reply->code = words[i].code;
            reply->text = line;
            reply->text_size = words[i].code == MJ__VERSION_LINE ? 0 : size;
            return true;
        }
    }
    return false;
}

/* "VALUE key flags size[ cas]" behind its first word. */
static bool value_line(const char *at, const char *end, struct mj__reply *reply) {
    uint64_t flags;
    size_t size;
    reply->code = MJ__VA;
    reply->has_value = true;
    reply->key = mj__next_token(&at, end, &reply->key_size);
    const char *token = mj__next_token(&at, end, &size);
    if (token == NULL || !mj__parse_number(token, size, &flags) || flags > UINT32_MAX) {
        return false;
    }
    reply->flags = (uint32_t)flags;
    token = mj__next_token(&at, end, &size);
    if (token == NULL || !mj__parse_number(token, size, &reply->value_size)) {
        return false;
    }
    token = mj__next_token(&at, end, &size);
    if (token == NULL) {
        return true;
    }
    reply->has_cas = mj__parse_number(token, size, &reply->cas);
    return reply->has_cas && mj__next_token(&at, end, &size) == NULL;
}

/* "STAT name value": the value may hold blanks or be empty. */
static bool stat_line(const char *at, const char *end, struct mj__reply *reply) {
    reply->code = MJ__STAT;
    reply->key = mj__next_token(&at, end, &reply->key_size);
    if (reply->key == NULL) {
        return false;
    }
    reply->text = at < end ? at + 1 : end;
    reply->text_size = (size_t)(end - reply->text);
    return true;
}

static bool begins(const char *line, size_t size, const char *word) {
    size_t word_size = strlen(word);
    return size >= word_size && memcmp(line, word, word_size) == 0;
}

/* decr pads a shorter number with blanks in the store, but the reply is digits alone. */
static bool number_line(const char *line, size_t size, struct mj__reply *reply) {
    uint64_t number;
    if (!mj__parse_number(line, size, &number)) {
        return false;
    }
    reply->code = MJ__NUMBER;
    reply->text = line;
    reply->text_size = size;
    return true;
}

/* The form that nearly every reply to a read has; its key and its numbers are no longer than this.
 */
enum { DIGITS_MAX = 9, PLAIN_MAX = 6 + MJ__KEY_MAX + 2 * (1 + DIGITS_MAX) + 2 };

/* A blank and a number: what is behind them; NULL: they are not there. */
static const char *plain_number(const char *at, const char *end, uint32_t *number) {
    if (at == end || *at++ != ' ') {
        return NULL;
    }
    const char *digits = at, *stop = end - at > DIGITS_MAX ? at + DIGITS_MAX : end;
    uint32_t sum = 0;
    for (unsigned digit; at < stop && (digit = (unsigned char)*at - (unsigned)'0') <= 9; at++) {
        sum = sum * 10 + digit;
    }
    *number = sum;
    return at > digits ? at : NULL;
}

/* Takes "VALUE key flags size" alone, in one pass; 0: it is another line, or not whole, and the
 * rest of this file knows. A multi-get is answered by a thousand of these. */
static int parse_plain(const char *bytes, size_t size, struct mj__reply *reply) {
    uint32_t flags, value_size;
    if (!begins(bytes, size, "VALUE ")) {
        return 0;
    }
    const char *key = bytes + 6, *at = key;
    const char *end = bytes + (size < PLAIN_MAX ? size : PLAIN_MAX);
    while (at < end && (unsigned char)*at > ' ') {
        at++;
    }
    size_t key_size = (size_t)(at - key);
    if (key_size == 0 || (at = plain_number(at, end, &flags)) == NULL ||
        (at = plain_number(at, end, &value_size)) == NULL || end - at < 2 || at[0] != '\r' ||
        at[1] != '\n') {
        return 0;
    }
    *reply = (struct mj__reply){
        .code = MJ__VA,
        .has_value = true,
        .value_size = value_size,
        .key = key,
        .key_size = key_size,
        .flags = flags,
    };
    return (int)(at - bytes) + 2;
}

int mj__ascii_parse(const char *bytes, size_t size, struct mj__reply *reply) {
    int length = parse_plain(bytes, size, reply);
    if (length > 0) {
        return length;
    }
    length = mj__line_length(bytes, size);
    if (length <= 0) {
        return length;
    }
    size_t line = (size_t)length - 2;
    const char *end = bytes + line;
    memset(reply, 0, sizeof *reply);
    bool known;
    if (begins(bytes, line, "VALUE ")) {
        known = value_line(bytes + 6, end, reply);
    } else if (begins(bytes, line, "STAT ")) {
        known = stat_line(bytes + 5, end, reply);
    } else if (begins(bytes, line, "VERSION ")) {
        known = true;
        reply->code = MJ__VERSION_LINE;
        reply->text = bytes + 8;
        reply->text_size = line - 8;
    } else {
        known = status(bytes, line, reply) || number_line(bytes, line, reply) ||
                mj__error_line(bytes, line, reply);
    }
    return known ? length : -1;
}

/* ---- requests --------------------------------------------------------------------------- */

static char *put(char *out, const char *bytes, size_t size) {
    memcpy(out, bytes, size);
    return out + size;
}

static char *put_word(char *out, const char *word) {
    return put(out, word, strlen(word));
}

static char *put_number(char *out, uint64_t number) {
    *out++ = ' ';
    return out + mj__write_number(out, number);
}

static char *put_ttl(char *out, int64_t ttl) {
    return ttl >= 0 ? put_number(out, (uint64_t)ttl) : put_word(out, " -1");
}

static char *put_key(char *out, const struct mj__call *call) {
    *out++ = ' ';
    return put(out, call->key, call->key_size);
}

/* get, gat and item: the words are get, gat, gets and gats. */
static char *put_read(char *out, const struct mj__call *call) {
    bool touch = (call->given & (MJ__WITH_TTL | MJ__WITH_TOUCH)) != 0;
    out = put_word(out, touch ? "gat" : "get");
    if (call->id == MJ__ITEM) {
        *out++ = 's';
    }
    return put_key(touch ? put_ttl(out, call->ttl) : out, call);
}

static char *put_store(char *out, const struct mj__call *call) {
    out = put_key(put_word(out, mj__command(call->id)->ascii), call);
    out = put_number(out, call->given & MJ__WITH_FLAGS ? call->flags : 0);
    out = put_ttl(out, call->given & MJ__WITH_TTL ? call->ttl : 0);
    out = put_number(out, call->value_size);
    return call->id == MJ__CAS ? put_number(out, call->cas) : out;
}

static char *put_plain(char *out, const struct mj__call *call) {
    out = put_word(out, mj__command(call->id)->ascii);
    if (call->given & MJ__WITH_TTL) {
        out = put_ttl(out, call->ttl);
    }
    if (call->text_size > 0) {
        *out++ = ' ';
        out = put(out, call->text, call->text_size);
    }
    return out;
}

static char *put_line(char *out, const struct mj__call *call) {
    const struct mj__command *command = mj__command(call->id);
    switch (command->verb) {
    case MJ__VERB_READ:
        return put_read(out, call);
    case MJ__VERB_STORE:
        return put_store(out, call);
    case MJ__VERB_COUNT:
        return put_number(put_key(put_word(out, command->ascii), call), call->delta);
    case MJ__VERB_REMOVE:
        return put_key(put_word(out, command->ascii), call);
    case MJ__VERB_TOUCH:
        return put_ttl(put_key(put_word(out, command->ascii), call), call->ttl);
    default:
        return put_plain(out, call);
    }
}

size_t mj__ascii_encode(char *out, const struct mj__call *call) {
    char *at = put_line(out, call);
    if (call->given & MJ__WITH_QUIET) {
        at = put_word(at, " noreply");
    }
    at = put(at, "\r\n", 2);
    return (size_t)(at - out);
}
