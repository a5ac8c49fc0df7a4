/* The functions of traceprof_context.h as a library, for other languages. How to build it stands there. */
#define TRACEPROF_CONTEXT_API __attribute__((visibility("default")))
#include "traceprof_context.h"
