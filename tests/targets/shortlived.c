/* One thread after the other, each of which lives for one millisecond of CPU time. */
#include "target.h"

static uint64_t threads_ns;
static volatile uint64_t sink;

APART uint64_t short_lived_work(void) {
    uint64_t x = 1;
    do {
        CHAIN(x, 2000);
    } while (clock_ns(CLOCK_THREAD_CPUTIME_ID) < 1000000);
    return x;
}

static void *thread_main(void *unused) {
    (void)unused;
    prctl(PR_SET_NAME, "short", 0, 0, 0);
    sink = short_lived_work();
    threads_ns += clock_ns(CLOCK_THREAD_CPUTIME_ID);
    return NULL;
}

int main(void) {
    unsigned count = 0, failed = 0;
    target_ready();
    while (!stop) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, thread_main, NULL) || pthread_join(thread, NULL))
            failed++;
        else
            count++;
    }
    printf("threads %u\nfailed %u\n", count, failed);
    printf("threads_ns %llu\n", (unsigned long long)threads_ns);
    printf("starter_ns %llu\n", (unsigned long long)clock_ns(CLOCK_THREAD_CPUTIME_ID));
    printf("all_ns %llu\n", (unsigned long long)clock_ns(CLOCK_PROCESS_CPUTIME_ID));
    return OWN_EXIT_CODE;
}
