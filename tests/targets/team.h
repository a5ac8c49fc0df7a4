/* A team of threads, "busy-0" and so on. From SIGUSR1 on each works for a budget of CPU time by
 * its own clock, and then sleeps until SIGTERM. At the end the program prints the time of each. */
#ifndef TEAM_H
#define TEAM_H
#include "target.h"
#include <fcntl.h>

#define TEAM_MAX 1024
#define BUFFER_BYTES (256 << 10)

struct member {
    uint64_t start_ns, x;
    char *buffer;
    int zero, index;
};

static volatile int go;
static uint64_t budget_ns, used_ns[TEAM_MAX];
static volatile uint64_t sink;

/* Defined by the program: uses the budget up, or stops. */
static void work(struct member *member);

static void on_sigusr1(int signal) {
    (void)signal;
    go = 1;
}

static uint64_t spent_ns(const struct member *member) {
    return clock_ns(CLOCK_THREAD_CPUTIME_ID) - member->start_ns;
}

__attribute__((unused)) static void read_zeros(const struct member *member, size_t bytes) {
    if (read(member->zero, member->buffer, bytes) < 0)
        abort();
}

static void *run_member(void *argument) {
    int index = (int)(intptr_t)argument;
    char name[16];
    struct member member = {0, 1, malloc(BUFFER_BYTES), open("/dev/zero", O_RDONLY), index};
    snprintf(name, sizeof name, "busy-%d", index);
    prctl(PR_SET_NAME, name, 0, 0, 0);
    while (!go && !stop)
        usleep(20000);
    member.start_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    work(&member);
    sink = member.x;
    used_ns[index] = spent_ns(&member);
    while (!stop)
        usleep(100000);
    return NULL;
}

/* Runs for the program's complete life. */
static int run_team(int count, const char *milliseconds) {
    static pthread_t threads[TEAM_MAX];
    struct sigaction action = {.sa_handler = on_sigusr1, .sa_flags = SA_RESTART};
    budget_ns = strtoull(milliseconds, NULL, 10) * 1000000u;
    sigaction(SIGUSR1, &action, NULL);
    for (int i = 0; i < count; i++)
        if (pthread_create(&threads[i], NULL, run_member, (void *)(intptr_t)i))
            return 1;
    target_ready();
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < count; i++)
        printf("used_%d %llu\n", i, (unsigned long long)used_ns[i]);
    return OWN_EXIT_CODE;
}
#endif
