/* wire_meta.c: the meta protocol: "mg key v O....\r\n" and "VA 3 O....\r\n". */
#include "wire.h"

#include <string.h>

/* ---- replies ---------------------------------------------------------------------------- */

struct code_word {
    char word[2];
    enum mj__code code;
};

static bool code_of(const char *line, enum mj__code *code) {
    static const struct code_word words[] = {{"HD", MJ__HD}, {"EN", MJ__EN}, {"NF", MJ__NF},
                                             {"NS", MJ__NS}, {"EX", MJ__EX}, {"MN", MJ__MN},
                                             {"ME", MJ__ME}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (memcmp(line, words[i].word, 2) == 0) {
            *code = words[i].code;
            return true;
        }
    }
    return false;
}

/* Notes the flags that the connection itself must know; the rest stays text. */
static void read_flags(struct mj__reply *reply) {
    const char *at = reply->text, *end = at + reply->text_size;
    size_t size;
    for (const char *token; (token = mj__next_token(&at, end, &size)) != NULL;) {
        switch (token[0]) {
        case 'O':
            reply->opaque = token + 1;
            reply->opaque_size = size - 1;
            break;
        case 'k':
            reply->key = token + 1;
            reply->key_size = size - 1;
            break;
        case 'W':
            reply->marks |= MJ__WON;
            break;
        case 'X':
            reply->marks |= MJ__STALE;
            break;
        case 'Z':
            reply->marks |= MJ__TAKEN;
            break;
        case 'b':
            reply->marks |= MJ__KEY_ENCODED;
            break;
        default:
            break;
        }
    }
}

/* "VA <size> <flags>*": text is set to the flags. */
static bool read_value_size(struct mj__reply *reply) {
    const char *at = reply->text, *end = at + reply->text_size;
    size_t size;
    const char *token = mj__next_token(&at, end, &size);
    if (token == NULL || !mj__parse_number(token, size, &reply->value_size)) {
        return false;
    }
    reply->has_value = true;
    reply->text = at;
    reply->text_size = (size_t)(end - at);
    return true;
}

/* " O0000\r\n": a token of ours and nothing else. Eight bytes at once. */
static bool is_own_tail(const char *at) {
    static const char form[8] = " O\0\0\0\0\r\n", fixed[8] = "\xff\xff\0\0\0\0\xff\xff";
    uint64_t word, want, mask;
    uint32_t token;
    memcpy(&word, at, 8);
    memcpy(&want, form, 8);
    memcpy(&mask, fixed, 8);
    memcpy(&token, at + 2, 4);
    /* No byte of it is a blank, below, or above 127. */
    bool plain = ((token | (token - 0x21212121u)) & 0x80808080u) == 0;
    return (word & mask) == want && plain;
}

/* Nearly every reply is "HD O0000" or "VA 100 O0000": a code, a size, a token of ours. This takes
 * that form alone, at a third of the cost; 0: it is another, or not whole, and the rest of this
 * file knows. */
static int parse_plain(const char *bytes, size_t size, struct mj__reply *reply) {
    enum { TAIL = 8, DIGITS_MAX = 9 };
    const char *at = bytes + 2, *end = bytes + size;
    bool value = bytes[0] == 'V' && bytes[1] == 'A' && *at == ' ';
    uint64_t number = 0;
    if (value) {
        const char *digits = ++at, *stop = end - at > DIGITS_MAX ? at + DIGITS_MAX : end;
        for (; at < stop && (unsigned char)(*at - '0') <= 9; at++) {
            number = number * 10 + (unsigned char)(*at - '0');
        }
        if (at == digits) {
            return 0;
        }
    } else if (!(bytes[0] == 'H' && bytes[1] == 'D') && !(bytes[0] == 'E' && bytes[1] == 'N')) {
        return 0;
    }
    if (end - at < TAIL || !is_own_tail(at)) {
        return 0;
    }
    *reply = (struct mj__reply){.code = value             ? MJ__VA
                                        : bytes[0] == 'H' ? MJ__HD
                                                          : MJ__EN,
                                .has_value = value,
                                .value_size = number,
                                .opaque = at + 2,
                                .opaque_size = MJ__OPAQUE_SIZE,
                                .text = at,
                                .text_size = TAIL - 2};
    return (int)(at - bytes) + TAIL;
}

_Static_assert(MJ__OPAQUE_SIZE == 4, "is_own_tail looks at a token of four bytes");

/* "ME <key> <words>*", and these are no flags: "exp=-1", and the key may begin so. */
static bool read_me_key(struct mj__reply *reply) {
    const char *at = reply->text;
    reply->key = mj__next_token(&at, at + reply->text_size, &reply->key_size);
    return reply->key != NULL;
}

int mj__meta_parse(const char *bytes, size_t size, struct mj__reply *reply) {
    int length = size > 2 ? parse_plain(bytes, size, reply) : 0;
    if (length > 0) {
        return length;
    }
    length = mj__line_length(bytes, size);
    if (length <= 0) {
        return length;
    }
    size_t line = (size_t)length - 2;
    memset(reply, 0, sizeof *reply);
    if (line > 2 && bytes[2] != ' ') {
        return mj__error_line(bytes, line, reply) ? length : -1;
    }
    if (line < 2) {
        return -1;
    }
    reply->text = bytes + 2;
    reply->text_size = line - 2;
    if (bytes[0] == 'V' && bytes[1] == 'A') {
        reply->code = MJ__VA;
        if (!read_value_size(reply)) {
            return -1;
        }
    } else if (!code_of(bytes, &reply->code)) {
        return -1;
    }
    if (reply->code == MJ__ME) {
        return read_me_key(reply) ? length : -1;
    }
    read_flags(reply);
    return length;
}

/* ---- requests --------------------------------------------------------------------------- */

static char *put(char *out, const char *bytes, size_t size) {
    memcpy(out, bytes, size);
    return out + size;
}

/* A flag with a number: " T60". */
static char *put_number(char *out, char letter, uint64_t number) {
    *out++ = ' ';
    *out++ = letter;
    return out + mj__write_number(out, number);
}

static char *put_ttl(char *out, char letter, int64_t ttl) {
    if (ttl >= 0) {
        return put_number(out, letter, (uint64_t)ttl);
    }
    *out++ = ' ';
    *out++ = letter;
    return put(out, "-1", 2);
}

static char *put_base64(char *out, const char *bytes, size_t size) {
    static const char letters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *in = (const unsigned char *)bytes;
    for (; size >= 3; size -= 3, in += 3) {
        *out++ = letters[in[0] >> 2];
        *out++ = letters[(in[0] & 3) << 4 | in[1] >> 4];
        *out++ = letters[(in[1] & 15) << 2 | in[2] >> 6];
        *out++ = letters[in[2] & 63];
    }
    if (size > 0) {
        *out++ = letters[in[0] >> 2];
        *out++ = letters[(in[0] & 3) << 4 | (size == 2 ? in[1] >> 4 : 0)];
        *out++ = size == 2 ? letters[(in[1] & 15) << 2] : '=';
        *out++ = '=';
    }
    return out;
}

bool mj__base64_is(const char *text, size_t text_size, const char *bytes, size_t size) {
    char encoded[4 * ((MJ__KEY_MAX + 2) / 3)];
    return size <= MJ__KEY_MAX && text_size == 4 * ((size + 2) / 3) &&
           (size_t)(put_base64(encoded, bytes, size) - encoded) == text_size &&
           memcmp(encoded, text, text_size) == 0;
}

/* "mg key", or "mg a2V5" with the b flag that says so. */
static char *put_key(char *out, const char *word, const struct mj__call *call, bool *encoded) {
    out = put(out, word, 2);
    *out++ = ' ';
    *encoded = call->key_encoded;
    return *encoded ? put_base64(out, call->key, call->key_size)
                    : put(out, call->key, call->key_size);
}

static char *put_read(char *out, const struct mj__call *call) {
    bool encoded;
    out = put_key(out, "mg", call, &encoded);
    if (encoded) {
        out = put(out, " b", 2);
    }
    out = put(out, " v", 2);
    if (call->given & (MJ__WITH_TTL | MJ__WITH_TOUCH)) {
        out = put_ttl(out, 'T', call->ttl); /* first: a t behind it tells the new ttl */
    }
    return call->id == MJ__ITEM ? put(out, " f c t s h l", 12) : out;
}

static char *put_store(char *out, const struct mj__call *call) {
    char mode = mj__command(call->id)->mode;
    bool encoded;
    out = put_key(out, "ms", call, &encoded);
    *out++ = ' ';
    out += mj__write_number(out, call->value_size);
    if (encoded) {
        out = put(out, " b", 2);
    }
    if (mode != 0) {
        out = put(out, " M", 2);
        *out++ = mode;
    }
    if (call->given & MJ__WITH_TTL) {
        out = put_ttl(out, 'T', call->ttl);
    }
    if (call->given & MJ__WITH_FLAGS) {
        out = put_number(out, 'F', call->flags);
    }
    if (call->given & MJ__WITH_CAS) {
        out = put_number(out, 'C', call->cas);
    }
    return out;
}

static char *put_count(char *out, const struct mj__call *call) {
    bool encoded;
    out = put_key(out, "ma", call, &encoded);
    if (encoded) {
        out = put(out, " b", 2);
    }
    if (mj__command(call->id)->mode == 'D') {
        out = put(out, " MD", 3);
    }
    out = put_number(out, 'D', call->delta);
    if (call->given & MJ__WITH_INITIAL) {
        out = put_number(out, 'J', call->initial);
        out = put_ttl(out, 'N', call->given & MJ__WITH_TTL ? call->ttl : 0);
    }
    return put(out, " v", 2);
}

/* meta: the script's own key and flags, to the letter. */
static char *put_meta(char *out, const struct mj__call *call) {
    out = put(out, call->meta, 2);
    if (call->key_size > 0) {
        *out++ = ' ';
        out = put(out, call->key, call->key_size);
    }
    if (call->given & MJ__WITH_VALUE) {
        *out++ = ' ';
        out += mj__write_number(out, call->value_size);
    }
    if (call->text_size > 0) {
        *out++ = ' ';
        out = put(out, call->text, call->text_size);
    }
    return out;
}

static char *put_line(char *out, const struct mj__call *call) {
    bool encoded;
    switch (mj__command(call->id)->verb) {
    case MJ__VERB_READ:
        return put_read(out, call);
    case MJ__VERB_STORE:
        return put_store(out, call);
    case MJ__VERB_COUNT:
        return put_count(out, call);
    case MJ__VERB_REMOVE:
        out = put_key(out, "md", call, &encoded);
        return encoded ? put(out, " b", 2) : out;
    case MJ__VERB_TOUCH:
        out = put_key(out, "mg", call, &encoded);
        if (encoded) {
            out = put(out, " b", 2);
        }
        return put_ttl(out, 'T', call->ttl);
    case MJ__VERB_META:
        return put_meta(out, call);
    default:
        return put(out, "mn", 2);
    }
}

size_t mj__meta_encode(char *out, const struct mj__call *call, const char *opaque) {
    char *at = put_line(out, call);
    if (call->given & MJ__WITH_QUIET && call->id != MJ__META_COMMAND) {
        at = put(at, " q", 2);
    }
    if (opaque != NULL) {
        at = put(at, " O", 2);
        at = put(at, opaque, MJ__OPAQUE_SIZE);
    }
    at = put(at, "\r\n", 2);
    return (size_t)(at - out);
}
