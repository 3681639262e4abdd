/* sweep.h: one round of a sweep: a scenario in which one call, or more, fails. */
#ifndef SWEEP_H
#define SWEEP_H

#include "error.h"
#include "fault.h"

#define SWEEP_KIND(kind) (1u << (kind))

struct sweep_round {
    const struct fault_way *way; /* NULL: nothing fails */
    uint64_t number;             /* of this round in this process: no key is used twice */
    uint32_t kinds;              /* of the errors that were met */
    char fault[512];             /* what was wrong; "": nothing */
};
extern struct sweep_round sweep_round;

/* Notes the first thing that is wrong in this round. */
void sweep_note(const char *format, ...) __attribute__((format(printf, 1, 2)));
#define SWEEP_CHECK(condition) \
    ((condition) ? (void)0 : sweep_note("%s:%d: %s", __FILE__, __LINE__, #condition))

/* Nothing fails, or nobody may notice. */
bool sweep_harmless(void);
/* Meets an error: it has a kind that may come of this way to fail (or is one of `expected`, which
 * come by themselves), and words. */
void sweep_meet(enum mj__kind kind, enum mj__phase phase, const char *text, uint32_t expected);

/* The scenarios, and a round with nothing but a fresh connection (a fresh runtime): all well? */
void conn_play(void);
void conn_play_well(void);
void runtime_play(void);
void busy_play(void);
void runtime_play_well(void);

#endif
