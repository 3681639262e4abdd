/* runtime_play.c: a host and its script: open, load, call, run, close with a task under way. */
#include "moonjay.h"
#include "servers.h"
#include "sweep.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SCRIPT_SIZE = 32768,
    RUNS = 64, /* of mj_run, should the loop fail */
    MEMORY = 1 << 30
};

/* What done functions were told. */
struct heard {
    int calls, status;
    char verdict[128];
};

/* ---- scripts ---- */

struct script {
    const char *path; /* "@": as mj_load wants it */
    size_t size;
    char text[SCRIPT_SIZE];
};

/* Read once, before anything fails. */
static const struct script *read_script(struct script *script, const char *path) {
    if (script->path == NULL) {
        FILE *file = fopen(path + 1, "r");
        if (file != NULL) {
            script->size = fread(script->text, 1, sizeof script->text, file);
            fclose(file);
        }
        if (script->size == 0 || script->size == sizeof script->text) {
            sweep_note("%s cannot be read", path + 1);
        }
        script->path = path;
    }
    return script;
}

static int load(mj_runtime *runtime, const struct script *script) {
    static struct script judge;
    read_script(&judge, "@spec/fault/judge.lua");
    int status = mj_load(runtime, judge.path, judge.text, judge.size);
    return status != MJ_OK ? status
                           : mj_load(runtime, script->path, script->text, script->size);
}

/* ---- what comes of a call ---- */

static bool is_memory(const char *text) {
    return text != NULL && strstr(text, "not enough memory") != NULL;
}

static enum mj__kind kind_of(const char *name) {
    for (int kind = MJ__KIND_NONE + 1; kind < MJ__KINDS; kind++) {
        if (name != NULL && strcmp(mj__kind_name((enum mj__kind)kind), name) == 0) {
            return (enum mj__kind)kind;
        }
    }
    return MJ__KIND_NONE;
}

static void meet_results(const mj_results *results) {
    for (int i = 1; i < mj_results_count(results); i++) {
        enum mj__kind kind = kind_of(mj_results_string(results, i, NULL));
        sweep_meet(kind, MJ__PHASE_READ, "a failure in the script", 0);
    }
}

static void on_done(mj_runtime *runtime, mj_task task, int status, const mj_results *results,
                    void *arg) {
    struct heard *heard = arg;
    (void)runtime, (void)task;
    const char *text = mj_results_string(results, 0, NULL);
    heard->calls++;
    heard->status = status;
    snprintf(heard->verdict, sizeof heard->verdict, "%s", text != NULL ? text : "");
    if (status == MJ_OK && strcmp(heard->verdict, "failed") == 0) {
        meet_results(results);
    }
}

/* An error that nobody waited for: only where memory is short may there be one. */
static void on_error(mj_runtime *runtime, const char *text, void *arg) {
    (void)runtime, (void)arg;
    if (!is_memory(text)) {
        sweep_note("an error that nobody waited for: %s", text);
    }
    sweep_meet(MJ__NO_MEMORY, MJ__PHASE_NONE, text, 0);
}

/* The text of an error that a task ended with: "KIND: ...", or that there is no memory. */
static void meet_error(const struct heard *heard) {
    char kind[sizeof heard->verdict];
    snprintf(kind, sizeof kind, "%.*s", (int)strcspn(heard->verdict, ":"), heard->verdict);
    SWEEP_CHECK(heard->status == MJ_ERROR);
    sweep_meet(is_memory(heard->verdict) ? MJ__NO_MEMORY : kind_of(kind), MJ__PHASE_READ,
               heard->verdict, 0);
}

static void judge(const struct heard *heard) {
    SWEEP_CHECK(heard->calls == 1);
    if (heard->status != MJ_OK) {
        meet_error(heard);
    } else if (strcmp(heard->verdict, "fine") != 0 && strcmp(heard->verdict, "failed") != 0) {
        sweep_note("the script found: %s", heard->verdict);
    }
}

/* ---- the host ---- */

/* Compiled code may crash when memory runs out: a host that expects that sets a limit. */
static mj_runtime *open_runtime(const struct script *script) {
    const mj_options options = {
        .size = sizeof options, .memory_limit = MEMORY, .error = on_error};
    char error[256] = "";
    mj_runtime *runtime = mj_open(&options, error, sizeof error);
    if (runtime == NULL) {
        SWEEP_CHECK(error[0] != '\0');
        sweep_meet(strstr(error, "memory") != NULL ? MJ__NO_MEMORY : MJ__UNREACHABLE,
                   MJ__PHASE_NONE, error, 0);
        return NULL;
    }
    int status = load(runtime, script);
    if (status != MJ_OK) {
        SWEEP_CHECK(mj_error(runtime)[0] != '\0');
        if (status != MJ_NOMEM && !is_memory(mj_error(runtime))) {
            sweep_note("mj_load: %d: %s", status, mj_error(runtime));
        }
        sweep_meet(MJ__NO_MEMORY, MJ__PHASE_NONE, mj_error(runtime), 0);
    }
    return runtime;
}

/* The loop may fail to turn: then the host tries again. */
static void run(mj_runtime *runtime, const struct heard *heard) {
    for (int i = 0; i < RUNS && heard->calls == 0; i++) {
        int status = mj_run(runtime);
        SWEEP_CHECK(status == MJ_OK || status == MJ_ERROR);
    }
}

static bool call_main(mj_runtime *runtime, struct heard *heard, bool again) {
    char tcp[128], direct[256], named[128], login[256], deaf[256], key[32];
    static const char patient[] = "?timeout=20s&connect_timeout=20s";
    snprintf(tcp, sizeof tcp, "memcache://127.0.0.1:%d%s", servers_port(), patient);
    snprintf(direct, sizeof direct, "memcache://%s%s", servers_path(), patient);
    snprintf(named, sizeof named, "memcache://" FAULT_HOST ":%d%s", servers_port(), patient);
    snprintf(login, sizeof login, "memcache+unix://fault:let-me-in@%s%s", servers_login_path(),
             patient);
    snprintf(deaf, sizeof deaf, "memcache://%s?protocol=meta&timeout=3ms&connect_timeout=20s",
             servers_deaf_path());
    snprintf(key, sizeof key, "l%llu.%d", (unsigned long long)sweep_round.number, again);
    *heard = (struct heard){.calls = 0};
    if (mj_call(runtime, "main", on_done, heard, again ? "sssss" : "ssssss", tcp, direct, named,
                login, key, deaf) == 0) {
        SWEEP_CHECK(mj_error(runtime)[0] != '\0');
        sweep_meet(MJ__NO_MEMORY, MJ__PHASE_NONE, mj_error(runtime), 0);
        return false;
    }
    run(runtime, heard);
    judge(heard);
    return true;
}

/* Once nothing fails any more, the same runtime is as good as new. */
static void call_again(mj_runtime *runtime, const struct script *script) {
    struct heard heard;
    uint32_t kinds = sweep_round.kinds;
    fault_pause(true);
    SWEEP_CHECK(load(runtime, script) == MJ_OK);
    SWEEP_CHECK(call_main(runtime, &heard, true));
    SWEEP_CHECK(strcmp(heard.verdict, "fine") == 0);
    SWEEP_CHECK(sweep_round.kinds == kinds);
    fault_pause(false);
}

/* Calls linger, which would wait for ever. */
static mj_task call_linger(mj_runtime *runtime, struct heard *heard) {
    char deaf[256];
    snprintf(deaf, sizeof deaf, "memcache://%s?protocol=meta", servers_deaf_path());
    *heard = (struct heard){.calls = 0};
    mj_task task = mj_call(runtime, "linger", on_done, heard, "s", deaf);
    if (task == 0) {
        sweep_meet(MJ__NO_MEMORY, MJ__PHASE_NONE, mj_error(runtime), 0);
    }
    return task;
}

static void close_under_way(mj_runtime *runtime) {
    struct heard heard;
    bool called = call_linger(runtime, &heard) != 0;
    for (int i = 0; i < 4; i++) {
        (void)mj_poll(runtime, 0);
    }
    bool ended = heard.calls > 0;
    mj_close(runtime);
    SWEEP_CHECK(heard.calls == called);
    SWEEP_CHECK(!sweep_harmless() || (called && !ended));
    if (ended) {
        meet_error(&heard);
    }
    SWEEP_CHECK(!called || ended || heard.status == MJ_CANCELLED);
}

void runtime_play(void) {
    static struct script steps;
    struct heard heard;
    const struct script *script = read_script(&steps, "@spec/fault/steps.lua");
    mj_runtime *runtime = open_runtime(script);
    if (runtime == NULL) {
        return;
    }
    if (call_main(runtime, &heard, false) && sweep_harmless()) {
        SWEEP_CHECK(strcmp(heard.verdict, "fine") == 0);
    }
    call_again(runtime, script);
    close_under_way(runtime);
}

/* ---- much at once ---- */

struct cancellation {
    mj_task task;
    int posted;
};

static void cancel(mj_runtime *runtime, void *arg) {
    struct cancellation *cancellation = arg;
    cancellation->posted++;
    mj_cancel(runtime, cancellation->task);
}

/* A task that waits for ever is cancelled by a posted function while main runs. */
void busy_play(void) {
    static struct script busy;
    struct heard heard, lingering;
    const struct script *script = read_script(&busy, "@spec/fault/busy.lua");
    fault_pause(true);
    mj_runtime *runtime = open_runtime(script);
    fault_pause(false);
    struct cancellation cancellation = {.task = call_linger(runtime, &lingering)};
    (void)mj_poll(runtime, 0);
    int status = mj_post(runtime, cancel, &cancellation);
    SWEEP_CHECK(status == MJ_OK || (status == MJ_NOMEM && !sweep_harmless()));
    if (status != MJ_OK) {
        sweep_meet(MJ__NO_MEMORY, MJ__PHASE_NONE, "mj_post", 0);
        mj_cancel(runtime, cancellation.task);
    }
    if (call_main(runtime, &heard, false) && sweep_harmless()) {
        SWEEP_CHECK(strcmp(heard.verdict, "fine") == 0);
        SWEEP_CHECK(lingering.status == MJ_CANCELLED);
    }
    run(runtime, &lingering);
    SWEEP_CHECK(lingering.calls == (cancellation.task != 0));
    SWEEP_CHECK(cancellation.posted == (status == MJ_OK));
    if (lingering.calls > 0 && lingering.status != MJ_CANCELLED) {
        meet_error(&lingering);
    }
    call_again(runtime, script);
    mj_close(runtime);
}

void runtime_play_well(void) {
    const mj_options options = {.size = sizeof options, .error = on_error};
    static const char text[] = "mj = require 'moonjay'\n"
                               "function main(url, key)\n"
                               "  local conn = mj.check(mj.connect(url))\n"
                               "  mj.check(conn:set(key, key))\n"
                               "  return mj.check(conn:get(key))\n"
                               "end\n";
    char error[256], url[256], key[32];
    struct heard heard = {.calls = 0};
    mj_runtime *runtime = mj_open(&options, error, sizeof error);
    SWEEP_CHECK(runtime != NULL);
    if (runtime == NULL) {
        return;
    }
    snprintf(url, sizeof url, "memcache://%s", servers_path());
    snprintf(key, sizeof key, "w%llu", (unsigned long long)sweep_round.number);
    SWEEP_CHECK(mj_load(runtime, "=well", text, sizeof text - 1) == MJ_OK);
    SWEEP_CHECK(mj_call(runtime, "main", on_done, &heard, "ss", url, key) != 0);
    SWEEP_CHECK(mj_run(runtime) == MJ_OK);
    SWEEP_CHECK(heard.calls == 1 && heard.status == MJ_OK && strcmp(heard.verdict, key) == 0);
    mj_close(runtime);
}
