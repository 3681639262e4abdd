#include "spell.h"
#include "url_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the table -------------------------------------------------------------------------- */

enum { MIB = 1024 * 1024, GIB = 1024 * 1024 * 1024 };

#define SECONDS(n) ((uint64_t)(n) * (uint64_t)MJ__SECOND)
#define SPAN_MIN ((uint64_t)1000) /* 1us: a turn of the loop takes longer */
#define SPAN_MAX SECONDS(31536000)

static const char *const flag_words[] = {"false", "true", NULL};
static const char *const protocol_words[] = {"auto", "meta", "ascii", "binary", NULL};
static const char *const verify_mode_words[] = {"peer", "none", NULL};

static const char any_size[] = "a size from 1 to 1g: bytes, or with k, m, g (1024) after it";
static const char any_span[] = "a number with us, ms, s or m after it (bare: seconds), such as "
                               "250ms or 1.5s, from 1us to a year";

#define OPTION(field, kind, tls) #field, kind, offsetof(struct mj__options, field), tls
#define FLAG(field, value) \
    { OPTION(field, MJ__FLAG, false), value, 0, 1, "true or false", flag_words }
#define COUNT(field, value, max) \
    { OPTION(field, MJ__COUNT, false), value, 1, max, "a whole number from 1 to " #max, NULL }
#define SIZE(field, value) \
    { OPTION(field, MJ__SIZE, false), value, 1, GIB, any_size, NULL }
#define SPAN(field, value) \
    { OPTION(field, MJ__SPAN, false), value, SPAN_MIN, SPAN_MAX, any_span, NULL }
#define TLS_TEXT(field, accepted) \
    { OPTION(field, MJ__TEXT, true), 0, 0, 0, accepted, NULL }

const struct mj__option mj__options_table[] = {
    FLAG(tcp_nodelay, true),
    FLAG(direct_read, true),
    {OPTION(protocol, MJ__WORD, false), MJ__AUTO, 0, MJ__BINARY, "auto, meta, ascii or binary",
     protocol_words},
    SPAN(timeout, SECONDS(1)),
    SPAN(stall_timeout, 0), /* 0: 3 x timeout, once that is known */
    SPAN(connect_timeout, SECONDS(1)),
    COUNT(connections, 1, 65535),
    COUNT(max_inflight, 65536, 16777216),
    SIZE(max_value, 64 * MIB),
    FLAG(verify, true),
    FLAG(binary_keys, false),
    {OPTION(tcp_keepalive, MJ__SPAN_OR_OFF, false), SECONDS(60), SECONDS(1), SECONDS(32767),
     "false, or a number with s or m after it (bare: seconds) from 1s to 32767s", NULL},
    SIZE(send_buffer, 0), /* 0: the system's own */
    SIZE(receive_buffer, 0),
    COUNT(weight, 1, 1000),
    {OPTION(verify_mode, MJ__WORD, true), MJ__PEER, 0, MJ__NO_PEER, "peer or none",
     verify_mode_words},
    TLS_TEXT(ca_path, "the path of a file or folder"),
    TLS_TEXT(cert_path, "the path of a file"),
    TLS_TEXT(key_path, "the path of a file"),
    {OPTION(server_name, MJ__NAME, true), 0, 0, 0, "the name of a host", NULL},
};

_Static_assert(sizeof(enum mj__protocol) == sizeof(unsigned) &&
                   sizeof(enum mj__verify_mode) == sizeof(unsigned),
               "a word is stored as unsigned");

enum { OPTIONS = sizeof mj__options_table / sizeof mj__options_table[0] };

const size_t mj__options_count = OPTIONS;

static void set_number(struct mj__options *options, const struct mj__option *option,
                       uint64_t value) {
    void *field = (char *)options + option->offset;
    switch (option->kind) {
    case MJ__FLAG:
        *(bool *)field = value != 0;
        break;
    case MJ__WORD:
        *(unsigned *)field = (unsigned)value;
        break;
    case MJ__COUNT:
        *(uint32_t *)field = (uint32_t)value;
        break;
    case MJ__SIZE:
        *(uint64_t *)field = value;
        break;
    case MJ__SPAN:
    case MJ__SPAN_OR_OFF:
        *(mj__time *)field = (mj__time)value;
        break;
    case MJ__TEXT:
    case MJ__NAME:
        break;
    }
}

static bool is_text(const struct mj__option *option) {
    return option->kind == MJ__TEXT || option->kind == MJ__NAME;
}

static char **text_field(struct mj__options *options, const struct mj__option *option) {
    return (char **)(void *)((char *)options + option->offset);
}

/* ---- values ----------------------------------------------------------------------------- */

/* Splits a value into the digits and points that it begins with, and the unit that follows. */
static void split_unit(struct mj__part text, struct mj__part *number, struct mj__part *unit) {
    size_t size = 0;
    while (size < text.size && strchr("0123456789.", text.at[size])) {
        size++;
    }
    *number = (struct mj__part){text.at, size};
    *unit = (struct mj__part){text.at + size, text.size - size};
}

struct unit {
    const char *name;
    uint64_t worth;
};

/* The worth of a unit; 0 for an unknown one. */
static uint64_t unit_worth(const struct unit *units, size_t count, struct mj__part name) {
    for (size_t i = 0; i < count; i++) {
        if (mj__part_is(name, units[i].name)) {
            return units[i].worth;
        }
    }
    return 0;
}

static bool read_size(struct mj__part text, uint64_t max, uint64_t *size) {
    static const struct unit units[] = {{"", 1}, {"k", 1024}, {"m", MIB}, {"g", GIB}};
    struct mj__part number, name;
    split_unit(text, &number, &name);
    uint64_t worth = unit_worth(units, sizeof units / sizeof units[0], name);
    if (worth == 0 || !mj__part_number(number, max / worth, size)) {
        return false;
    }
    *size *= worth;
    return true;
}

/* Exact, in nanoseconds; what is finer is cut. */
static bool read_span(struct mj__part text, uint64_t max, uint64_t *span) {
    static const struct unit units[] = {
        {"", 1000000000}, {"s", 1000000000}, {"ms", 1000000}, {"us", 1000}, {"m", 60000000000}};
    struct mj__part number, name, whole, fraction;
    split_unit(text, &number, &name);
    uint64_t worth = unit_worth(units, sizeof units / sizeof units[0], name);
    bool point = mj__part_split(number, '.', &whole, &fraction);
    if (worth == 0 || !mj__part_number(whole, max / worth, span) ||
        (point && fraction.size == 0)) {
        return false;
    }
    *span *= worth;
    for (size_t i = 0; i < fraction.size; i++) {
        if (fraction.at[i] == '.') {
            return false;
        }
        worth /= 10;
        *span += (uint64_t)(fraction.at[i] - '0') * worth;
    }
    return true;
}

static bool read_word(struct mj__part text, const char *const *words, uint64_t *number) {
    for (size_t i = 0; words[i]; i++) {
        if (mj__part_is(text, words[i])) {
            *number = i;
            return true;
        }
    }
    return false;
}

/* False: not what the option accepts. */
static bool read_number(const struct mj__option *option, struct mj__part text,
                        uint64_t *number) {
    bool good = false;
    switch (option->kind) {
    case MJ__FLAG:
    case MJ__WORD:
        good = read_word(text, option->words, number);
        break;
    case MJ__COUNT:
        good = mj__part_number(text, option->max, number);
        break;
    case MJ__SIZE:
        good = read_size(text, option->max, number);
        break;
    case MJ__SPAN_OR_OFF:
        if (mj__part_is(text, "false")) {
            *number = 0;
            return true;
        }
        good = read_span(text, option->max, number);
        break;
    case MJ__SPAN:
        good = read_span(text, option->max, number);
        break;
    case MJ__TEXT:
    case MJ__NAME:
        break;
    }
    return good && *number >= option->min && *number <= option->max;
}

static int refuse_value(const struct mj__source *source, const struct mj__option *option,
                        struct mj__part raw, const char *text) {
    char shown[MJ__SHOWN];
    size_t count = 0;
    while (option->words && option->words[count]) {
        count++;
    }
    const char *meant = mj__nearest(text, strlen(text), option->words, count);
    return mj__fail(source->error, MJ__BAD_URL, "%s=%s is not accepted; write %s%s%s%s",
                    option->name, mj__part_show(source, raw, shown), option->accepted,
                    meant ? "; did you mean " : "", meant ? meant : "", meant ? "?" : "");
}

static int read_value(const struct mj__source *source, const struct mj__option *option,
                      struct mj__part raw, struct mj__options *options) {
    uint64_t number = 0;
    char *text = mj__part_decode(source, raw, option->name);
    if (!text) {
        return -1;
    }
    struct mj__part part = {text, strlen(text)};
    if (is_text(option) && part.size > 0 &&
        (option->kind == MJ__TEXT || mj__host_is_name(part))) {
        *text_field(options, option) = text;
        return 0;
    }
    int result = 0;
    if (!is_text(option) && read_number(option, part, &number)) {
        set_number(options, option, number);
    } else {
        result = refuse_value(source, option, raw, text);
    }
    free(text);
    return result;
}

/* ---- names ------------------------------------------------------------------------------ */

/* Writes the names that a URL could have, a blank before each, as many as fit. */
static void list_names(char *out, size_t size, bool tls) {
    static const char more[] = " ...";
    size_t length = 0;
    out[0] = '\0';
    for (size_t i = 0; i < OPTIONS; i++) {
        const char *name = mj__options_table[i].name;
        if (mj__options_table[i].tls && !tls) {
            continue;
        }
        if (length + 1 + strlen(name) + sizeof more > size) {
            snprintf(out + length, size - length, "%s", more);
            return;
        }
        length += (size_t)snprintf(out + length, size - length, " %s", name);
    }
}

/* Names the one that was meant or, failing that, all that this URL could have. */
static int refuse_name(const struct mj__source *source, struct mj__part raw, const char *name,
                       bool tls) {
    const char *names[OPTIONS];
    char known[MJ__ERROR_TEXT];
    char buffer[MJ__SHOWN];
    const char *shown = mj__part_show(source, raw, buffer);
    for (size_t i = 0; i < OPTIONS; i++) {
        names[i] = mj__options_table[i].name;
    }
    const char *meant = mj__nearest(name, strlen(name), names, OPTIONS);
    if (meant) {
        return mj__fail(source->error, MJ__BAD_URL, "unknown option %s; did you mean %s?",
                        shown, meant);
    }
    list_names(known, sizeof known - strlen("unknown option ; there are") - strlen(shown), tls);
    return mj__fail(source->error, MJ__BAD_URL, "unknown option %s; there are%s", shown, known);
}

/* The index of the option that has this name; -1: *error is set. */
static int find_option(const struct mj__source *source, struct mj__part raw, bool tls) {
    char *name = mj__part_decode(source, raw, "the option");
    if (!name) {
        return -1;
    }
    int found = -1;
    for (int i = 0; i < (int)OPTIONS && found < 0; i++) {
        if (strcmp(mj__options_table[i].name, name) == 0) {
            found = i;
        }
    }
    if (found < 0) {
        refuse_name(source, raw, name, tls);
    } else if (mj__options_table[found].tls && !tls) {
        found = mj__fail(source->error, MJ__BAD_URL,
                         "%s says how to use TLS, and this URL does without: write "
                         "memcache+tls://, or leave it out",
                         name);
    }
    free(name);
    return found;
}

/* ---- the query -------------------------------------------------------------------------- */

static void set_defaults(struct mj__options *options) {
    memset(options, 0, sizeof *options);
    for (size_t i = 0; i < OPTIONS; i++) {
        set_number(options, &mj__options_table[i], mj__options_table[i].initial);
    }
}

static int read_pair(const struct mj__source *source, struct mj__part pair, bool tls,
                     bool seen[OPTIONS], struct mj__options *options) {
    char shown[MJ__SHOWN];
    struct mj__part name, value;
    if (pair.size == 0) {
        return mj__fail(
            source->error, MJ__BAD_URL,
            "an option is missing: after ? come name=value pairs with & between them");
    }
    bool paired = mj__part_split(pair, '=', &name, &value);
    int index = find_option(source, name, tls);
    if (index < 0) {
        return -1;
    }
    if (!paired) {
        return mj__fail(source->error, MJ__BAD_URL, "the option %s lacks its value; write %s",
                        mj__part_show(source, pair, shown), mj__options_table[index].accepted);
    }
    if (seen[index]) {
        return mj__fail(source->error, MJ__BAD_URL, "the option %s is given twice",
                        mj__options_table[index].name);
    }
    seen[index] = true;
    return read_value(source, &mj__options_table[index], value, options);
}

int mj__options_read(const struct mj__source *source, struct mj__part query, bool has_query,
                     bool tls, struct mj__options *options) {
    bool seen[OPTIONS] = {false};
    set_defaults(options);
    while (has_query) {
        struct mj__part pair;
        has_query = mj__part_split(query, '&', &pair, &query);
        if (read_pair(source, pair, tls, seen, options) != 0) {
            return -1;
        }
    }
    if (options->stall_timeout == 0) {
        options->stall_timeout = 3 * options->timeout;
    }
    return 0;
}

/* ---- copies ----------------------------------------------------------------------------- */

int mj__options_copy(struct mj__options *to, const struct mj__options *from) {
    int result = 0;
    *to = *from;
    for (size_t i = 0; i < OPTIONS; i++) {
        const struct mj__option *option = &mj__options_table[i];
        if (is_text(option) && *text_field(to, option)) {
            char *copy = result == 0 ? strdup(*text_field(to, option)) : NULL;
            result = copy ? result : -1;
            *text_field(to, option) = copy;
        }
    }
    if (result != 0) {
        mj__options_free(to);
    }
    return result;
}

void mj__options_free(struct mj__options *options) {
    for (size_t i = 0; i < OPTIONS; i++) {
        if (is_text(&mj__options_table[i])) {
            free(*text_field(options, &mj__options_table[i]));
            *text_field(options, &mj__options_table[i]) = NULL;
        }
    }
}
