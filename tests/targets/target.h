/* Code that all C targets share: it prints "ready" once the target is up, runs until SIGTERM,
 * prints "key value" lines and exits with the targets' own code. */
#ifndef TARGET_H
#define TARGET_H
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define OWN_EXIT_CODE 17
/* One body per function: no inlining, cloning, folding of equal bodies, or tail calls into it. */
#define APART __attribute__((noipa, noinline, aligned(64)))

static volatile sig_atomic_t stop;

static void on_sigterm(int signal) {
    (void)signal;
    stop = 1;
}

__attribute__((unused)) static void target_ready(void) {
    struct sigaction action = {.sa_handler = on_sigterm, .sa_flags = SA_RESTART};
    sigaction(SIGTERM, &action, NULL);
    /* Where yama lets only parents trace, a test's recorder is only a sibling. */
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    puts("ready");
    fflush(stdout);
}

static inline uint64_t clock_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* A chain of dependent multiplications, whose speed does not depend on alignment or on caches. */
#define CHAIN(x, steps)                                                                            \
    for (uint64_t step = 0; step < (steps); step++)                                                \
        (x) = (x) * 6364136223846793005u + 1442695040888963407u
#endif
