/* Three copies of one kernel that take exactly 50, 30 and 20 percent of the work, each with its own
 * caller. Built without frame pointers.
 *
 *     split            until SIGTERM
 *     split ROUNDS     a fixed amount of work, for comparing speeds
 */
#include "target.h"

static uint64_t spent_ns[3];
/* Where the host stops a virtual machine for a while, a thread's clock may count that for one call:
 * what calls took beyond four times the fastest. */
static uint64_t jumps_ns;
static double fastest_ns = 1e9;
static volatile uint64_t sink;

APART uint64_t kernel_alpha(uint64_t x, uint64_t steps) { CHAIN(x, steps); return x; }
APART uint64_t kernel_beta(uint64_t x, uint64_t steps) { CHAIN(x, steps); return x; }
APART uint64_t kernel_gamma(uint64_t x, uint64_t steps) { CHAIN(x, steps); return x; }

/* The addition after the call keeps the call from becoming a jump. */
APART uint64_t caller_alpha(uint64_t steps) { return kernel_alpha(sink, steps) + 1; }
APART uint64_t caller_beta(uint64_t steps) { return kernel_beta(sink, steps) + 2; }
APART uint64_t caller_gamma(uint64_t steps) { return kernel_gamma(sink, steps) + 3; }

static void timed(int which, uint64_t (*caller)(uint64_t), uint64_t steps) {
    uint64_t start = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    sink = caller(steps);
    uint64_t took_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID) - start;
    spent_ns[which] += took_ns;
    double step_ns = (double)took_ns / (double)steps;
    fastest_ns = step_ns < fastest_ns ? step_ns : fastest_ns;
    if (step_ns > 4 * fastest_ns) {
        jumps_ns += took_ns - (uint64_t)(fastest_ns * (double)steps);
    }
}

int main(int argc, char **argv) {
    uint64_t rounds = argc > 1 ? strtoull(argv[1], NULL, 10) : UINT64_MAX;
    uint64_t random = 88172645463325252u;
    uint64_t start = clock_ns(CLOCK_MONOTONIC);
    target_ready();
    for (uint64_t round = 0; round < rounds && !stop; round++) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        /* Rounds of changing length: nothing here beats in time with a sampling period. */
        uint64_t unit = argc > 1 ? 10000 : 2000 + random % 16000;
        timed(0, caller_alpha, unit * 50);
        timed(1, caller_beta, unit * 30);
        timed(2, caller_gamma, unit * 20);
    }
    printf("wall_ns %llu\n", (unsigned long long)(clock_ns(CLOCK_MONOTONIC) - start));
    printf("alpha_ns %llu\n", (unsigned long long)spent_ns[0]);
    printf("beta_ns %llu\n", (unsigned long long)spent_ns[1]);
    printf("gamma_ns %llu\n", (unsigned long long)spent_ns[2]);
    printf("jumps_ns %llu\n", (unsigned long long)jumps_ns);
    return OWN_EXIT_CODE;
}
