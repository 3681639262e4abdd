/* fuzz.h: what the targets share: a condition that must hold, text that grows, cuts.
 *
 * A target is one function of an input. libFuzzer calls it with bytes it makes up, replay.c with
 * those of the corpus. */
#ifndef FUZZ_H
#define FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Ends the process by SIGABRT, which libFuzzer takes for a finding. */
_Noreturn void fuzz_failed(const char *file, int line, const char *what);
#define HOLDS(condition) ((condition) ? (void)0 : fuzz_failed(__FILE__, __LINE__, #condition))

/* ---- text ------------------------------------------------------------------------------- */

/* All zero is empty. */
struct text {
    char *bytes;
    size_t size, room;
};

void text_add(struct text *, const void *bytes, size_t size);
void text_print(struct text *, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* "4:abcd": bytes that cannot be confused with what stands around them. */
void text_quote(struct text *, const void *bytes, size_t size);
void text_drop(struct text *, size_t size); /* from the front */
void text_clear(struct text *);
void text_free(struct text *);
/* Never NULL. */
const char *text_bytes(const struct text *);
bool text_same(const struct text *, const struct text *);
/* They must be the same, and are shown where they are not. */
void text_agree(const char *what, const struct text *, const struct text *);

/* ---- cuts ------------------------------------------------------------------------------- */

enum cut { WHOLE, BYTES, CRUMBS, CHUNKS, CUTS }; /* crumbs: 1 to 16 bytes */

struct knife {
    enum cut cut;
    uint64_t state;
};

/* Random cuts follow from the input, so that a finding can be repeated. */
struct knife knife_for(enum cut, const uint8_t *data, size_t size);
/* How many of `left` bytes come next: 1 to left. */
size_t knife_next(struct knife *, size_t left);

#endif
