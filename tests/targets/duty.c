/* Four threads that work for 1, 2, 3 and 4 ms of CPU time in each round of ten, and sleep for the
 * remainder.
 *
 *     duty MILLISECONDS
 *
 * MILLISECONDS is their total CPU time by their own clocks, from SIGUSR1 on.
 */
#include "team.h"

#define THREADS 4
#define ROUND_US 10000u

APART uint64_t in_duty(uint64_t x) { CHAIN(x, 2000); return x; }

static void work(struct member *member) {
    uint64_t part = (uint64_t)(member->index + 1), own_ns = budget_ns / 10 * part, end = 0;
    while (end < own_ns && !stop) {
        end += part * 1000000u;
        while (spent_ns(member) < end && !stop)
            member->x = in_duty(member->x);
        usleep(ROUND_US - part * 1000);
    }
}

int main(int argc, char **argv) { return run_team(THREADS, argc > 1 ? argv[1] : "1000"); }
