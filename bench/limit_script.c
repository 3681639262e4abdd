/* limit_script.c: requests as text, and what is known of their answers. */
#include "contender.h"
#include "limit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void write_key(char key[KEY_SIZE + 1], int index) {
    snprintf(key, KEY_SIZE + 1, "bench:%05u", (unsigned)index % 100000);
}

static void write_value(FILE *text, const char *key, size_t size) {
    fputs(key, text);
    for (size_t i = 2 * KEY_SIZE; i < size; i++)
        fputc('.', text);
    fprintf(text, "%s\r\n", key);
}

/* With MULTI_GET for `keys` keys from this one on. */
static void write_request(FILE *text, enum mode mode, int index, int keys, size_t size) {
    char key[KEY_SIZE + 1];
    write_key(key, index);
    if (mode == MG) {
        fprintf(text, "mg %s v\r\n", key);
    } else if (mode == SET) {
        fprintf(text, "set %s 0 0 %zu\r\n", key, size);
        write_value(text, key, size);
    } else if (mode == MS) {
        fprintf(text, "ms %s %zu\r\n", key, size);
        write_value(text, key, size);
    } else {
        fputs("get", text);
        for (int i = 0; i < keys; i++) {
            write_key(key, index + i);
            fprintf(text, " %s", key);
        }
        fputs("\r\n", text);
    }
}

static struct answer *add_answer(struct script *script, const char *head) {
    struct answer *answer = &script->answers[script->answer_count++];
    answer->head_size = (size_t)snprintf(answer->head, sizeof answer->head, "%s", head);
    return answer;
}

static void add_value(struct script *script, const char *before, int index, const char *after) {
    char key[KEY_SIZE + 1];
    write_key(key, index);
    char head[32];
    snprintf(head, sizeof head, "%s%s%s", before, *after ? key : "", after);
    struct answer *answer = add_answer(script, head);
    memcpy(answer->key, key, sizeof key);
    answer->has_value = answer->counts = true;
}

static void add_answers(struct script *script, enum mode mode, int index, int keys) {
    if (mode == MG) {
        add_value(script, "VA ", index, "");
    } else if (mode == SET) {
        add_answer(script, "STORED\r\n")->counts = true;
    } else if (mode == MS) {
        add_answer(script, "HD\r\n")->counts = true;
    } else {
        for (int i = 0; i < keys; i++)
            add_value(script, "VALUE ", index + i, " 0 ");
        add_answer(script, "END\r\n");
    }
    script->answers[script->answer_count - 1].last = true;
}

struct script script_make(enum mode mode, int requests, int keys, size_t size) {
    struct script script = {.requests = requests, .value_size = size};
    script.starts = allocate((size_t)requests * 2 + 1, sizeof *script.starts);
    script.answers = allocate((size_t)requests * ((size_t)keys + 1), sizeof *script.answers);
    size_t text_size = 0;
    FILE *text = open_memstream(&script.text, &text_size);
    if (!text)
        fail(WRONG, "out of memory");
    for (int i = 0; i < 2 * requests; i++) {
        int index = i % requests;
        enum mode verb = mode != MIXED ? mode : index % MIXED_CYCLE == 0 ? SET : GET;
        write_request(text, verb, index, keys, size);
        if (i < requests)
            add_answers(&script, verb, index, keys);
        script.starts[i + 1] = (size_t)ftell(text);
    }
    if (fclose(text) != 0)
        fail(WRONG, "out of memory");
    return script;
}

void script_free(struct script *script) {
    free(script->text);
    free(script->starts);
    free(script->answers);
}
