/* sim.h: a world in memory for one connection: its loop (loop.h), its stream (stream.h), its time.
 *
 * Nothing happens but what is asked for here: no system calls, no clock, no other process. So an
 * input plays the same way every time, and a thousand times faster than over a socket. */
#ifndef SIM_H
#define SIM_H

#include "loop.h"

#include "fuzz.h"

/* ---- the loop: what loop.h cannot do ------------------------------------------------------ */

/* Lets time pass; the next turn sees it. Between calls it stands still. */
void sim_pass(mj__time span);

/* ---- the server's end of the stream ------------------------------------------------------- */

/* What stands in a stream's fd: the system knows none such. */
enum { SIM_DESCRIPTOR = 1 << 20 };

/* The stream of a new world: nobody has connected yet. */
void sim_reset(void);
/* How often the client has connected. Each time is a new stream, with nothing in it. */
unsigned sim_connects(void);
bool sim_is_open(void); /* the client has not closed it */

/* What the client has written on this stream. */
const struct text *sim_written(void);
/* The most that a write takes from now on: 0 for nothing, SIZE_MAX for all. */
void sim_take(size_t limit);

/* Bytes that the client's next reads find. */
void sim_say(const void *bytes, size_t size);
/* There are some it has not read yet. */
bool sim_unread(void);
/* Behind them the stream ends (code 0), or breaks with this errno. */
void sim_hang_up(int code);

/* For the loop: whether a read, or a write, would do anything. */
bool sim_readable(void);
bool sim_writable(void);

#endif
