/* N threads that sleep and one that works: the threads that an attach must visit. Prints the
 * longest time for which the worker did not run since the last SIGUSR1.
 *
 *     many_threads N
 */
#include "target.h"

static volatile uint64_t sink;
static int up;
static volatile sig_atomic_t forget;

static void on_sigusr1(int signal) {
    (void)signal;
    forget = 1;
}

static void *asleep(void *unused) {
    (void)unused;
    struct timespec long_time = {.tv_sec = 3600};
    __atomic_add_fetch(&up, 1, __ATOMIC_SEQ_CST);
    nanosleep(&long_time, NULL);
    return NULL;
}

APART uint64_t lone_worker(uint64_t x) { CHAIN(x, 200000); return x; }

int main(int argc, char **argv) {
    int count = argc > 1 ? atoi(argv[1]) : 100;
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 << 10);
    for (int i = 0; i < count; i++) {
        pthread_t thread;
        if (pthread_create(&thread, &small, asleep, NULL))
            return 1;
    }
    while (__atomic_load_n(&up, __ATOMIC_SEQ_CST) < count)
        usleep(1000);
    struct sigaction action = {.sa_handler = on_sigusr1, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    target_ready();
    uint64_t shortest = UINT64_MAX, longest = 0;
    while (!stop) {
        uint64_t start = clock_ns(CLOCK_MONOTONIC), taken;
        sink = lone_worker(sink) + 1;
        taken = clock_ns(CLOCK_MONOTONIC) - start;
        shortest = taken < shortest ? taken : shortest;
        longest = taken > longest && !forget ? taken : forget ? 0 : longest;
        forget = 0;
    }
    printf("kept_us %llu\n", (unsigned long long)(longest - (shortest < longest ? shortest : longest)) / 1000);
    return OWN_EXIT_CODE;
}
