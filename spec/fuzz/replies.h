/* replies.h: a parser held against all the ways its bytes may come.
 *
 * Bytes are read as a connection reads them: a line is parsed again until it is whole, and so is
 * one whose small value is not whole; a large value goes to a place of its own. */
#ifndef REPLIES_H
#define REPLIES_H

#include "wire.h"

#include "words.h"

typedef int replies_parse(const char *bytes, size_t size, struct mj__reply *);
/* Reads a line, without its CRLF, anew, and says whether the reply is what it said. */
typedef void replies_judge(const char *line, size_t size, const struct mj__reply *);

/* Feeds the input whole, byte by byte and at random cuts: the same replies must come. */
void replies_check(replies_parse *, replies_judge *, const uint8_t *data, size_t size);

/* An error line of either protocol, read anew. */
void judge_error(const char *line, size_t size, const struct mj__reply *);

#endif
