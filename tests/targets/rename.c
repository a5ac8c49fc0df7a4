/* A thread, started at SIGUSR1, that is called "first", then "second", and exits. */
#include "target.h"
#include <sys/syscall.h>

static volatile uint64_t sink;
static volatile sig_atomic_t begin;

static void on_sigusr1(int signal) {
    (void)signal;
    begin = 1;
}

APART uint64_t named_work(uint64_t until_ns) {
    uint64_t x = 1;
    do {
        CHAIN(x, 2000);
    } while (clock_ns(CLOCK_THREAD_CPUTIME_ID) < until_ns);
    return x;
}

static void *thread_main(void *unused) {
    (void)unused;
    printf("start_ns %llu\n", (unsigned long long)clock_ns(CLOCK_MONOTONIC));
    pthread_setname_np(pthread_self(), "first");
    sink = named_work(200000000);
    pthread_setname_np(pthread_self(), "second");
    sink = named_work(400000000);
    printf("tid %ld\n", syscall(SYS_gettid));
    printf("end_ns %llu\n", (unsigned long long)clock_ns(CLOCK_MONOTONIC));
    return NULL;
}

int main(void) {
    struct sigaction action = {.sa_handler = on_sigusr1, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    target_ready();
    while (!begin && !stop)
        usleep(1000);
    pthread_t thread;
    printf("created_ns %llu\n", (unsigned long long)clock_ns(CLOCK_MONOTONIC));
    if (pthread_create(&thread, NULL, thread_main, NULL) || pthread_join(thread, NULL))
        return 1;
    printf("joined_ns %llu\n", (unsigned long long)clock_ns(CLOCK_MONOTONIC));
    while (!stop)
        usleep(1000);
    return OWN_EXIT_CODE;
}
