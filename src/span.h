/* span.h: time as a number. */
#ifndef MJ_SPAN_H
#define MJ_SPAN_H

#include <stdint.h>

typedef int64_t mj__time; /* monotonic nanoseconds; as a span: nanoseconds */

#define MJ__SECOND ((mj__time)1000000000)
#define MJ__NEVER INT64_MAX

#endif
