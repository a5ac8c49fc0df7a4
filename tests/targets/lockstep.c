/* Threads in step with a sampler: each works in rounds of a thousandth more than a period, with the
 * last half of a round inside the kernel. The sampler's expiries fall into one half for hundreds of
 * rounds, then into the other. The last sixth of the time is user mode only.
 *
 *     lockstep THREADS MILLISECONDS [PERIOD_NS]
 *
 * MILLISECONDS is their CPU time by their own clocks, from SIGUSR1 on. Then they sleep.
 */
#include "team.h"

/* Longer than a handler takes: the thread was not running. */
#define AWAY_NS 100000

static uint64_t round_ns;

/* The time that the thread has been running since the round began. */
struct round {
    uint64_t last, ran;
};

static void pass(struct round *round) {
    uint64_t now = clock_ns(CLOCK_MONOTONIC), step = now - round->last;
    round->ran += step < AWAY_NS ? step : 0;
    round->last = now;
}

APART uint64_t in_user_mode(uint64_t x) { CHAIN(x, 500); return x; }

APART void in_the_kernel(const struct member *member) { read_zeros(member, 64 << 10); }

static void work(struct member *member) {
    struct round round = {.last = clock_ns(CLOCK_MONOTONIC)};
    for (uint64_t used = 0; used < budget_ns && !stop; used = spent_ns(member)) {
        int is_in_step = used < budget_ns / 6 * 5;
        while (round.ran < (is_in_step ? round_ns / 2 : round_ns)) {
            member->x = in_user_mode(member->x);
            pass(&round);
        }
        while (round.ran < round_ns) {
            in_the_kernel(member);
            pass(&round);
        }
        round.ran -= round_ns;
    }
}

int main(int argc, char **argv) {
    round_ns = argc > 3 ? strtoull(argv[3], NULL, 10) : 1001001;
    round_ns += round_ns / 1000;
    return run_team(argc > 1 ? atoi(argv[1]) : 2, argc > 2 ? argv[2] : "1000");
}
