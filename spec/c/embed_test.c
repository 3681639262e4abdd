/* A host that embeds the runtime, as any host would: it knows moonjay.h and nothing else. */
#include "moonjay.h"

#include "check.h"

#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

enum { CALLS_MAX = 16 };

/* What the callbacks of one runtime were told. */
struct heard {
    int done, statuses[CALLS_MAX];
    char text[256], traceback[1024];
    size_t text_size;
    double number;
    int count;
    int errors;
    char error[1024];
};

static void on_done(mj_runtime *runtime, mj_task task, int status, const mj_results *results,
                    void *arg) {
    struct heard *heard = arg;
    (void)runtime;
    (void)task;
    heard->statuses[heard->done++ % CALLS_MAX] = status;
    heard->count = mj_results_count(results);
    heard->number = mj_results_number(results, 0, -1);
    const char *text = mj_results_string(results, 0, &heard->text_size);
    snprintf(heard->text, sizeof heard->text, "%s", text != NULL ? text : "(none)");
    snprintf(heard->traceback, sizeof heard->traceback, "%s", mj_results_traceback(results));
}

static void on_error(mj_runtime *runtime, const char *text, void *arg) {
    struct heard *heard = arg;
    (void)runtime;
    heard->errors++;
    snprintf(heard->error, sizeof heard->error, "%s", text);
}

static mj_runtime *open_with(struct heard *heard, size_t memory_limit) {
    mj_options options = {
        .size = sizeof options,
        .memory_limit = memory_limit,
        .error = on_error,
        .error_arg = heard,
    };
    char error[256];
    mj_runtime *runtime = mj_open(&options, error, sizeof error);
    NEED(runtime != NULL);
    return runtime;
}

static int load(mj_runtime *runtime, const char *text) {
    return mj_load(runtime, "@host.lua", text, strlen(text));
}

static mj_runtime *open_and_load(struct heard *heard, const char *text) {
    *heard = (struct heard){.done = 0};
    mj_runtime *runtime = open_with(heard, 0);
    if (load(runtime, text) != MJ_OK) {
        printf("not ok: %s\n", mj_error(runtime));
        exit(1);
    }
    return runtime;
}

static bool contains(const char *text, const char *part) {
    return strstr(text, part) != NULL;
}

/* ---- open ---- */

static void open_without_options(void) {
    char error[64] = "untouched";
    mj_runtime *runtime = mj_open(NULL, error, sizeof error);
    CHECK(runtime != NULL);
    CHECK(error[0] == '\0');
    CHECK(strcmp(mj_error(runtime), "") == 0);
    CHECK(mj_run(runtime) == MJ_OK);
    CHECK(mj_poll(runtime, 1000) == 0);
    mj_close(runtime);
    mj_close(NULL);
}

static void refuse_options_without_size(void) {
    char error[128];
    CHECK(mj_open(&(mj_options){.size = 0}, error, sizeof error) == NULL);
    CHECK(contains(error, "size"));
    CHECK(mj_open(&(mj_options){.size = 0}, NULL, 0) == NULL);
}

static void refuse_tiny_memory(void) {
    mj_options options = {.size = sizeof options, .memory_limit = 20000};
    char error[128];
    CHECK(mj_open(&options, error, sizeof error) == NULL);
    CHECK(contains(error, "memory"));
}

static int open_with_few_descriptors(void) {
    char error[256];
    mj_runtime *runtime = mj_open(NULL, error, sizeof error);
    int opened = runtime != NULL;
    mj_close(runtime);
    return opened || error[0] != '\0' ? opened : 2;
}

static void descriptors_run_out(void) {
    for (int limit = 3; limit < 8; limit++) {
        CHECK(check_with_descriptors(limit, open_with_few_descriptors) == 0);
    }
    CHECK(check_with_descriptors(24, open_with_few_descriptors) == 1);
}

/* ---- load ---- */

static void load_refusals(void) {
    struct heard heard;
    mj_runtime *runtime = open_and_load(&heard, "x = 1");
    CHECK(load(runtime, "y = = 1") == MJ_ERROR);
    CHECK(contains(mj_error(runtime), "host.lua:1:"));
    CHECK(load(runtime, "local t\n\nt.x = 1") == MJ_ERROR);
    CHECK(contains(mj_error(runtime), "host.lua:3:"));
    CHECK(contains(mj_error(runtime), "stack traceback"));
    CHECK(load(runtime, "\x1bLJ\x02") == MJ_ERROR);
    CHECK(load(runtime,
               "error(setmetatable({}, { __tostring = function() return 'told' end }))") ==
          MJ_ERROR);
    CHECK(contains(mj_error(runtime), "told"));
    CHECK(load(runtime, "require('moonjay').sleep(1)") == MJ_ERROR);
    CHECK(contains(mj_error(runtime), "host.lua:1: sleep: only a task can wait"));
    CHECK(load(runtime, "coroutine.wrap(require('moonjay').sleep)(1)") == MJ_ERROR);
    CHECK(contains(mj_error(runtime), "only a task can wait"));
    CHECK(load(runtime, "assert(x == 1)") == MJ_OK);
    CHECK(strcmp(mj_error(runtime), "") == 0);
    mj_close(runtime);
}

static void loaded_chunk_spawns(void) {
    struct heard heard;
    mj_runtime *runtime =
        open_and_load(&heard, "require('moonjay').spawn(function() ran = true end)\n"
                              "function get() return ran end");
    CHECK(mj_poll(runtime, 0) == 0);
    CHECK(mj_call(runtime, "get", on_done, &heard, "") != 0);
    CHECK(mj_run(runtime) == MJ_OK);
    CHECK(heard.number == 1);
    mj_close(runtime);
}

/* ---- call ---- */

static void arguments_and_results(void) {
    struct heard heard;
    mj_runtime *runtime = open_and_load(
        &heard,
        "function all(s, b, n, i, t) return s .. #b .. n .. i .. tostring(t), 2, true end\n"
        "function number() return 2.5 end function none() end\n"
        "function zero() return 'a\\0b' end");
    mj_task task = mj_call(runtime, "all", on_done, &heard, "sbnit", "s", "a\0b", (size_t)3,
                           1.5, (int64_t)-7, 1);
    CHECK(task != 0);
    CHECK(heard.done == 0);
    CHECK(mj_run(runtime) == MJ_OK);
    CHECK(heard.done == 1 && heard.statuses[0] == MJ_OK && heard.count == 3);
    CHECK(strcmp(heard.text, "s31.5-7true") == 0);
    CHECK(mj_call(runtime, "number", on_done, &heard, NULL) != 0);
    mj_run(runtime);
    CHECK(heard.number == 2.5 && strcmp(heard.text, "(none)") == 0);
    CHECK(mj_call(runtime, "none", on_done, &heard, "") != 0);
    mj_run(runtime);
    CHECK(heard.count == 0 && heard.number == -1);
    CHECK(mj_call(runtime, "zero", on_done, &heard, "") != 0);
    mj_run(runtime);
    CHECK(heard.text_size == 3 && heard.done == 4 && heard.errors == 0);
    mj_close(runtime);
}

static void calls_refused(void) {
    struct heard heard;
    mj_runtime *runtime = open_and_load(&heard, "function f() end n = 1");
    CHECK(mj_call(runtime, "nothing", on_done, &heard, "") == 0);
    CHECK(contains(mj_error(runtime), "nothing"));
    CHECK(mj_call(runtime, "n", on_done, &heard, "") == 0);
    CHECK(contains(mj_error(runtime), "number"));
    CHECK(mj_call(runtime, "f", on_done, &heard, "x", 1) == 0);
    CHECK(contains(mj_error(runtime), "'x'"));
    CHECK(mj_poll(runtime, 0) == 0 && heard.done == 0);
    CHECK(mj_call(runtime, "f", NULL, NULL, "") != 0);
    CHECK(mj_run(runtime) == MJ_OK);
    mj_close(runtime);
}

static void failed_call(void) {
    struct heard heard;
    mj_runtime *runtime = open_and_load(&heard, "function f()\n  local function deep()\n"
                                                "    error('broken')\n  end\n  deep()\nend");
    mj_call(runtime, "f", on_done, &heard, "");
    CHECK(mj_run(runtime) == MJ_OK);
    CHECK(heard.done == 1 && heard.statuses[0] == MJ_ERROR && heard.count == 1);
    CHECK(strcmp(heard.text, "host.lua:3: broken") == 0);
    CHECK(contains(heard.traceback, "in function 'deep'"));
    CHECK(heard.errors == 0);
    mj_call(runtime, "f", NULL, NULL, "");
    CHECK(mj_run(runtime) == MJ_ERROR);
    CHECK(heard.errors == 1);
    CHECK(contains(heard.error, "task failed: host.lua:3: broken\nstack traceback:"));
    CHECK(contains(heard.error, "in function 'deep'"));
    CHECK(mj_run(runtime) == MJ_OK);
    mj_close(runtime);
}

static void odd_errors(void) {
    struct heard heard;
    mj_runtime *runtime = open_and_load(
        &heard,
        "function f() error() end\n"
        "function g() error(setmetatable({}, { __tostring = function() error('x') end })) end\n"
        "function h() error(setmetatable({}, { __tostring = function() return {} end })) end\n"
        "function i() return i() + 1 end");
    mj_call(runtime, "f", on_done, &heard, "");
    mj_run(runtime);
    CHECK(heard.statuses[0] == MJ_ERROR && contains(heard.text, "nil"));
    mj_call(runtime, "g", on_done, &heard, "");
    mj_run(runtime);
    CHECK(heard.statuses[1] == MJ_ERROR && heard.text[0] != '\0');
    mj_call(runtime, "h", on_done, &heard, "");
    mj_run(runtime);
    CHECK(heard.statuses[2] == MJ_ERROR && contains(heard.text, "table"));
    mj_call(runtime, "i", on_done, &heard, "");
    mj_run(runtime);
    CHECK(heard.statuses[3] == MJ_ERROR && contains(heard.text, "stack overflow"));
    mj_close(runtime);
}

/* ---- cancel ---- */

static const char sleeper[] = "mj = require('moonjay')\n"
                              "function nap() mj.sleep(1000) return 'slept' end\n"
                              "function stubborn() pcall(mj.sleep, 1000) return 'stayed' end\n"
                              "function quick() return 'quick' end";

static void cancelled_calls(void) {
    struct heard heard;
    mj_runtime *runtime = open_and_load(&heard, sleeper);
    mj_task nap = mj_call(runtime, "nap", on_done, &heard, "");
    mj_task stubborn = mj_call(runtime, "stubborn", on_done, &heard, "");
    CHECK(mj_poll(runtime, 1000) == 2);
    mj_task unborn = mj_call(runtime, "quick", on_done, &heard, "");
    CHECK(heard.done == 0);
    mj_cancel(runtime, unborn);
    mj_cancel(runtime, nap);
    mj_cancel(runtime, nap);
    CHECK(mj_poll(runtime, 1000) == 1);
    CHECK(heard.done == 2);
    CHECK(heard.statuses[0] == MJ_CANCELLED && heard.statuses[1] == MJ_CANCELLED);
    mj_cancel(runtime, stubborn);
    CHECK(mj_run(runtime) == MJ_OK);
    CHECK(heard.done == 3 && heard.statuses[2] == MJ_OK && strcmp(heard.text, "stayed") == 0);
    mj_call(runtime, "quick", on_done, &heard, "");
    mj_cancel(runtime, nap);
    mj_cancel(runtime, unborn);
    mj_cancel(runtime, stubborn);
    mj_cancel(runtime, 0);
    mj_cancel(runtime, UINT64_MAX);
    CHECK(mj_run(runtime) == MJ_OK);
    CHECK(heard.done == 4 && heard.statuses[3] == MJ_OK && heard.errors == 0);
    mj_close(runtime);
}

/* ---- poll and run ---- */

static void poll_stays_in_its_budget(void) {
    struct heard heard;
    mj_runtime *runtime = open_and_load(&heard, sleeper);
    for (int i = 0; i < 5; i++) {
        mj_call(runtime, "quick", on_done, &heard, "");
    }
    for (int i = 4; i >= 0; i--) {
        CHECK(mj_poll(runtime, 0) == i);
        CHECK(heard.done == 5 - i);
    }
    for (int i = 0; i < 5; i++) {
        mj_call(runtime, "quick", on_done, &heard, "");
    }
    CHECK(mj_poll(runtime, LONG_MAX) == 0);
    CHECK(mj_poll(runtime, LONG_MIN) == 0);
    mj_call(runtime, "nap", on_done, &heard, "");
    CHECK(mj_poll(runtime, 1000) == 1);
    struct timespec before, after;
    clock_gettime(CLOCK_MONOTONIC, &before);
    CHECK(mj_poll(runtime, 500000000) ==
          1); /* nothing is ready: it does not use its budget up */
    clock_gettime(CLOCK_MONOTONIC, &after);
    CHECK(after.tv_sec - before.tv_sec < 100);
    mj_close(runtime);
}

static void call_again(mj_runtime *runtime, mj_task task, int status, const mj_results *results,
                       void *arg) {
    struct heard *heard = arg;
    on_done(runtime, task, status, results, arg);
    if (heard->done < 3) {
        CHECK(mj_call(runtime, "quick", call_again, arg, "") != 0);
    } else {
        CHECK(mj_run(runtime) == MJ_USAGE);
        CHECK(mj_poll(runtime, 0) == MJ_USAGE);
        CHECK(load(runtime, "loaded = true") == MJ_OK);
    }
}

static void callbacks_call(void) {
    struct heard heard;
    mj_runtime *runtime = open_and_load(&heard, sleeper);
    mj_call(runtime, "quick", call_again, &heard, "");
    CHECK(mj_run(runtime) == MJ_OK);
    CHECK(heard.done == 3);
    mj_close(runtime);
}

static void ten_thousand_tasks(void) {
    struct heard heard;
    mj_runtime *runtime =
        open_and_load(&heard, "mj = require('moonjay') ended = 0\n"
                              "local function one(i) mj.sleep(0.05) ended = ended + i end\n"
                              "function start() for i = 1, 10000 do mj.spawn(one, 1) end end\n"
                              "function get() return ended end");
    mj_call(runtime, "start", on_done, &heard, "");
    CHECK(mj_run(runtime) == MJ_OK);
    mj_call(runtime, "get", on_done, &heard, "");
    CHECK(mj_run(runtime) == MJ_OK);
    CHECK(heard.number == 10000);
    mj_close(runtime);
}

/* In a fresh runtime, so that every task takes memory, and collecting for it calls finalizers. */
static void finalizers_spawn(void) {
    struct heard heard;
    mj_runtime *runtime =
        open_and_load(&heard, "mj = require('moonjay') collectgarbage('setstepmul', 20)\n"
                              "function litter()\n"
                              "  local ran, spawned = 0, 0\n"
                              "  local function run() ran = ran + 1 mj.sleep(1000) end\n"
                              "  for i = 1, 3000 do\n"
                              "    getmetatable(newproxy(true)).__gc = function()\n"
                              "      spawned = spawned + 1 mj.spawn(run) end\n"
                              "    mj.spawn(run)\n"
                              "  end\n"
                              "  collectgarbage()\n"
                              "  assert(spawned == 3000)\n"
                              "  repeat mj.sleep(0) until ran == 6000\n"
                              "end");
    mj_task task = mj_call(runtime, "litter", on_done, &heard, "");
    CHECK(task != 0);
    int live;
    do {
        live = mj_poll(runtime, 100000);
    } while (heard.done == 0);
    CHECK(live == 6000 && heard.statuses[0] == MJ_OK);
    mj_close(runtime);
}

/* Every collection calls finalizers that throw, also the one that keeping results may take. */
static void finalizers_throw(void) {
    struct heard heard;
    mj_runtime *runtime = open_and_load(
        &heard, "mj = require('moonjay')\n"
                "local armed\n"
                "local function throw() if armed then error('thrown') end end\n"
                "local function leave(i)\n"
                "  for j = 1, 5 do getmetatable(newproxy(true)).__gc = throw end\n"
                "  local text = ('x'):rep(i)\n"
                "  collectgarbage('restart') collectgarbage('setpause', 0)\n"
                "  collectgarbage('setstepmul', 100000)\n"
                "  armed = true\n"
                "  return text\n"
                "end\n"
                "function litter()\n"
                "  for i = 1, 500 do\n"
                "    local task = mj.spawn(leave, i)\n"
                "    collectgarbage('stop')\n"
                "    local ok, text = pcall(task.wait, task)\n"
                "    armed = false\n"
                "    assert(text == ('x'):rep(i))\n"
                "  end\n"
                "end");
    mj_call(runtime, "litter", on_done, &heard, "");
    CHECK(mj_run(runtime) == MJ_OK);
    CHECK(heard.statuses[0] == MJ_OK && heard.errors > 0);
    mj_close(runtime);
}

/* ---- memory ---- */

static void memory_limit_holds(void) {
    struct heard heard = {.done = 0};
    mj_runtime *runtime = open_with(&heard, 4000000);
    CHECK(load(runtime, "mj = require('moonjay')\n"
                        "function hog() local t = {} for i = 1, 1e7 do t[i] = i .. '' end end\n"
                        "function litter() for i = 1, 1000 do\n"
                        "  local s = ('x'):rep(100000) .. i mj.sleep(0) end return 'fine' end\n"
                        "function hold() held = ('x'):rep(2500000) end\n"
                        "function peak() return mj.counters().memory end") == MJ_OK);
    mj_call(runtime, "hog", on_done, &heard, "");
    mj_run(runtime);
    CHECK(heard.statuses[0] == MJ_ERROR && contains(heard.text, "not enough memory"));
    CHECK(load(runtime, "local t = {} for i = 1, 1e7 do t[i] = i .. '' end") == MJ_NOMEM);
    CHECK(load(runtime, "assert(jit == nil and not pcall(require, 'jit'))") == MJ_OK);
    mj_call(runtime, "peak", on_done, &heard, "");
    mj_run(runtime);
    CHECK(heard.number > 0 && heard.number <= 4000000);
    mj_call(runtime, "hold", on_done, &heard, "");
    mj_run(runtime);
    mj_call(runtime, "litter", on_done, &heard, "");
    mj_run(runtime);
    CHECK(heard.statuses[3] == MJ_OK && strcmp(heard.text, "fine") == 0);
    mj_close(runtime);
}

/* Whatever fails for lack of memory, and wherever: it ends, done is told once, nothing breaks. */
static void any_memory_limit_ends_cleanly(void) {
    static const char script[] =
        "mj = require('moonjay')\n"
        "local function nap(i) mj.sleep(0) return i, ('x'):rep(i * 10) end\n"
        "local function gen() for i = 1, 3 do mj.sleep(0) coroutine.yield(i) end end\n"
        "function work()\n"
        "  local tasks = {}\n"
        "  for i = 1, 50 do tasks[i] = mj.spawn(nap, i) end\n"
        "  mj.spawn(error, {}) mj.spawn(mj.sleep, 1000):cancel()\n"
        "  mj.deadline(0, mj.sleep, 1000)\n"
        "  for i in coroutine.wrap(gen) do tasks[#tasks + 1] = mj.spawn(nap, i) end\n"
        "  local results = mj.check(mj.all(tasks))\n"
        "  for i = 1, 1000 do tasks[i] = ('y'):rep(i) end\n"
        "  return #results\n"
        "end";
    int opened = 0, called = 0, worked = 0;
    for (size_t limit = 40000; limit < 1200000; limit += 777 + limit / 500) {
        struct heard heard = {.done = 0};
        mj_options options = {
            .size = sizeof options,
            .memory_limit = limit,
            .error = on_error,
            .error_arg = &heard,
        };
        mj_runtime *runtime = mj_open(&options, NULL, 0);
        if (runtime == NULL) {
            continue;
        }
        opened++;
        load(runtime, script);
        mj_task task = mj_call(runtime, "work", on_done, &heard, "");
        mj_run(runtime);
        CHECK(heard.done == (task != 0));
        called += task != 0;
        worked += heard.statuses[0] == MJ_OK && heard.number == 53;
        mj_close(runtime);
    }
    CHECK(worked > 0);
    CHECK(called > worked);
    CHECK(opened > called);
}

/* ---- close ---- */

static void close_with_tasks(void) {
    struct heard heard;
    mj_runtime *runtime = open_and_load(&heard, sleeper);
    mj_call(runtime, "nap", on_done, &heard, "");
    CHECK(load(runtime, "for i = 1, 100 do mj.spawn(function()\n"
                        "  mj.deadline(500, function() mj.spawn(nap):wait(100) end) end) end\n"
                        "local t = mj.spawn(nap)\n"
                        "mj.spawn(function() mj.all { t, t } end)\n"
                        "mj.spawn(function() coroutine.wrap(nap)() end)\n"
                        "local p = newproxy(true)\n"
                        "getmetatable(p).__gc = function() mj.spawn(nap) end") == MJ_OK);
    mj_poll(runtime, 1000000);
    mj_call(runtime, "quick", on_done, &heard, "");
    mj_close(runtime);
    CHECK(heard.done == 2);
    CHECK(heard.statuses[0] == MJ_CANCELLED && heard.statuses[1] == MJ_CANCELLED);
    CHECK(heard.errors == 0);
}

static void call_while_closing(mj_runtime *runtime, mj_task task, int status,
                               const mj_results *results, void *arg) {
    on_done(runtime, task, status, results, arg);
    CHECK(mj_call(runtime, "quick", on_done, arg, "") == 0);
    CHECK(load(runtime, "x = 1") == MJ_ERROR);
    CHECK(contains(mj_error(runtime), "closing"));
    mj_cancel(runtime, task);
}

static void close_refuses_work(void) {
    struct heard heard;
    mj_runtime *runtime = open_and_load(&heard, sleeper);
    mj_call(runtime, "nap", call_while_closing, &heard, "");
    mj_poll(runtime, 1000);
    mj_close(runtime);
    CHECK(heard.done == 1);
}

/* ---- os.exit(code, true) inside a task ---- */

static mj_runtime *exiting; /* what the atexit function of the child closes */

static void close_at_exit(void) {
    mj_close(exiting);
}

static int exit_status(const char *script, bool at_exit) {
    fflush(stdout);
    pid_t child = fork();
    NEED(child >= 0);
    if (child == 0) {
        static struct heard heard;
        exiting = open_and_load(&heard, sleeper);
        NEED(load(exiting, script) == MJ_OK);
        mj_call(exiting, "nap", on_done, &heard, "");
        mj_call(exiting, "leave", on_done, &heard, "");
        if (at_exit) {
            atexit(close_at_exit);
        }
        mj_run(exiting);
        _exit(99);
    }
    int status;
    NEED(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void exits(void) {
    static const char leave[] =
        "function leave() mj.sleep(0)\n"
        "  local p = newproxy(true) getmetatable(p).__gc = function() pcall(mj.spawn, nap) "
        "end\n"
        "  mj.spawn(nap) mj.deadline(9, function() coroutine.wrap(function()\n"
        "    os.exit(41, true) end)() end) end";
    CHECK(exit_status(leave, false) == 41);
    CHECK(exit_status(leave, true) == 41);
    CHECK(exit_status("function leave() mj.sleep(0) os.exit(42) end", true) == 42);
}

/* ---- many runtimes, many threads ---- */

enum { THREADS = 4, POSTS = 1000 };

static const char thread_script[] =
    "mj = require('moonjay')\n"
    "function work(n)\n"
    "  local sum, tasks = 0, {}\n"
    "  for i = 1, n do tasks[i] = mj.spawn(function() mj.sleep(0.001) sum = sum + i end) end\n"
    "  assert(mj.all(tasks))\n"
    "  return sum\n"
    "end";

static void *run_thread(void *arg) {
    struct heard *heard = arg;
    mj_runtime *runtime = open_and_load(heard, thread_script);
    mj_call(runtime, "work", on_done, heard, "i", (int64_t)1000);
    mj_run(runtime);
    mj_close(runtime);
    return NULL;
}

static void runtimes_in_threads(void) {
    pthread_t threads[THREADS];
    static struct heard heard[THREADS];
    for (int i = 0; i < THREADS; i++) {
        NEED(pthread_create(&threads[i], NULL, run_thread, &heard[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        CHECK(heard[i].done == 1 && heard[i].statuses[0] == MJ_OK && heard[i].number == 500500);
    }
}

static void runtimes_side_by_side(void) {
    struct heard one, two;
    mj_runtime *first = open_and_load(&one, "x = 'first' function get() return x end");
    mj_runtime *second = open_and_load(&two, "x = 'second' function get() return x end");
    mj_call(first, "get", on_done, &one, "");
    mj_call(second, "get", on_done, &two, "");
    while (one.done == 0 || two.done == 0) {
        mj_poll(second, 0);
        mj_poll(first, 0);
    }
    CHECK(strcmp(one.text, "first") == 0 && strcmp(two.text, "second") == 0);
    mj_close(first);
    mj_close(second);
}

struct poster {
    mj_runtime *runtime;
    pthread_t thread, home;
    int ran, strangers;
};

static void posted(mj_runtime *runtime, void *arg) {
    struct poster *poster = arg;
    poster->ran++;
    poster->strangers += !pthread_equal(pthread_self(), poster->home);
    if (poster->ran == POSTS) {
        CHECK(mj_call(runtime, "quick", NULL, NULL, "") != 0);
    }
}

static void *post_many(void *arg) {
    struct poster *poster = arg;
    for (int i = 0; i < POSTS; i++) {
        NEED(mj_post(poster->runtime, posted, poster) == MJ_OK);
    }
    return NULL;
}

static void posts_from_threads(void) {
    struct heard heard;
    mj_runtime *runtime = open_and_load(&heard, sleeper);
    struct poster posters[THREADS];
    mj_task nap = mj_call(runtime, "nap", on_done, &heard, "");
    for (int i = 0; i < THREADS; i++) {
        posters[i] = (struct poster){.runtime = runtime, .home = pthread_self()};
        NEED(pthread_create(&posters[i].thread, NULL, post_many, &posters[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(posters[i].thread, NULL);
    }
    int live;
    do {
        live = mj_poll(runtime, 0);
    } while (live > 1);
    for (int i = 0; i < THREADS; i++) {
        CHECK(posters[i].ran == POSTS && posters[i].strangers == 0);
    }
    mj_cancel(runtime, nap);
    CHECK(mj_run(runtime) == MJ_OK);
    mj_close(runtime);
}

static void cancel_posted(mj_runtime *runtime, void *arg) {
    mj_cancel(runtime, *(mj_task *)arg);
}

static void *post_cancel(void *arg) {
    struct poster *poster = arg;
    static mj_task nap;
    nap = (mj_task)1 << 32 |
          1; /* the first task of a runtime: a guess that only a test may make */
    NEED(mj_post(poster->runtime, cancel_posted, &nap) == MJ_OK);
    return NULL;
}

/* mj_run blocks until the thread's post arrives, or for ever. */
static void post_wakes_a_run(void) {
    struct heard heard;
    mj_runtime *runtime = open_and_load(&heard, sleeper);
    struct poster poster = {.runtime = runtime};
    mj_call(runtime, "nap", on_done, &heard, "");
    NEED(pthread_create(&poster.thread, NULL, post_cancel, &poster) == 0);
    CHECK(mj_run(runtime) == MJ_OK);
    pthread_join(poster.thread, NULL);
    CHECK(heard.done == 1 && heard.statuses[0] == MJ_CANCELLED);
    mj_close(runtime);
}

static void count_posted(mj_runtime *runtime, void *arg) {
    (void)runtime;
    ++*(int *)arg;
}

static void posts_run_once(void) {
    struct heard heard;
    mj_runtime *runtime = open_and_load(&heard, sleeper);
    int ran = 0;
    CHECK(mj_post(runtime, count_posted, &ran) == MJ_OK);
    CHECK(ran == 0);
    CHECK(mj_run(runtime) == MJ_OK);
    CHECK(ran == 1);
    CHECK(mj_post(runtime, count_posted, &ran) == MJ_OK);
    mj_close(runtime);
    CHECK(ran == 2);
}

struct reposter {
    int ran, refused;
};

static void post_again(mj_runtime *runtime, void *arg) {
    struct reposter *reposter = arg;
    reposter->ran++;
    reposter->refused += mj_post(runtime, post_again, arg) == MJ_USAGE;
}

static void post_when_done(mj_runtime *runtime, mj_task task, int status,
                           const mj_results *results, void *arg) {
    (void)task, (void)results;
    CHECK(status == MJ_CANCELLED);
    post_again(runtime, arg);
}

static void posts_refused_while_closing(void) {
    struct heard heard;
    struct reposter reposter = {0}, done = {0};
    mj_runtime *runtime = open_and_load(&heard, sleeper);
    CHECK(mj_post(runtime, post_again, &reposter) == MJ_OK);
    mj_poll(runtime, 0);
    CHECK(reposter.ran == 1 && reposter.refused == 0);
    mj_call(runtime, "nap", post_when_done, &done, "");
    mj_close(runtime);
    CHECK(reposter.ran == 2 && reposter.refused == 1);
    CHECK(done.ran == 1 && done.refused == 1);
}

int main(void) {
    static const struct check checks[] = {
        {"a runtime opens without options and closes", open_without_options},
        {"options without their size are refused", refuse_options_without_size},
        {"a limit too small for a Lua state is refused in words", refuse_tiny_memory},
        {"with too few descriptors opening fails and the process lives", descriptors_run_out},
        {"a chunk that does not compile, fails or waits is refused in words", load_refusals},
        {"a loaded chunk may spawn tasks", loaded_chunk_spawns},
        {"arguments of every type go in, results come out", arguments_and_results},
        {"a call of what is no function, or with a bad type, is refused", calls_refused},
        {"an error reaches done with text and traceback, or else the host", failed_call},
        {"errors that are no text are told all the same", odd_errors},
        {"a cancelled call ends as cancelled, and stale ids are harmless", cancelled_calls},
        {"poll runs at least one step, and stops when its budget is over",
         poll_stays_in_its_budget},
        {"a done function may call again, but not run", callbacks_call},
        {"ten thousand tasks sleep at once", ten_thousand_tasks},
        {"finalizers may spawn while tasks are spawned", finalizers_spawn},
        {"what finalizers throw loses no task's results", finalizers_throw},
        {"the memory limit holds, and the runtime lives on", memory_limit_holds},
        {"at any memory limit a run ends cleanly", any_memory_limit_ends_cleanly},
        {"closing tells every pending done once", close_with_tasks},
        {"a closing runtime takes no work", close_refuses_work},
        {"os.exit inside a task ends the process cleanly", exits},
        {"runtimes run in threads of their own", runtimes_in_threads},
        {"runtimes share nothing", runtimes_side_by_side},
        {"posts from other threads all run on the runtime's thread", posts_from_threads},
        {"a post wakes a run that waits", post_wakes_a_run},
        {"a posted function runs once, at the latest at the close", posts_run_once},
        {"a closing runtime refuses posts", posts_refused_while_closing},
    };
    return check_all(checks, sizeof checks / sizeof *checks);
}
