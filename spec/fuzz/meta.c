/* meta.c: bytes as replies of the meta protocol. */
#include "replies.h"

static void judge_flags(const char *at, const char *end, const struct mj__reply *reply) {
    struct word word, key = {0}, opaque = {0};
    unsigned marks = 0;
    while (word_next(&at, end, &word)) {
        struct word token = {word.at + 1, word.size - 1};
        switch (*word.at) {
        case 'k':
            key = token;
            break;
        case 'O':
            opaque = token;
            break;
        case 'W':
            marks |= MJ__WON;
            break;
        case 'X':
            marks |= MJ__STALE;
            break;
        case 'Z':
            marks |= MJ__TAKEN;
            break;
        case 'b':
            marks |= MJ__KEY_ENCODED;
            break;
        default:
            break;
        }
    }
    HOLDS(reply->key == key.at && reply->key_size == key.size);
    HOLDS(reply->opaque == opaque.at && reply->opaque_size == opaque.size);
    HOLDS(reply->marks == marks);
}

static void judge(const char *line, size_t size, const struct mj__reply *reply) {
    static const char *const words[] = {
        [MJ__HD] = "HD", [MJ__VA] = "VA", [MJ__EN] = "EN", [MJ__NF] = "NF",
        [MJ__NS] = "NS", [MJ__EX] = "EX", [MJ__MN] = "MN", [MJ__ME] = "ME"};
    const char *at = line, *end = line + size;
    struct word word = {0};
    uint64_t number;
    if (reply->code >= MJ__SAYS_ERROR) {
        judge_error(line, size, reply);
        return;
    }
    HOLDS(reply->code <= MJ__ME && *line != ' ' && word_next(&at, end, &word));
    HOLDS(word_is(word, words[reply->code]));
    if (reply->code == MJ__VA) {
        HOLDS(word_next(&at, end, &word) && word_number(word, &number));
        HOLDS(reply->value_size == number);
    }
    HOLDS(reply->text == at && reply->text_size == (size_t)(end - at));
    if (reply->code == MJ__ME) { /* its words are no flags */
        HOLDS(word_next(&at, end, &word) && reply->key == word.at);
        HOLDS(reply->key_size == word.size && reply->opaque == NULL && reply->marks == 0);
    } else {
        judge_flags(at, end, reply);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    replies_check(mj__meta_parse, judge, data, size);
    return 0;
}
