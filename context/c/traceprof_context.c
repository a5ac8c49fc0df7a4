/* The functions of traceprof_context.h as a library, for other languages. That header says how
 * to build it. */
#define TRACEPROF_CONTEXT_API __attribute__((visibility("default")))
#include "traceprof_context.h"
