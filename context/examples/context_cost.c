/* Like context_cost.rs, for the C API: prints lines "WHAT MEAN P50 P99 P999", in nanoseconds per call. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <x86intrin.h>

#include "traceprof_context.h"

#define BATCH 32
#define BATCHES 200000

static uint64_t batches[BATCHES];
static double per_ns;

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int compare(const void *one, const void *other) {
    uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;
    return (a > b) - (a < b);
}

static double at(size_t share) { return (double)batches[BATCHES / 1000 * share] / BATCH / per_ns; }

static void report(const char *what) {
    double sum = 0;
    qsort(batches, BATCHES, sizeof batches[0], compare);
    for (size_t batch = 0; batch < BATCHES; batch++) {
        sum += (double)batches[batch];
    }
    printf("%s %.2f %.2f %.2f %.2f\n", what, sum / BATCHES / BATCH / per_ns, at(500), at(990), at(999));
}

/* The first of two rounds warms up. */
#define MEASURE(what, call)                                                                              \
    do {                                                                                                 \
        uint64_t turn = 1;                                                                               \
        for (size_t batch = 0; batch < 2 * BATCHES; batch++) {                                           \
            uint64_t from = __rdtsc();                                                                   \
            for (int count = 0; count < BATCH; count++) {                                                \
                turn++;                                                                                  \
                __asm__ volatile("" : "+r"(turn));                                                       \
                call;                                                                                    \
            }                                                                                            \
            batches[batch % BATCHES] = __rdtsc() - from;                                                 \
        }                                                                                                \
        report(what);                                                                                    \
    } while (0)

int main(void) {
    const uint32_t tags[TRACEPROF_CONTEXT_TAGS] = {7, 7, 7, 7, 7, 7, 7, 7, 7, 7};
    uint64_t ticks = __rdtsc(), since = now_ns();
    int tenant = traceprof_context_tag_number("tenant");
    while (now_ns() - since < 200000000u) {
    }
    per_ns = (double)(__rdtsc() - ticks) / (double)(now_ns() - since);
    MEASURE("c_set", traceprof_context_set(turn, 1));
    MEASURE("c_set_and_tag", traceprof_context_set(turn, 1);
            traceprof_context_set_tag(tenant, (uint32_t)turn));
    MEASURE("c_set_all", traceprof_context_set_all(turn, 1, tags));
    return 0;
}
