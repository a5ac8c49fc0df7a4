/* Threads that enter a new span as fast as they can. Root and tags follow from the span, so that
 * a mix of two spans is visible. Every second span is the span before it with other tags. Prints
 * how many there were. */
#include "target.h"

#include "../../context/include/traceprof_context.h"

#define THREADS 2

static uint64_t updates[THREADS];

static void *update(void *of) {
    uint64_t *count = of;
    uint64_t x = (uintptr_t)of;
    while (!stop) {
        CHAIN(x, 1);
        for (uint32_t turn = 1; turn <= 2; turn++) {
            uint32_t tags[10];
            for (uint32_t place = 0; place < 10; place++)
                tags[place] = (uint32_t)(x >> 40) * 2 + turn + place * 77;
            traceprof_context_set_all(x, x * 0x9E3779B97F4A7C15u, tags);
            ++*count;
        }
    }
    return NULL;
}

int main(void) {
    char name[] = "t0";
    for (; name[1] <= '9'; name[1]++)
        traceprof_context_tag_number(name);
    target_ready();
    pthread_t threads[THREADS];
    for (int number = 0; number < THREADS; number++)
        if (pthread_create(&threads[number], NULL, update, &updates[number]) != 0)
            return 1;
    for (int number = 0; number < THREADS; number++)
        pthread_join(threads[number], NULL);
    uint64_t fewest = updates[0] < updates[1] ? updates[0] : updates[1];
    printf("updates_of_one %llu\n", (unsigned long long)fewest);
    printf("cpu_ns %llu\n", (unsigned long long)clock_ns(CLOCK_PROCESS_CPUTIME_ID));
    return OWN_EXIT_CODE;
}
