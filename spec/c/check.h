/* check.h: the least that a test in C needs.
 *
 * A program is a table of tests, each a sentence and a function. One line a test goes to
 * standard output ("ok SENTENCE", "not ok SENTENCE: WHERE: WHAT"); the exit status is 1 if one
 * failed. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHECK_SECONDS = 120 };

static char check_failure[512];

/* Notes the first failure of a test; the test goes on. */
static void check_note(const char *file, int line, const char *what) {
    if (check_failure[0] == '\0') {
        snprintf(check_failure, sizeof check_failure, "%s:%d: %.400s", file, line, what);
    }
}

#define CHECK(condition) ((condition) ? (void)0 : check_note(__FILE__, __LINE__, #condition))

/* For what a test is built on: without it there is no going on. */
#define NEED(condition)                                                               \
    ((condition) ? (void)0                                                            \
                 : (printf("not ok: %s:%d: %s: %s\n", __FILE__, __LINE__, #condition, \
                           strerror(errno)),                                          \
                    exit(1)))

struct check {
    const char *sentence;
    void (*run)(void);
};

/* A program that hangs is ended by SIGALRM. */
static int check_all(const struct check *checks, size_t count) {
    alarm(CHECK_SECONDS);
    size_t failed = 0;
    for (size_t i = 0; i < count; i++) {
        check_failure[0] = '\0';
        checks[i].run();
        if (check_failure[0] == '\0') {
            printf("ok %s\n", checks[i].sentence);
        } else {
            printf("not ok %s: %s\n", checks[i].sentence, check_failure);
            failed++;
        }
        fflush(stdout);
    }
    return failed > 0;
}

/* Runs a test in a process of its own that has only descriptors 0 to 2 and may open no others
 * than those below `limit`. What it returns is the result; -1 when the process ended
 * otherwise. */
static inline int check_with_descriptors(int limit, int (*run)(void)) {
    pid_t child = fork();
    NEED(child >= 0);
    if (child == 0) {
        NEED(close_range(3, ~0U, 0) == 0);
        struct rlimit few = {.rlim_cur = (rlim_t)limit, .rlim_max = (rlim_t)limit};
        NEED(setrlimit(RLIMIT_NOFILE, &few) == 0);
        _exit(100 + run()); /* so that an exit by somebody else is not taken for ours */
    }
    int status;
    NEED(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) && WEXITSTATUS(status) >= 100 ? WEXITSTATUS(status) - 100 : -1;
}

#endif
