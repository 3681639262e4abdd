/* spell.h: which of the known names was meant. A pure room. */
#ifndef MJ_SPELL_H
#define MJ_SPELL_H

#include <stddef.h>

/* The nearest of `count` names by edit distance (a swap of neighbours is 1, capitals count as
 * small letters), if it is near enough to be a slip (distance at most a third of the word, at
 * least 1, at most 3; the first of equals); else the only name that holds the whole word, of 4
 * bytes or more ("nodelay": tcp_nodelay); else NULL. */
const char *mj__nearest(const char *word, size_t size, const char *const *names, size_t count);

#endif
