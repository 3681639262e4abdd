#include "server.h"

#include <string.h>

/* ---- requests --------------------------------------------------------------------------- */

static bool word_among(struct word word, const char *const *names) {
    while (*names != NULL && !word_is(word, *names)) {
        names++;
    }
    return *names != NULL;
}

/* One blank between words and none around them, and nothing that a server might take for the end
 * of a line or of a key. */
static void check_line(struct word line) {
    HOLDS(line.size > 0 && *line.at != ' ' && line.at[line.size - 1] != ' ');
    for (size_t i = 0; i < line.size; i++) {
        unsigned char byte = (unsigned char)line.at[i];
        HOLDS(byte >= ' ' && byte != 0x7f);
        HOLDS(byte != ' ' || line.at[i + 1] != ' ');
    }
}

static void check_number(struct word word) {
    uint64_t number;
    HOLDS(word_number(word, &number));
}

static void check_time(struct word word) {
    HOLDS(word_is(word, "-1") || (word.size <= 10 && *word.at != '-'));
    if (*word.at != '-') {
        check_number(word);
    }
}

/* What is said behind the words of a classic command: the optional noreply. */
static void check_end(const struct asked *asked, size_t count) {
    HOLDS(asked->count == count ||
          (asked->count == count + 1 && word_is(asked->words[count], "noreply")));
}

static void check_classic(const struct asked *asked) {
    static const char *const stores[] = {"set", "add", "replace", "append", "prepend", NULL};
    static const char *const counts[] = {"incr", "decr", NULL};
    static const char *const gets[] = {"get", "gets", NULL}, *const gats[] = {"gat", "gats",
                                                                              NULL};
    const struct word *words = asked->words;
    if (word_among(*words, stores) || word_is(*words, "cas")) {
        bool cas = word_is(*words, "cas");
        check_end(asked, cas ? 6 : 5);
        check_number(words[2]);
        check_time(words[3]);
        check_number(words[4]);
        check_number(words[cas ? 5 : 4]);
    } else if (word_among(*words, counts)) {
        check_end(asked, 3);
        check_number(words[2]);
    } else if (word_is(*words, "delete")) {
        check_end(asked, 2);
    } else if (word_is(*words, "touch")) {
        check_end(asked, 3);
        check_time(words[2]);
    } else if (word_among(*words, gats)) {
        HOLDS(asked->count > 2);
        check_time(words[1]);
    } else if (word_is(*words, "flush_all")) {
        HOLDS(asked->count <= 2);
    } else if (word_is(*words, "stats")) {
        HOLDS(asked->count <= 2);
    } else {
        HOLDS(word_among(*words, gets) ? asked->count > 1
                                       : word_is(*words, "version") && asked->count == 1);
    }
}

/* The size of its block; false: it has none. */
static bool block_size(const struct asked *asked, uint64_t *size) {
    static const char *const stores[] = {"set",     "add", "replace", "append",
                                         "prepend", "cas", NULL};
    size_t at = word_is(*asked->words, "ms") ? 2 : word_among(*asked->words, stores) ? 4 : 0;
    HOLDS(at == 0 || (asked->count > at && word_number(asked->words[at], size)));
    return at > 0;
}

size_t server_read(const char *bytes, size_t size, struct asked *asked) {
    static const char *const metas[] = {"mg", "ms", "md", "ma", "me", "mn", NULL};
    const char *end = size > 0 ? memchr(bytes, '\n', size) : NULL;
    uint64_t block;
    if (end == NULL) {
        return 0;
    }
    HOLDS(end > bytes && end[-1] == '\r');
    memset(asked, 0, sizeof *asked);
    asked->line = (struct word){bytes, (size_t)(end - bytes) - 1};
    check_line(asked->line);
    struct word word = {0};
    for (const char *at = bytes; word_next(&at, end - 1, &word); asked->count++) {
        if (asked->count < ASKED_WORDS) {
            asked->words[asked->count] = word;
        }
    }
    asked->meta = word_among(*asked->words, metas);
    if (!asked->meta) {
        check_classic(asked);
    }
    size_t length = asked->line.size + 2;
    if (!block_size(asked, &block)) {
        return length;
    }
    if (size - length < block + 2) {
        return 0;
    }
    asked->block = (struct word){bytes + length, (size_t)block};
    HOLDS(memcmp(asked->block.at + block, "\r\n", 2) == 0);
    return length + (size_t)block + 2;
}

/* Where the flags of a meta request begin. */
static size_t first_flag(const struct asked *asked) {
    return word_is(*asked->words, "ms") ? 3 : 2;
}

bool asked_flag(const struct asked *asked, char letter) {
    for (size_t i = first_flag(asked); i < asked->count && i < ASKED_WORDS; i++) {
        if (*asked->words[i].at == letter) {
            return true;
        }
    }
    return false;
}

bool asked_quiet(const struct asked *asked) {
    static const char *const reads[] = {"get", "gets", "gat", "gats", "stats", NULL};
    bool has_key = !word_is(*asked->words, "flush_all");
    return asked->meta ? asked_flag(asked, 'q') && !word_is(*asked->words, "mn") &&
                             !word_is(*asked->words, "me")
                       : asked->count <= ASKED_WORDS && !word_among(*asked->words, reads) &&
                             asked->count > 1 + (size_t)has_key &&
                             word_is(asked->words[asked->count - 1], "noreply");
}

enum { FLAGS_MAX = 17, TOKEN_MAX = 31 };

bool asked_is_sound(const struct asked *asked) {
    bool seen[256] = {false};
    size_t first = first_flag(asked);
    if (!asked->meta || word_is(*asked->words, "mn") || word_is(*asked->words, "me")) {
        return true;
    }
    for (size_t i = first; i < asked->count && i < ASKED_WORDS; i++) {
        unsigned char letter = (unsigned char)*asked->words[i].at;
        if (seen[letter] || strchr("bcfhklqstuvCDFIJLMNOPRT", letter) == NULL ||
            asked->words[i].size > TOKEN_MAX + 1) {
            return false;
        }
        seen[letter] = true;
    }
    return asked->count <= first + FLAGS_MAX;
}

/* ---- honest answers --------------------------------------------------------------------- */

static void add(struct text *text, const char *words) {
    text_add(text, words, strlen(words));
}

static void add_word(struct text *text, struct word word) {
    text_add(text, " ", 1);
    text_add(text, word.at, word.size);
}

static size_t value_size_of(struct word key, size_t size) {
    return size > key.size + 3 ? size : key.size + 3;
}

/* A value names its key. */
static void add_value(struct text *text, struct word key, size_t size) {
    add(text, "of ");
    text_add(text, key.at, key.size);
    for (size_t left = value_size_of(key, size) - key.size - 3; left > 0;) {
        static const char filling[] = "\r\nEND\r\nVA 1\r\nVALUE x 0 1\r\nERROR\r\n";
        size_t count = left < sizeof filling ? left : sizeof filling;
        text_add(text, filling, count);
        left -= count;
    }
    add(text, "\r\n");
}

/* A counter's number names its key too. */
static unsigned number_of(struct word key) {
    unsigned number = 1;
    for (size_t i = 0; i < key.size; i++) {
        number = number * 31 + (unsigned char)key.at[i];
    }
    return number;
}

static void add_flags(struct text *text, const struct asked *asked, bool yes, size_t size) {
    for (size_t i = first_flag(asked); i < asked->count && i < ASKED_WORDS; i++) {
        struct word flag = asked->words[i];
        if (*flag.at == 'O' || (*flag.at == 'b' && asked_flag(asked, 'k'))) {
            add_word(text, flag);
        } else if (*flag.at == 'k') {
            add(text, " k");
            text_add(text, asked->words[1].at, asked->words[1].size);
        } else if (yes && *flag.at == 's') {
            text_print(text, " s%zu", size);
        } else if (yes && strchr("fcthl", *flag.at) != NULL) {
            text_print(text, " %c1", *flag.at);
        }
    }
}

static void answer_meta(struct text *text, const struct asked *asked, bool yes, size_t size) {
    struct word verb = *asked->words, key = asked->words[1];
    char number[16];
    if (word_is(verb, "mn")) {
        add(text, "MN");
    } else if (word_is(verb, "me")) {
        add(text, yes ? "ME " : "EN");
        if (yes) {
            text_add(text, key.at, key.size);
            add(text, " exp=-1 la=1");
        }
    } else if (yes && word_is(verb, "mg") && asked_flag(asked, 'v')) {
        size = value_size_of(key, size);
        text_print(text, "VA %zu", size);
        add_flags(text, asked, true, size);
        add(text, "\r\n");
        add_value(text, key, size);
        return;
    } else if (yes && word_is(verb, "ma") && asked_flag(asked, 'v')) {
        struct text digits = {number, 0, sizeof number};
        text_print(&digits, "%u", number_of(key));
        text_print(text, "VA %zu", digits.size);
        add_flags(text, asked, true, digits.size);
        add(text, "\r\n");
        text_add(text, digits.bytes, digits.size);
    } else {
        add(text, yes ? "HD" : word_is(verb, "mg") ? "EN" : word_is(verb, "ms") ? "NS" : "NF");
        add_flags(text, asked, yes, 0);
    }
    add(text, "\r\n");
}

/* Of many keys every other one is there. */
static void answer_get(struct text *text, const struct asked *asked, bool yes, size_t size) {
    bool touch = word_is(*asked->words, "gat") || word_is(*asked->words, "gats");
    bool cas = word_is(*asked->words, "gets") || word_is(*asked->words, "gats");
    for (size_t i = touch ? 2 : 1; yes && i < asked->count && i < ASKED_WORDS; i += 2) {
        struct word key = asked->words[i];
        add(text, "VALUE");
        add_word(text, key);
        text_print(text, " 5 %zu%s\r\n", value_size_of(key, size), cas ? " 9" : "");
        add_value(text, key, size);
    }
    add(text, "END\r\n");
}

static void answer_classic(struct text *text, const struct asked *asked, bool yes,
                           size_t size) {
    static const char *const gets[] = {"get", "gets", "gat", "gats", NULL};
    static const struct {
        const char *verb, *yes, *no;
    } words[] = {{"delete", "DELETED", "NOT_FOUND"},
                 {"touch", "TOUCHED", "NOT_FOUND"},
                 {"cas", "STORED", "EXISTS"},
                 {"flush_all", "OK", "OK"},
                 {"version", "VERSION 1.6.18", "VERSION 1.6.18"},
                 {"stats", "STAT pid 1\r\nSTAT words a b\r\nEND", "RESET"}};
    struct word verb = *asked->words;
    if (word_among(verb, gets)) {
        answer_get(text, asked, yes, size);
        return;
    }
    if (word_is(verb, "incr") || word_is(verb, "decr")) {
        text_print(text, yes ? "%u\r\n" : "NOT_FOUND\r\n", number_of(asked->words[1]));
        return;
    }
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (word_is(verb, words[i].verb)) {
            add(text, yes ? words[i].yes : words[i].no);
            add(text, "\r\n");
            return;
        }
    }
    add(text, yes ? "STORED\r\n" : "NOT_STORED\r\n");
}

/* A quiet mg is silent on a miss, the other meta commands on success, noreply on either. */
static bool is_silent(const struct asked *asked, bool yes) {
    return asked_quiet(asked) && (!asked->meta || yes != word_is(*asked->words, "mg"));
}

void server_answer(struct text *text, const struct asked *asked, enum answer answer,
                   size_t value_size) {
    bool plain = word_is(*asked->words, "mn") || word_is(*asked->words, "version");
    bool noreply = !asked->meta && asked_quiet(asked);
    bool yes = answer == YES;
    if ((answer == YES || answer == NO || plain) && is_silent(asked, yes)) {
        return;
    }
    if (answer == SERVER_FAILS && !plain) {
        add(text, noreply ? "" : "SERVER_ERROR out of memory storing object\r\n");
    } else if (answer == CLIENT_ERRS && !plain) { /* noreply hides the first line alone */
        add(text, noreply ? "ERROR\r\n" : "CLIENT_ERROR bad command line format\r\n");
    } else if (asked->meta) {
        answer_meta(text, asked, yes, value_size);
    } else {
        answer_classic(text, asked, yes, value_size);
    }
}

/* ---- replies ---------------------------------------------------------------------------- */

struct reader {
    const char *at, *end;
    struct text *told;
};

static bool read_line(struct reader *reader, struct word *line) {
    const char *end = memmem(reader->at, (size_t)(reader->end - reader->at), "\r\n", 2);
    if (end == NULL) {
        return false;
    }
    *line = (struct word){reader->at, (size_t)(end - reader->at)};
    reader->at = end + 2;
    return true;
}

/* A value of this many bytes and its CRLF. */
static bool read_value(struct reader *reader, struct word size, struct word *value) {
    uint64_t count, left = (uint64_t)(reader->end - reader->at);
    if (!word_number(size, &count) || left < 2 || count > left - 2) {
        return false;
    }
    *value = (struct word){reader->at, (size_t)count};
    reader->at += count + 2;
    return memcmp(reader->at - 2, "\r\n", 2) == 0;
}

static bool begins(struct word line, const char *word) {
    size_t size = strlen(word);
    return line.size >= size && memcmp(line.at, word, size) == 0;
}

static bool tell_error(struct text *told, struct word line) {
    if (begins(line, "SERVER_ERROR") || begins(line, "ERROR Too many open connections")) {
        add(told, "failed ");
        return true;
    }
    if (begins(line, "CLIENT_ERROR") || begins(line, "ERROR")) {
        add(told, "refused ");
        return true;
    }
    return false;
}

static bool read_meta(struct reader *reader) {
    struct word line, value, word = {0};
    if (!read_line(reader, &line)) {
        return false;
    }
    if (tell_error(reader->told, line)) {
        return true;
    }
    const char *at = line.at, *end = line.at + line.size;
    if (line.size < 2 || !word_next(&at, end, &word) || word.size != 2) {
        return false;
    }
    bool valued = word_is(word, "VA");
    if (valued && !(word_next(&at, end, &word) && read_value(reader, word, &value))) {
        return false;
    }
    text_print(reader->told, "%.2s ", line.at);
    text_quote(reader->told, at, (size_t)(end - at));
    if (valued) {
        text_quote(reader->told, value.at, value.size);
    }
    return true;
}

/* "VALUE key flags size[ cas]" and its block. */
static bool read_item(struct reader *reader, struct word line) {
    struct word words[5] = {{0}}, value;
    size_t count = 0;
    for (const char *at = line.at;
         count < 5 && word_next(&at, line.at + line.size, &words[count]);) {
        count++;
    }
    if (count < 4 || !read_value(reader, words[3], &value)) {
        return false;
    }
    add(reader->told, "VALUE ");
    text_quote(reader->told, words[1].at, words[1].size);
    text_quote(reader->told, words[2].at, words[2].size);
    text_quote(reader->told, count > 4 ? words[4].at : NULL, words[4].size);
    text_quote(reader->told, value.at, value.size);
    return true;
}

static void tell_stat(struct text *told, struct word line) {
    const char *at = line.at + 5, *end = line.at + line.size;
    struct word name = {0};
    word_next(&at, end, &name);
    at += at < end;
    add(told, "STAT ");
    text_quote(told, name.at, name.size);
    text_quote(told, at, (size_t)(end - at));
}

static bool read_classic(struct reader *reader, bool get, bool many, bool stats) {
    struct word line;
    for (;;) {
        if (!read_line(reader, &line)) {
            return false;
        }
        if (get && begins(line, "VALUE ")) {
            if (!read_item(reader, line)) {
                return false;
            }
            if (!many) {
                return read_line(reader, &line) && word_is(line, "END");
            }
        } else if (stats && begins(line, "STAT ")) {
            tell_stat(reader->told, line);
        } else {
            break;
        }
    }
    if (!tell_error(reader->told, line)) {
        size_t skip = word_is(line, "VERSION") ? 7 : begins(line, "VERSION ") ? 8 : 0;
        add(reader->told, "= ");
        text_quote(reader->told, line.at + skip, line.size - skip);
    }
    return true;
}

size_t server_reply(struct text *told, const struct asked *asked, const char *bytes,
                    size_t size) {
    struct reader reader = {bytes, bytes + size, told};
    struct word verb = *asked->words;
    bool get = word_is(verb, "get") || word_is(verb, "gets");
    bool gat = word_is(verb, "gat") || word_is(verb, "gats");
    bool many = asked->count > (gat ? 3 : 2);
    bool whole = asked->meta ? read_meta(&reader)
                             : read_classic(&reader, get || gat, many, word_is(verb, "stats"));
    return whole ? (size_t)(reader.at - bytes) : 0;
}

void server_silence(struct text *told, const struct asked *asked) {
    add(told, word_is(*asked->words, "mg") ? "EN " : "HD ");
    text_quote(told, "", 0);
}
