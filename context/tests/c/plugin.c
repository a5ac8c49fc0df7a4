/* A library that sets spans with the header, for a program that may do so as well. C and C++. */
#include "traceprof_context.h"

#ifdef __cplusplus
extern "C" {
#endif

void plugin_set(uint64_t span);
void plugin_set(uint64_t span) { traceprof_context_set(span, span + 1); }

#ifdef __cplusplus
}
#endif
