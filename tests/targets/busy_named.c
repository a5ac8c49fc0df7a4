/* Threads with names of their own that use a given CPU time each, by their own clocks, from SIGUSR1
 * on, a part of it inside the kernel; then they sleep.
 *
 *     busy_named THREADS MILLISECONDS [PENDING]
 *
 * With PENDING the user may have only so many more signals pending than there are at the start.
 */
#include "target.h"
#include <fcntl.h>
#include <sys/resource.h>

#define THREADS_MAX 1024

static volatile int go;
static uint64_t used_ns[THREADS_MAX];
static uint64_t budget_ns;
static volatile uint64_t sink;

static void on_sigusr1(int signal) {
    (void)signal;
    go = 1;
}

APART uint64_t in_user_mode(uint64_t x) { CHAIN(x, 400000); return x; }

APART void in_the_kernel(int zero, char *buffer) {
    for (int i = 0; i < 4; i++)
        if (read(zero, buffer, 256 << 10) < 0)
            abort();
}

static void *busy(void *argument) {
    int index = (int)(intptr_t)argument;
    char name[16], *buffer = malloc(256 << 10);
    int zero = open("/dev/zero", O_RDONLY);
    uint64_t x = 1, before;
    snprintf(name, sizeof name, "busy-%d", index);
    prctl(PR_SET_NAME, name, 0, 0, 0);
    while (!go && !stop)
        usleep(1000);
    before = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    while (clock_ns(CLOCK_THREAD_CPUTIME_ID) - before < budget_ns && !stop) {
        x = in_user_mode(x);
        in_the_kernel(zero, buffer);
    }
    sink = x;
    used_ns[index] = clock_ns(CLOCK_THREAD_CPUTIME_ID) - before;
    while (!stop)
        usleep(100000);
    return NULL;
}

static void limit_pending(int more) {
    char line[256];
    unsigned long queued = 0;
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status))
        if (sscanf(line, "SigQ: %lu/", &queued) == 1)
            break;
    struct rlimit limit = {.rlim_cur = queued + more, .rlim_max = queued + more};
    setrlimit(RLIMIT_SIGPENDING, &limit);
}

int main(int argc, char **argv) {
    int count = argc > 1 ? atoi(argv[1]) : 8;
    pthread_t threads[THREADS_MAX];
    struct sigaction action = {.sa_handler = on_sigusr1, .sa_flags = SA_RESTART};
    budget_ns = (argc > 2 ? strtoull(argv[2], NULL, 10) : 1000) * 1000000u;
    if (argc > 3)
        limit_pending(atoi(argv[3]));
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
