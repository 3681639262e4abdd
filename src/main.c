/* main.c: the program. A host like any other: it knows moonjay.h and nothing else of ours.
 *
 * It reads the command line, starts the private memcached where one is asked for, and hands the
 * arguments to the Lua module moonjay.cli, which runs the script as a task. */
#include "moonjay.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { EXIT_SCRIPT = 1, EXIT_USAGE = 2 };

static const char help[] =
    "usage: moonjay [run] [--memcached] SCRIPT [ARG...]\n"
    "\n"
    "Runs a Lua script as a task, until no task is left. A SCRIPT of - is read from standard\n"
    "input. The script finds its arguments in `arg` and `...`, as with lua.\n"
    "\n"
    "  --memcached            start the memcached found on PATH for this script alone, on a\n"
    "                         private unix socket; MEMCACHE_URL is its URL, and it ends with\n"
    "                         the script\n"
    "  --memcached-args ARGS  the same, with more arguments for memcached: \"-R 200 -t 1\"\n"
    "  --help                 print this\n"
    "  --version              print the version\n"
    "\n"
    "Exit status: 0 well, 1 the script failed, 2 bad usage.\n";

/* One line for the user. Returns the status of bad usage, so that a caller can end with it. */
__attribute__((format(printf, 1, 2))) static int complain(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fputs("moonjay: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    return EXIT_USAGE;
}

/* ---- the private memcached ----
 *
 * It must not outlive moonjay, not even when moonjay is killed. So a guard process stands
 * between the two: it starts memcached, and its end of a socket pair tells it when moonjay is
 * gone. Should the guard itself be killed, the kernel kills memcached (PDEATHSIG), and moonjay
 * sweeps up. */

enum {
    SERVER_START_MS = 10000, /* how long memcached may take until it accepts connections */
    SERVER_RETRY_MS = 2,
    SERVER_ARGS = 64,
    EXEC_FAILED = 127,
};

/* All of moonjay's own view, for its exit and its signal handler. */
static struct {
    int wire; /* -1: none. The guard watches the other end. */
    pid_t guard;
    pid_t owner; /* a child that the script forks must not stop its parent's memcached */
    char folder[32];
    char socket[48];
} server = {.wire = -1};

static const char server_ready[] = "ready";

static const int deadly_signals[] = {SIGINT, SIGTERM, SIGHUP};
enum { DEADLY_SIGNALS = sizeof deadly_signals / sizeof *deadly_signals };

static void server_sweep(void) {
    unlink(server.socket);
    rmdir(server.folder);
}

/* Ends memcached and waits until nothing of it is left. Async-signal-safe; may run again. */
static void server_stop(void) {
    if (server.guard <= 0 || server.owner != getpid())
        return;
    if (server.wire >= 0) {
        /* Not close alone: a process that the script forked may hold a copy. */
        shutdown(server.wire, SHUT_RDWR);
        close(server.wire);
        server.wire = -1;
    }
    while (waitpid(server.guard, NULL, 0) < 0 && errno == EINTR)
        continue;
    server_sweep();
}

/* Stops memcached first, then dies of the signal all the same, so that a shell sees it. */
static void on_deadly_signal(int number) {
    server_stop();
    signal(number, SIG_DFL);
    raise(number);
}

/* ---- the guard ---- */

static void on_child(int number) {
    (void)number; /* it only has to interrupt ppoll; moonjay's own end sends it too */
}

/* Waits at most `ms` (negative: no limit), or until a child ends. True: moonjay is gone: the wire
 * says so, unless a process that the script forked holds on to it; then that moonjay is no longer
 * the guard's parent. */
static bool guard_wait(int wire, int ms) {
    if (getppid() != server.owner)
        return true;
    struct pollfd watch = {.fd = wire, .events = POLLIN};
    struct timespec limit = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
    sigset_t none;
    sigemptyset(&none);
    return ppoll(&watch, 1, ms < 0 ? NULL : &limit, &none) > 0 || getppid() != server.owner;
}

/* Its own session, so that Ctrl-C in a terminal is moonjay's alone; SIGCHLD only while it
 * polls, so that none is missed. It holds none of the script's input and output. */
static void guard_settle(void) {
    static const int ignored[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE};
    sigset_t blocked;
    setsid();
    for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++)
        signal(ignored[i], SIG_IGN);
    sigaction(SIGCHLD, &(struct sigaction){.sa_handler = on_child}, NULL);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGCHLD);
    sigprocmask(SIG_SETMASK, &blocked, NULL);
    prctl(PR_SET_PDEATHSIG, SIGCHLD);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null >= 0) {
        dup2(null, STDIN_FILENO);
        dup2(null, STDOUT_FILENO);
        close(null);
    }
}

/* In the child of the guard: becomes memcached, with more arguments after ours. */
static _Noreturn void server_exec(const char *more, pid_t guard) {
    char *argv[SERVER_ARGS + 1] = {"memcached", "-s", server.socket, "-a", "0700", "-m", "64"};
    char *words = strdup(more);
    int count = 7;
    sigset_t none;
    /* As root memcached wants a user to become. With the user it has already, no credentials
     * change, which would clear PDEATHSIG. */
    if (geteuid() == 0) {
        argv[count++] = "-u";
        argv[count++] = "root";
    }
    if (!words)
        _exit(1);
    for (char *word = strtok(words, " \t"); word && count < SERVER_ARGS;
         word = strtok(NULL, " \t"))
        argv[count++] = word;
    for (int i = 1; i < NSIG; i++)
        signal(i, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() == guard)
        execvp(argv[0], argv);
    _exit(EXEC_FAILED);
}

static bool server_answers(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, server.socket, sizeof server.socket);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool answers = fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0;
    if (fd >= 0)
        close(fd);
    return answers;
}

static long now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Waits until memcached accepts connections. NULL when it does, else why not; *pid is 0 once
 * memcached has ended. */
static const char *guard_await(int wire, pid_t *pid) {
    long deadline = now_ms() + SERVER_START_MS;
    while (!server_answers()) {
        int status;
        if (waitpid(*pid, &status, WNOHANG) != 0) {
            *pid = 0;
            return WIFEXITED(status) && WEXITSTATUS(status) == EXEC_FAILED
                       ? "memcached is not on PATH: install the package memcached"
                       : "memcached ended as soon as it was started";
        }
        if (now_ms() > deadline)
            return "memcached did not accept connections within 10 seconds";
        if (guard_wait(wire, SERVER_RETRY_MS))
            return "moonjay is gone";
    }
    return NULL;
}

/* Says one word to moonjay. False: it is gone. */
static bool guard_say(int wire, const char *word) {
    return write(wire, word, strlen(word)) >= 0;
}

/* Makes the folder, and tells moonjay at once, which sweeps up should the guard be killed; and
 * only now, in its own session, where no signal to moonjay's process group can reach it. Then
 * starts memcached in it. NULL, or why not; *pid is memcached, or 0. */
static const char *guard_start(int wire, const char *more, pid_t *pid) {
    pid_t self = getpid();
    strcpy(server.folder, "/tmp/moonjay-XXXXXX");
    if (!mkdtemp(server.folder))
        return "cannot make a folder in /tmp for memcached";
    snprintf(server.socket, sizeof server.socket, "%s/socket", server.folder);
    if (!guard_say(wire, server.folder))
        return "moonjay is gone";
    *pid = fork();
    if (*pid == 0)
        server_exec(more, self);
    return *pid > 0 ? guard_await(wire, pid) : "cannot start a process for memcached";
}

/* Starts memcached and says that it is ready, or what failed; then waits until moonjay or
 * memcached ends, and leaves nothing behind. */
static _Noreturn void guard_run(int wire, const char *more) {
    pid_t pid = 0;
    guard_settle();
    const char *failure = guard_start(wire, more, &pid);
    bool wanted = guard_say(wire, failure ? failure : server_ready) && !failure;
    while (wanted && pid > 0 && !guard_wait(wire, -1))
        if (waitpid(pid, NULL, WNOHANG) == pid)
            pid = 0;
    if (pid > 0) {
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
    }
    server_sweep();
    _exit(0);
}

/* ---- and back in moonjay ---- */

/* Takes the guard's words: the folder ("/..."), then that memcached is ready, or else what
 * failed. 0, or a status after the complaint. */
static int server_await(void) {
    char word[128];
    for (;;) {
        ssize_t size = read(server.wire, word, sizeof word - 1);
        if (size < 0 && errno == EINTR)
            continue;
        if (size <= 0)
            return complain("the guard of memcached was killed");
        word[size] = '\0';
        if (strcmp(word, server_ready) == 0)
            return 0;
        if (word[0] != '/')
            return complain("%s", word);
        snprintf(server.folder, sizeof server.folder, "%.31s", word);
        snprintf(server.socket, sizeof server.socket, "%s/socket", server.folder);
    }
}

/* The guard, with its end of the wire; forked before anything else is opened, so that it holds
 * nothing of the script's. 0, or -1 with errno. */
static int server_guard(const char *more) {
    int wire[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, wire) < 0)
        return -1;
    server.owner = getpid();
    pid_t guard = fork();
    if (guard == 0) {
        close(wire[0]);
        guard_run(wire[1], more);
    }
    close(wire[1]);
    server.wire = wire[0];
    server.guard = guard;
    return guard < 0 ? -1 : 0;
}

static void catch_deadly_signals(void) {
    for (int i = 0; i < DEADLY_SIGNALS; i++) {
        struct sigaction action;
        sigaction(deadly_signals[i], NULL, &action);
        if (action.sa_handler != SIG_IGN) /* nohup ignores SIGHUP: it stays so */
            signal(deadly_signals[i], on_deadly_signal);
    }
}

/* Starts a private memcached with these further arguments; MEMCACHE_URL points at it. 0, or a
 * status after the complaint. */
static int server_start(const char *more) {
    char url[sizeof server.socket + sizeof "memcache://"];
    sigset_t deadly, before;
    sigemptyset(&deadly);
    for (int i = 0; i < DEADLY_SIGNALS; i++)
        sigaddset(&deadly, deadly_signals[i]);
    sigprocmask(SIG_BLOCK, &deadly, &before);
    if (server_guard(more) < 0)
        return complain("cannot start memcached: %s", strerror(errno));
    atexit(server_stop);
    catch_deadly_signals();
    sigprocmask(SIG_SETMASK, &before, NULL);
    int status = server_await();
    snprintf(url, sizeof url, "memcache://%s", server.socket);
    if (status == 0 && setenv("MEMCACHE_URL", url, 1) < 0)
        status = complain("cannot set MEMCACHE_URL: %s", strerror(errno));
    return status;
}

/* ---- the script ---- */

static const char bootstrap[] = "function moonjay_program(...)\n"
                                "  moonjay_program = nil\n"
                                "  return require('moonjay.cli').run(...)\n"
                                "end\n";

static void report(mj_runtime *runtime, const char *text, void *arg) {
    (void)runtime;
    (void)arg;
    complain("%s", text);
}

/* moonjay.cli returned the exit status, and a line for the user where it is not 0. */
static void on_script_done(mj_runtime *runtime, mj_task task, int status,
                           const mj_results *results, void *arg) {
    int *exit_status = arg;
    size_t size;
    (void)runtime;
    (void)task;
    if (status == MJ_OK) {
        *exit_status = (int)mj_results_number(results, 0, EXIT_SCRIPT);
        const char *line = mj_results_string(results, 1, &size);
        if (line)
            complain("%s", line);
        return;
    }
    *exit_status = EXIT_SCRIPT;
    const char *text = mj_results_traceback(results);
    if (*text == '\0')
        text = mj_results_string(results, 0, &size);
    complain("%s", text ? text : "the script was cancelled");
}

/* All of argv as one block, each word ended by a NUL. NULL: no memory. */
static char *pack_words(int count, char **words, size_t *size) {
    *size = 0;
    for (int i = 0; i < count; i++)
        *size += strlen(words[i]) + 1;
    char *packed = malloc(*size), *at = packed;
    for (int i = 0; packed && i < count; i++)
        at = stpcpy(at, words[i]) + 1;
    return packed;
}

/* Runs argv[script] until no task is left. Returns the exit status. */
static int run_script(int argc, char **argv, int script) {
    mj_options options = {.size = sizeof options, .error = report};
    char error[256];
    int status = EXIT_SCRIPT;
    size_t size;
    char *packed = pack_words(argc, argv, &size);
    mj_runtime *runtime = packed ? mj_open(&options, error, sizeof error) : NULL;
    if (!runtime) {
        complain("%s", packed ? error : "out of memory");
    } else if (mj_load(runtime, "=moonjay", bootstrap, sizeof bootstrap - 1) != MJ_OK ||
               mj_call(runtime, "moonjay_program", on_script_done, &status, "ib",
                       (int64_t)script, packed, size) == 0) {
        complain("%s", mj_error(runtime));
    } else if (mj_run(runtime) != MJ_OK && status == 0) {
        status = EXIT_SCRIPT;
    }
    mj_close(runtime);
    free(packed);
    return status;
}

/* ---- the command line ---- */

struct command {
    int script; /* its place in argv; 0: there is nothing to run */
    const char
        *memcached;    /* further arguments of the private memcached; NULL: none is wanted */
    const char *print; /* the text that --help and --version ask for */
};

/* Returns 0, or a status after the complaint. */
static int read_command_line(int argc, char **argv, struct command *command) {
    int at = argc > 1 && strcmp(argv[1], "run") == 0 ? 2 : 1;
    for (; at < argc && argv[at][0] == '-' && argv[at][1] != '\0'; at++) {
        const char *option = argv[at];
        if (strcmp(option, "--") == 0) {
            at++;
            break;
        } else if (strcmp(option, "--memcached") == 0) {
            command->memcached = command->memcached ? command->memcached : "";
        } else if (strcmp(option, "--memcached-args") == 0 && at + 1 < argc) {
            command->memcached = argv[++at];
        } else if (strcmp(option, "--memcached-args") == 0) {
            return complain("--memcached-args needs a value; try moonjay --help");
        } else if (strcmp(option, "--help") == 0 || strcmp(option, "-h") == 0) {
            command->print = help;
            return 0;
        } else if (strcmp(option, "--version") == 0) {
            command->print = "moonjay " MOONJAY_VERSION "\n";
            return 0;
        } else {
            return complain("unknown option %s; try moonjay --help", option);
        }
    }
    if (at >= argc)
        return complain("which SCRIPT? usage: moonjay [run] [--memcached] SCRIPT [ARG...]");
    command->script = at;
    return 0;
}

/* Nothing that is opened later may come to stand where a standard stream was closed. */
static void fill_standard_streams(void) {
    int fd;
    do
        fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd > STDERR_FILENO)
        close(fd);
}

int main(int argc, char **argv) {
    struct command command = {0};
    fill_standard_streams();
    /* Line by line: what a script printed is not lost when a signal ends it. */
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
    /* Large values come and go: without this, each would map fresh pages and give them back,
     * which costs more than to read the value. A matter of the whole process, so the program
     * decides it, not the library. */
    mallopt(M_MMAP_THRESHOLD, 32 << 20); /* the most that glibc takes */
    mallopt(M_TRIM_THRESHOLD, 128 << 20);
    int status = read_command_line(argc, argv, &command);
    if (status == 0 && command.print)
        fputs(command.print, stdout);
    if (status == 0 && command.script && command.memcached)
        status = server_start(command.memcached);
    if (status == 0 && command.script)
        status = run_script(argc, argv, command.script);
    return status;
}
