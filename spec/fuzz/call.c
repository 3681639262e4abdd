/* call.c: what scripts ask: whatever they are given as keys, values, flags and numbers, a call that
 * is not refused leaves as one sound command, and its value is of its key.
 *
 * The input is a byte that says how to connect, and calls (see call.lua), which are made in a
 * runtime in the simulated world, to an honest server. */
#include "moonjay.h"
#include "wire.h"

#include "server.h"
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { IN_ASCII = 1, BINARY_KEYS = 2, PIPELINED = 4, UNVERIFIED = 8, ASKED_PROTOCOL = 16 };
enum { TURNS_MAX = 1000 };

/* ---- the runtime: one for all inputs ---------------------------------------------------- */

static mj_runtime *runtime;

static void close_runtime(void) {
    mj_close(runtime);
    runtime = NULL;
}

static void load_script(void) {
    char script[16384];
    FILE *file = fopen("spec/fuzz/call.lua", "r");
    HOLDS(file != NULL);
    size_t size = fread(script, 1, sizeof script, file);
    HOLDS(size > 0 && size < sizeof script && fclose(file) == 0);
    if (mj_load(runtime, "@call.lua", script, size) != MJ_OK) {
        fuzz_failed(__FILE__, __LINE__, mj_error(runtime));
    }
}

/* With a memory limit there is no JIT: what a script does never depends on what ran before. */
static void open_runtime(void) {
    char error[256];
    const mj_options options = {.size = sizeof options, .memory_limit = 64 << 20};
    runtime = mj_open(&options, error, sizeof error);
    HOLDS(runtime != NULL && atexit(close_runtime) == 0);
    load_script();
}

/* ---- the server ------------------------------------------------------------------------- */

/* What it heard, but for noops: the key of each request, or a bare blank. */
static struct {
    struct knife knife;
    struct text keys;
    size_t heard; /* bytes of what was written */
    unsigned stream;
} server;

static void note_key(const struct asked *asked) {
    bool touch = word_is(*asked->words, "gat") || word_is(*asked->words, "gats");
    bool keyless = word_is(*asked->words, "stats") || word_is(*asked->words, "flush_all");
    if (!keyless) {
        const struct word *key = &asked->words[touch ? 2 : 1];
        text_add(&server.keys, key->at, key->size);
    }
    text_add(&server.keys, "\xfe", 1);
}

static void serve(void) {
    const struct text *written = sim_written();
    struct asked asked;
    struct text reply = {0};
    if (server.stream != sim_connects()) {
        server.stream = sim_connects();
        server.heard = 0;
    }
    while (written->size > server.heard) {
        size_t length =
            server_read(written->bytes + server.heard, written->size - server.heard, &asked);
        HOLDS(length > 0); /* it takes all that is written at once */
        server.heard += length;
        bool noop = word_is(*asked.words, "mn") || word_is(*asked.words, "version");
        if (!noop) {
            note_key(&asked);
        }
        bool yes = knife_next(&server.knife, 16) <= 12;
        server_answer(&reply, &asked,
                      !asked_is_sound(&asked) ? CLIENT_ERRS
                      : yes                   ? YES
                                              : NO,
                      0);
    }
    sim_say(reply.bytes, reply.size);
    text_free(&reply);
}

/* ---- a play ----------------------------------------------------------------------------- */

struct outcome {
    bool over;
    struct text sent; /* as call.lua has it */
};

static void on_done(mj_runtime *self, mj_task task, int status, const mj_results *results,
                    void *arg) {
    struct outcome *outcome = arg;
    size_t size = 0;
    (void)self, (void)task;
    const char *text = mj_results_string(results, 0, &size);
    if (status != MJ_OK || text == NULL) {
        fprintf(stderr, "%s\n", mj_results_traceback(results));
        fuzz_failed(__FILE__, __LINE__, text != NULL ? text : "a play ends well");
    }
    text_add(&outcome->sent, text, size);
    outcome->over = true;
}

static bool same_key(struct word asked, struct word heard) {
    return (asked.size == heard.size && memcmp(asked.at, heard.at, asked.size) == 0) ||
           mj__base64_is(heard.at, heard.size, asked.at, asked.size);
}

static struct word next_record(const char **at, const char *end) {
    const char *stop = memchr(*at, 0xfe, (size_t)(end - *at));
    HOLDS(stop != NULL);
    struct word record = {*at, (size_t)(stop - *at)};
    *at = stop + 1;
    return record;
}

/* What left is what was asked, call for call. */
static void check_sent(const struct text *sent) {
    const char *at = text_bytes(sent), *end = at + sent->size;
    const char *heard = text_bytes(&server.keys), *heard_end = heard + server.keys.size;
    while (at < end) {
        struct word call = next_record(&at, end);
        HOLDS(heard < heard_end && call.size > 0);
        HOLDS(same_key((struct word){call.at + 1, call.size - 1},
                       next_record(&heard, heard_end)));
    }
    HOLDS(heard == heard_end);
}

static void make_url(struct text *url, unsigned how) {
    text_print(url, "memcache:///s?protocol=%s&binary_keys=%s&verify=%s",
               how & ASKED_PROTOCOL ? "auto"
               : how & IN_ASCII     ? "ascii"
                                    : "meta",
               how & BINARY_KEYS ? "true" : "false", how & UNVERIFIED ? "false" : "true");
    text_add(url, "", 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct outcome outcome = {0};
    struct text url = {0};
    if (size == 0) {
        return 0;
    }
    if (runtime == NULL) {
        open_runtime();
    }
    server.knife = knife_for(CRUMBS, data, size);
    text_clear(&server.keys);
    make_url(&url, data[0]);
    HOLDS(mj_call(runtime, "play", on_done, &outcome, "stb", url.bytes,
                  (data[0] & PIPELINED) != 0, (const char *)data + 1, size - 1) != 0);
    for (int turns = 0; !outcome.over; turns++) {
        HOLDS(turns < TURNS_MAX && mj_poll(runtime, 1000) >= 0);
        serve();
    }
    check_sent(&outcome.sent);
    text_free(&outcome.sent);
    text_free(&url);
    return 0;
}
