/* One body under several names, whose times have the ratios that the names say, and one leaf under
 * three callers. Each thread measures every call with its own CPU clock.
 *
 *     ratios MILLISECONDS [PERCENT]
 *
 * With PERCENT, kernel_8 has this much more work than its name says.
 */
#include "team.h"

#define KINDS 7
#define UNIT 12000u

static uint64_t spent[KINDS], percent;

#define KERNEL(times)                                                                              \
    APART uint64_t kernel_##times(uint64_t x, uint64_t steps) { CHAIN(x, steps * times); return x; }
KERNEL(1)
KERNEL(2)
KERNEL(4)

/* The function that can be slowed down. The additional work is of the same kind, in the same
 * function. */
APART uint64_t kernel_8(uint64_t x, uint64_t steps) {
    CHAIN(x, steps * 8);
    CHAIN(x, steps * 8 * percent / 100);
    return x;
}

APART uint64_t leaf(uint64_t x, uint64_t steps) { CHAIN(x, steps); return x; }

/* The addition after the call keeps the call from becoming a jump. */
APART uint64_t parent_50(uint64_t x, uint64_t steps) { return leaf(x, steps * 5) + 1; }
APART uint64_t parent_30(uint64_t x, uint64_t steps) { return leaf(x, steps * 3) + 2; }
APART uint64_t parent_20(uint64_t x, uint64_t steps) { return leaf(x, steps * 2) + 3; }

static const struct {
    const char *name;
    uint64_t (*call)(uint64_t x, uint64_t steps);
} kinds[KINDS] = {
    {"kernel_1", kernel_1},   {"kernel_2", kernel_2},   {"kernel_4", kernel_4},   {"kernel_8", kernel_8},
    {"parent_50", parent_50}, {"parent_30", parent_30}, {"parent_20", parent_20},
};

static void work(struct member *member) {
    uint64_t random = 88172645463325252u, before = spent_ns(member);
    while (before < budget_ns && !stop) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        /* Rounds of changing length, so that nothing is in step with a sampling period. */
        uint64_t steps = UNIT + random % (UNIT * 8);
        for (int kind = 0; kind < KINDS; kind++) {
            member->x = kinds[kind].call(member->x, steps);
            uint64_t now = spent_ns(member);
            spent[kind] += now - before;
            before = now;
        }
    }
    /* From now on the thread only sleeps. */
    for (int kind = 0; kind < KINDS; kind++)
        printf("%s %llu\n", kinds[kind].name, (unsigned long long)spent[kind]);
    fflush(stdout);
}

int main(int argc, char **argv) {
    percent = argc > 2 ? strtoull(argv[2], NULL, 10) : 0;
    return run_team(1, argc > 1 ? argv[1] : "1000");
}
