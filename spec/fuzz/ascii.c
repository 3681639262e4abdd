/* ascii.c: bytes as replies of the classic protocol. */
#include "replies.h"

#include <string.h>

/* "VALUE key flags size[ cas]" */
static void judge_value(const char *at, const char *end, const struct mj__reply *reply) {
    struct word word = {0};
    uint64_t number;
    HOLDS(word_next(&at, end, &word) && word_is(word, "VALUE"));
    HOLDS(word_next(&at, end, &word));
    HOLDS(reply->key == word.at && reply->key_size == word.size);
    HOLDS(word_next(&at, end, &word) && word_number(word, &number));
    HOLDS(reply->flags == number);
    HOLDS(word_next(&at, end, &word) && word_number(word, &number));
    HOLDS(reply->value_size == number);
    bool cas = word_next(&at, end, &word);
    HOLDS(reply->has_cas == cas);
    if (cas) {
        HOLDS(word_number(word, &number) && reply->cas == number);
        HOLDS(!word_next(&at, end, &word));
    }
}

/* "STAT name[ value]" */
static void judge_stat(const char *at, const char *end, const struct mj__reply *reply) {
    struct word word = {0};
    HOLDS(word_next(&at, end, &word) && word_is(word, "STAT"));
    HOLDS(word_next(&at, end, &word));
    HOLDS(reply->key == word.at && reply->key_size == word.size);
    at += at < end;
    HOLDS(reply->text == at && reply->text_size == (size_t)(end - at));
}

static void judge_word(const char *line, size_t size, const struct mj__reply *reply) {
    static const struct {
        const char *word;
        enum mj__code code;
    } words[] = {{"STORED", MJ__HD},     {"DELETED", MJ__HD}, {"TOUCHED", MJ__HD},
                 {"OK", MJ__HD},         {"END", MJ__EN},     {"NOT_FOUND", MJ__NF},
                 {"NOT_STORED", MJ__NS}, {"EXISTS", MJ__EX},  {"RESET", MJ__RESET_LINE},
                 {NULL, MJ__SAYS_ERROR}};
    struct word word = {line, size};
    size_t at = 0;
    while (words[at].word != NULL && !word_is(word, words[at].word)) {
        at++;
    }
    HOLDS(reply->code == words[at].code);
    HOLDS(reply->text == line && reply->text_size == size);
}

static void judge(const char *line, size_t size, const struct mj__reply *reply) {
    struct word word = {line, size};
    uint64_t number;
    if (reply->code >= MJ__SAYS_ERROR) {
        judge_error(line, size, reply);
        return;
    }
    HOLDS(reply->opaque == NULL && reply->marks == 0);
    switch (reply->code) {
    case MJ__VA:
        judge_value(line, line + size, reply);
        break;
    case MJ__STAT:
        judge_stat(line, line + size, reply);
        break;
    case MJ__NUMBER:
        HOLDS(word_number(word, &number));
        HOLDS(reply->text == line && reply->text_size == size);
        break;
    case MJ__VERSION_LINE:
        HOLDS(size >= 7 && memcmp(line, "VERSION", 7) == 0);
        HOLDS(reply->text_size == (size > 7 ? size - 8 : 0));
        HOLDS(size == 7 || reply->text == line + 8);
        break;
    default:
        judge_word(line, size, reply);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    replies_check(mj__ascii_parse, judge, data, size);
    return 0;
}
