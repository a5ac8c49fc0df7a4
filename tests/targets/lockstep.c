/* Threads in step with a sampler: each works in rounds of a thousandth more than a period, the last
 * half of a round inside the kernel. A sampler's hits fall into the one part for hundreds of rounds,
 * then into the other. The last sixth of the time goes to user mode alone.
 *
 *     lockstep THREADS MILLISECONDS [PERIOD_NS]
 *
 * CPU time by their own clocks, from SIGUSR1 on; then they sleep.
 */
#include "target.h"
#include <fcntl.h>

#define THREADS_MAX 64
/* Longer than a handler takes: the thread was not running. */
#define AWAY_NS 100000

static volatile int go;
static uint64_t used_ns[THREADS_MAX];
static uint64_t budget_ns, round_ns;
static volatile uint64_t sink;

static void on_sigusr1(int signal) {
    (void)signal;
    go = 1;
}

/* The time the thread has been running since the round began. */
struct round {
    uint64_t last, ran;
};

static void pass(struct round *round) {
    uint64_t now = clock_ns(CLOCK_MONOTONIC), step = now - round->last;
    round->ran += step < AWAY_NS ? step : 0;
    round->last = now;
}

APART uint64_t in_user_mode(uint64_t x) { CHAIN(x, 500); return x; }

APART void in_the_kernel(int zero, char *buffer) {
    if (read(zero, buffer, 64 << 10) < 0)
        abort();
}

static void *busy(void *argument) {
    int index = (int)(intptr_t)argument;
    char name[16], *buffer = malloc(64 << 10);
    int zero = open("/dev/zero", O_RDONLY);
    uint64_t x = 1, before, used = 0;
    snprintf(name, sizeof name, "busy-%d", index);
    prctl(PR_SET_NAME, name, 0, 0, 0);
    while (!go && !stop)
        usleep(1000);
    before = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    struct round round = {.last = clock_ns(CLOCK_MONOTONIC)};
    while (used < budget_ns && !stop) {
        int is_in_step = used < budget_ns / 6 * 5;
        while (round.ran < (is_in_step ? round_ns / 2 : round_ns)) {
            x = in_user_mode(x);
            pass(&round);
        }
        while (round.ran < round_ns) {
            in_the_kernel(zero, buffer);
            pass(&round);
        }
        round.ran -= round_ns;
        used = clock_ns(CLOCK_THREAD_CPUTIME_ID) - before;
    }
    sink = x;
    used_ns[index] = clock_ns(CLOCK_THREAD_CPUTIME_ID) - before;
    while (!stop)
        usleep(100000);
    return NULL;
}

int main(int argc, char **argv) {
    int count = argc > 1 ? atoi(argv[1]) : 2;
    pthread_t threads[THREADS_MAX];
    struct sigaction action = {.sa_handler = on_sigusr1, .sa_flags = SA_RESTART};
    budget_ns = (argc > 2 ? strtoull(argv[2], NULL, 10) : 1000) * 1000000u;
    round_ns = argc > 3 ? strtoull(argv[3], NULL, 10) : 1001001;
    round_ns += round_ns / 1000;
    sigaction(SIGUSR1, &action, NULL);
    for (int i = 0; i < count; i++)
        if (pthread_create(&threads[i], NULL, busy, (void *)(intptr_t)i))
            return 1;
    target_ready();
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < count; i++)
        printf("used_%d %llu\n", i, (unsigned long long)used_ns[i]);
    return OWN_EXIT_CODE;
}
