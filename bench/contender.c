/* contender.c: readings, the line, and the ends. */
#include "contender.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { PATIENCE = 5 }; /* seconds, beside those that it was to take */

void fail(int status, const char *format, ...) {
    va_list list;
    va_start(list, format);
    fprintf(stderr, "%s: ", program_invocation_short_name);
    vfprintf(stderr, format, list);
    va_end(list);
    fputc('\n', stderr);
    exit(status);
}

void *allocate(size_t count, size_t size) {
    void *memory = calloc(count, size);
    if (!memory)
        fail(WRONG, "out of memory");
    return memory;
}

double number(const char *what, const char *text, double least, double most) {
    char *end = NULL;
    double value = text ? strtod(text, &end) : 0;
    if (!text || end == text || *end || !(value >= least && value <= most))
        fail(MISUSED, "%s is %s; it takes %g to %g", what, text ? text : "missing", least,
             most);
    return value;
}

static void give_up(int signal_number) {
    (void)signal_number;
    static const char words[] = ": the server does not answer\n";
    const char *name = program_invocation_short_name;
    if (write(STDERR_FILENO, name, strlen(name)) > 0 &&
        write(STDERR_FILENO, words, sizeof words - 1) > 0)
        _exit(WRONG);
    _exit(WRONG);
}

void be_patient(double seconds) {
    signal(SIGALRM, give_up);
    alarm((unsigned)seconds + PATIENCE);
}

double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static double seconds_of(struct timeval time) {
    return (double)time.tv_sec + (double)time.tv_usec / 1e6;
}

struct reading reading_take(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (struct reading){
        .time = now(),
        .user = seconds_of(usage.ru_utime),
        .system = seconds_of(usage.ru_stime),
        .voluntary = usage.ru_nvcsw,
        .involuntary = usage.ru_nivcsw,
    };
}

void measured_print(const struct measured *measured, const char *more) {
    const struct reading *before = &measured->before, *after = &measured->after;
    printf("{\"workload\":\"%s\",\"operations\":%llu,\"seconds\":%.6f,\"user\":%.6f,"
           "\"system\":%.6f,\"voluntary\":%ld,\"involuntary\":%ld,\"calls\":",
           measured->workload, measured->operations, after->time - before->time,
           after->user - before->user, after->system - before->system,
           after->voluntary - before->voluntary, after->involuntary - before->involuntary);
    if (measured->calls < 0)
        printf("null%s}\n", more);
    else
        printf("%lld%s}\n", measured->calls, more);
}
