/* A host with a memory limit, whose scripts hold large values; and the pool that is counted. */
#include "buffer.h"
#include "moonjay.h"

#include "check.h"

#include <signal.h>
#include <stdbool.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>

/* ---- the pool ---- */

static void pool_counts(void) {
    size_t used = 1000, size, other;
    struct mj__pool *pool = mj__pool_open(&used, 0);
    NEED(pool != NULL);
    char *block = mj__pool_take(pool, MJ__BLOCK, &size);
    NEED(block != NULL);
    CHECK(used == 1000 + size);
    mj__pool_give(pool, block, size);
    CHECK(used == 1000 + size); /* it is kept for the next */
    block = mj__pool_take(pool, MJ__BLOCK, &other);
    CHECK(used == 1000 + size);
    mj__pool_give(pool, block, other);
    mj__pool_trim(pool);
    CHECK(used == 1000);
    block = mj__pool_take(pool, 40 << 20, &size); /* too large to be kept */
    NEED(block != NULL);
    CHECK(used == 1000 + size);
    mj__pool_give(pool, block, size);
    mj__pool_close(pool);
    CHECK(used == 1000);
}

static void pool_keeps_to_the_limit(void) {
    enum { LIMIT = 1 << 20 };
    size_t used = 0, size;
    struct mj__pool *pool = mj__pool_open(&used, LIMIT);
    NEED(pool != NULL);
    CHECK(mj__pool_take(pool, LIMIT + 1, &size) == NULL);
    char *blocks[LIMIT / MJ__BLOCK];
    int count = 0;
    for (; count < LIMIT / MJ__BLOCK; count++) {
        blocks[count] = mj__pool_take(pool, MJ__BLOCK, &size);
        NEED(blocks[count] != NULL);
    }
    CHECK(used == LIMIT);
    CHECK(mj__pool_take(pool, MJ__BLOCK, &size) == NULL);
    while (count > 0) {
        mj__pool_give(pool, blocks[--count], MJ__BLOCK);
    }
    /* What it keeps makes room for a larger one. */
    char *large = mj__pool_take(pool, LIMIT / 2 + 1, &size);
    CHECK(large != NULL);
    CHECK(used <= LIMIT);
    mj__pool_give(pool, large, size);
    used += LIMIT; /* somebody else is over the limit */
    CHECK(mj__pool_take(pool, LIMIT / 4, &size) == NULL);
    used -= LIMIT;
    mj__pool_close(pool);
    CHECK(used == 0);
}

/* ---- scripts under a limit ---- */

static char path[64];
static pid_t server;

static bool answers(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, path, strlen(path) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool fine = connect(fd, (struct sockaddr *)&address, sizeof address) == 0;
    close(fd);
    return fine;
}

static void start_memcached(void) {
    snprintf(path, sizeof path, "/tmp/moonjay-memory-%d", (int)getpid());
    server = fork();
    NEED(server >= 0);
    if (server == 0) {
        const char *user = geteuid() == 0 ? "root" : "nobody";
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execlp("memcached", "memcached", "-u", user, "-m", "256", "-s", path, (char *)NULL);
        _exit(127);
    }
    for (int i = 0; i < 2000 && !answers(); i++) {
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    NEED(answers());
}

static void stop_memcached(void) {
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
    unlink(path);
}

/* What a call of the script's main(url) returned or threw. */
struct outcome {
    int status, errors;
    char text[512];
};

static void on_done(mj_runtime *runtime, mj_task task, int status, const mj_results *results,
                    void *arg) {
    struct outcome *outcome = arg;
    (void)runtime;
    (void)task;
    outcome->status = status;
    const char *text = mj_results_string(results, 0, NULL);
    snprintf(outcome->text, sizeof outcome->text, "%s", text != NULL ? text : "(none)");
}

static void on_error(mj_runtime *runtime, const char *text, void *arg) {
    struct outcome *outcome = arg;
    (void)runtime;
    (void)text;
    outcome->errors++;
}

/* The script has CONN, a connection, and COUNT values of SIZE bytes at k1, k2, ... */
static const char prelude[] =
    "local mj = require('moonjay')\n"
    "COUNT, SIZE = 50, 100000\n"
    "function fill(conn)\n"
    "  local value = ('x'):rep(SIZE)\n"
    "  for i = 1, COUNT do mj.check(conn:set('k' .. i, value)) end\n"
    "end\n"
    "function still_works(conn)\n"
    "  collectgarbage() collectgarbage()\n"
    "  local value, err = conn:get('nothing')\n"
    "  if value ~= nil or err ~= nil then return 'a miss is ' .. tostring(err) end\n"
    "  value, err = conn:get('k1')\n"
    "  if value == nil or #value ~= SIZE then return 'k1 is ' .. tostring(err) end\n"
    "  if conn:counters().inflight > 0 then return 'something is outstanding' end\n"
    "  return 'fine'\n"
    "end\n"
    "function is_memory(err)\n"
    "  return type(err) == 'table' and err.kind == 'no_memory'\n"
    "    or tostring(err):find('not enough memory', 1, true) ~= nil\n"
    "end\n"
    "function main(url)\n"
    "  local conn = mj.check(mj.connect(url .. '?timeout=30s'))\n"
    "  fill(conn)\n"
    "  collectgarbage() collectgarbage()\n"
    "  local said = body(conn)\n"
    "  if said ~= 'fine' then return said end\n"
    "  return still_works(conn)\n"
    "end\n";

static void run_script(const char *body, size_t limit) {
    struct outcome outcome = {.status = 1};
    mj_options options = {.size = sizeof options,
                          .memory_limit = limit,
                          .error = on_error,
                          .error_arg = &outcome};
    char error[256], url[96];
    mj_runtime *runtime = mj_open(&options, error, sizeof error);
    NEED(runtime != NULL);
    snprintf(url, sizeof url, "memcache://%s", path);
    NEED(mj_load(runtime, "@prelude", prelude, sizeof prelude - 1) == MJ_OK);
    NEED(mj_load(runtime, "@body", body, strlen(body)) == MJ_OK);
    NEED(mj_call(runtime, "main", on_done, &outcome, "s", url) != 0);
    CHECK(mj_run(runtime) == MJ_OK);
    CHECK(outcome.status == MJ_OK);
    if (strcmp(outcome.text, "fine") != 0) {
        check_note(__FILE__, __LINE__, outcome.text);
    }
    mj_close(runtime);
}

/* From hardly more than one value to more than all of them. */
static void run_at_limits(const char *body) {
    for (size_t limit = 2000000; limit <= 12000000; limit += 1000000) {
        run_script(body, limit);
    }
}

static void gets_of_many_tasks(void) {
    run_at_limits(
        "local mj = require('moonjay')\n"
        "function body(conn)\n"
        "  local tasks, keep, said = {}, {}, 'fine'\n"
        "  for i = 1, COUNT do tasks[i] = mj.spawn(function()\n"
        "    local ok, value, err = pcall(conn.get, conn, 'k' .. i)\n"
        "    if ok and value then keep[i] = value\n"
        "    elseif not is_memory(ok and err or value) then\n"
        "      said = ok and err == nil and 'a miss' or tostring(ok and err or value)\n"
        "    end\n"
        "  end) end\n"
        "  for i = 1, COUNT do tasks[i]:wait() end\n"
        "  return said\n"
        "end\n");
}

static void get_many(void) {
    run_at_limits(
        "function body(conn)\n"
        "  local keys = {}\n"
        "  for i = 1, COUNT do keys[i] = 'k' .. i end\n"
        "  local ok, found, errors = pcall(conn.get_many, conn, keys)\n"
        "  if not ok then return is_memory(found) and 'fine' or tostring(found) end\n"
        "  if not found then return is_memory(errors) and 'fine' or tostring(errors) end\n"
        "  for i = 1, COUNT do\n"
        "    local err = errors and errors[keys[i]]\n"
        "    if not found[keys[i]] and not (err and is_memory(err)) then\n"
        "      return 'a miss of ' .. keys[i] .. ': ' .. tostring(err)\n"
        "    end\n"
        "  end\n"
        "  return 'fine'\n"
        "end\n");
}

static void pipelines(void) {
    run_at_limits(
        "function body(conn)\n"
        "  local pipeline = conn:pipeline()\n"
        "  for i = 1, COUNT do pipeline:get('k' .. i) end\n"
        "  local ok, replies, err = pcall(pipeline.run, pipeline)\n"
        "  if not ok then return is_memory(replies) and 'fine' or tostring(replies) end\n"
        "  if not replies then return is_memory(err) and 'fine' or tostring(err) end\n"
        "  for i = 1, COUNT do\n"
        "    if replies[i] == nil and not is_memory(replies.errors[i]) then\n"
        "      return 'a miss: ' .. tostring(replies.errors[i])\n"
        "    end\n"
        "  end\n"
        "  return 'fine'\n"
        "end\n");
}

static void values_into_buffers(void) {
    run_at_limits(
        "function body(conn)\n"
        "  local keep, new = {}, require('string.buffer').new\n"
        "  for i = 1, COUNT do\n"
        "    local made, buffer = pcall(new)\n"
        "    if not made then break end\n"
        "    local ok, value, err = pcall(conn.get, conn, 'k' .. i, { into = buffer })\n"
        "    if ok and value then\n"
        "      if #value ~= SIZE then return 'a cut value' end\n"
        "      keep[#keep + 1] = value\n"
        "    elseif not is_memory(ok and err or value) then\n"
        "      return ok and err == nil and 'a miss' or tostring(ok and err or value)\n"
        "    end\n"
        "  end\n"
        "  return 'fine'\n"
        "end\n");
}

int main(void) {
    static const struct check checks[] = {
        {"the pool counts what it lends and keeps", pool_counts},
        {"the pool keeps to the limit, and gives up what it keeps first",
         pool_keeps_to_the_limit},
        {"under a limit many gets end with a value or no_memory, never a miss",
         gets_of_many_tasks},
        {"under a limit get_many ends with values or no_memory, never a miss", get_many},
        {"under a limit a pipeline ends with values or no_memory, never a miss", pipelines},
        {"under a limit a value goes whole into a buffer or not at all", values_into_buffers},
    };
    start_memcached();
    int status = check_all(checks, sizeof checks / sizeof *checks);
    stop_memcached();
    return status;
}
