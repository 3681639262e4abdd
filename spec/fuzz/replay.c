/* replay.c: a target's corpus, without libFuzzer: its arguments are corpus files.
 *
 * A corpus file has one input a line, with \r, \n, \\ and \xHH for what a line cannot hold as it
 * is. A line that begins with # names the group that follows, which is a test. */
#include "fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { GROUP_SECONDS = 120 };

/* ---- notation --------------------------------------------------------------------------- */

static uint8_t hex(const char *digits) {
    const char pair[3] = {digits[0], digits[1], '\0'};
    char *end;
    unsigned long byte = strtoul(pair, &end, 16);
    HOLDS(end == pair + 2);
    return (uint8_t)byte;
}

/* In place; returns the size of the input. A line ends in a NUL. */
static size_t unescape(char *line) {
    char *out = line;
    for (const char *at = line; *at != '\0'; at++) {
        if (*at != '\\') {
            *out++ = *at;
            continue;
        }
        switch (*++at) {
        case 'r':
            *out++ = '\r';
            break;
        case 'n':
            *out++ = '\n';
            break;
        case 'x':
            *out++ = (char)hex(at + 1);
            at += 2;
            break;
        default:
            HOLDS(*at == '\\');
            *out++ = '\\';
        }
    }
    return (size_t)(out - line);
}

/* ---- groups ----------------------------------------------------------------------------- */

static char *read_whole(const char *path) {
    struct text text = {0};
    char piece[4096];
    size_t count;
    FILE *file = fopen(path, "rb");
    HOLDS(file != NULL);
    while ((count = fread(piece, 1, sizeof piece, file)) > 0) {
        text_add(&text, piece, count);
    }
    HOLDS(fclose(file) == 0);
    text_add(&text, "", 1);
    return text.bytes;
}

/* Runs the inputs up to the next line that names a group. */
static void run_inputs(char *at, int *count) {
    while (*at != '\0' && *at != '#') {
        char *end = strchr(at, '\n');
        HOLDS(end != NULL);
        *end = '\0';
        if (end > at) {
            ++*count;
            size_t size = unescape(at);
            /* A block of exactly its size, where the sanitizer sees a read past it. */
            uint8_t *input = malloc(size);
            HOLDS(input != NULL || size == 0);
            memcpy(input, at, size);
            LLVMFuzzerTestOneInput(input, size);
            free(input);
        }
        at = end + 1;
    }
}

/* In a process of its own, which a finding ends. */
static int run_group(const char *name, size_t size, char *inputs) {
    fflush(stdout);
    pid_t child = fork();
    HOLDS(child >= 0);
    if (child == 0) {
        int count = 0;
        alarm(GROUP_SECONDS);
        run_inputs(inputs, &count);
        HOLDS(count > 0);
        exit(0);
    }
    int status;
    HOLDS(waitpid(child, &status, 0) == child);
    bool well = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    printf("%s %.*s\n", well ? "ok" : "not ok", (int)size, name);
    return !well;
}

static int run_file(const char *path) {
    char *text = read_whole(path);
    int failed = 0;
    for (char *at = text; *at != '\0';) {
        char *end = strchr(at, '\n');
        HOLDS(end != NULL);
        if (*at == '#') {
            const char *name = at + 1 + strspn(at + 1, " ");
            failed |= run_group(name, (size_t)(end - name), end + 1);
        }
        at = end + 1;
    }
    free(text);
    return failed;
}

int main(int argc, char **argv) {
    int failed = 0;
    for (int i = 1; i < argc; i++) {
        failed |= run_file(argv[i]);
    }
    return failed;
}
