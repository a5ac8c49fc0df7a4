/* Very short threads, AT-A-TIME at the same time. The main thread creates and joins them from
 * SIGUSR1 on, until it has used a given CPU time by its own clock. Then it sleeps.
 *
 *     storm AT-A-TIME MICROSECONDS MILLISECONDS
 *
 * A thread computes for MICROSECONDS. It does not read a clock: the program measures the number of
 * loops before.
 */
#include "target.h"

#define THREADS_MAX 64

static volatile int go;
static volatile uint64_t sink;
static unsigned loops;

static void on_sigusr1(int signal) {
    (void)signal;
    go = 1;
}

APART void *short_work(void *unused) {
    (void)unused;
    uint64_t x = 1;
    CHAIN(x, loops);
    sink = x;
    return NULL;
}

/* Loops of a millisecond, from the fastest of some attempts. */
static uint64_t loops_per_ms(void) {
    const unsigned long tried = 200000;
    uint64_t least_ns = UINT64_MAX;
    for (int i = 0; i < 20; i++) {
        uint64_t x = 1, start = clock_ns(CLOCK_THREAD_CPUTIME_ID), used;
        CHAIN(x, tried);
        sink = x;
        used = clock_ns(CLOCK_THREAD_CPUTIME_ID) - start;
        least_ns = used < least_ns ? used : least_ns;
    }
    return tried * 1000000u / (least_ns ? least_ns : 1);
}

APART void storm(int width) {
    pthread_t threads[THREADS_MAX];
    for (int i = 0; i < width; i++)
        if (pthread_create(&threads[i], NULL, short_work, NULL))
            abort();
    for (int i = 0; i < width; i++)
        pthread_join(threads[i], NULL);
}

int main(int argc, char **argv) {
    int width = argc > 1 ? atoi(argv[1]) : 16;
    uint64_t budget_ns = (argc > 3 ? strtoull(argv[3], NULL, 10) : 1000) * 1000000u;
    uint64_t before, starter_ns, all_ns;
    struct sigaction action = {.sa_handler = on_sigusr1, .sa_flags = SA_RESTART};
    loops = loops_per_ms() * (argc > 2 ? atoi(argv[2]) : 25) / 1000;
    sigaction(SIGUSR1, &action, NULL);
    target_ready();
    while (!go && !stop)
        usleep(1000);
    before = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    all_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    do {
        storm(width);
        starter_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID) - before;
    } while (starter_ns < budget_ns && !stop);
    all_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID) - all_ns;
    prctl(PR_SET_NAME, "storm-done", 0, 0, 0);
    while (!stop)
        usleep(10000);
    printf("starter_ns %llu\nall_ns %llu\n", (unsigned long long)starter_ns, (unsigned long long)all_ns);
    return OWN_EXIT_CODE;
}
