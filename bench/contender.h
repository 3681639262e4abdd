/* contender.h: what a contender in C does beside its work: it takes a reading before and one
 * after, prints what lies between, and gives up where there is nothing to print. */
#ifndef BENCH_CONTENDER_H
#define BENCH_CONTENDER_H

#include <stddef.h>

enum { WELL = 0, WRONG = 1, MISUSED = 2, UNKNOWN = 3 }; /* exit status */

/* Says why on standard error, with the contender's name before it, and ends the program. */
_Noreturn void fail(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Zeroed; never NULL. */
void *allocate(size_t count, size_t size);

/* The number in the text, from least to most; ends the program on any other. */
double number(const char *what, const char *text, double least, double most);

/* Ends the program with WRONG where it has not ended by itself long after it should have. */
void be_patient(double seconds);

double now(void);

struct reading {
    double time, user, system;   /* seconds; of CPU, of the whole process */
    long voluntary, involuntary; /* context switches */
};

struct reading reading_take(void);

struct measured {
    const char *workload;
    unsigned long long operations;
    struct reading before, after;
    long long calls; /* system calls; negative where nobody counted */
};

/* The contender's one line of JSON. `more` is empty, or fields that begin with a comma. */
void measured_print(const struct measured *measured, const char *more);

#endif
