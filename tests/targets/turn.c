/* A plugin of `swap`, built twice with different NAMEs. */
#include "target.h"

#define JOIN(a, b) a##_##b
#define NAMED(prefix, name) JOIN(prefix, name)

APART uint64_t NAMED(work, NAME)(uint64_t x) { CHAIN(x, 100000); return x; }

uint64_t plugin_entry(uint64_t x) { return NAMED(work, NAME)(x) + 1; }
