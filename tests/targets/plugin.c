/* Loaded by dlopen_late during a recording. */
#include "target.h"

APART uint64_t plugin_work(uint64_t x) { CHAIN(x, 2000000); return x; }

uint64_t plugin_entry(uint64_t x) { return plugin_work(x) + 1; }
