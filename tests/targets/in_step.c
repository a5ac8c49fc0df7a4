/* A thread whose rounds of CPU time are as long as a sampling period: three tenths of each in one
 * function, the remainder in another.
 *
 *     in_step MILLISECONDS PERIOD_NS
 *
 * Prints the times in both functions by the thread's CPU clock.
 */
#include "team.h"

static uint64_t round_ns, spent[2];

/* Both run to the end of their part of the round. */
APART uint64_t first_part(struct member *member, uint64_t end) {
    uint64_t now;
    do {
        CHAIN(member->x, 500);
        now = spent_ns(member);
    } while (now < end);
    return now;
}

APART uint64_t second_part(struct member *member, uint64_t end) {
    uint64_t now;
    do {
        CHAIN(member->x, 500);
        now = spent_ns(member);
    } while (now < end);
    return now;
}

static void work(struct member *member) {
    uint64_t start = 0, at = 0, next;
    for (; at < budget_ns && !stop; start += round_ns) {
        next = first_part(member, start + round_ns / 10 * 3);
        spent[0] += next - at;
        at = second_part(member, start + round_ns);
        spent[1] += at - next;
    }
    printf("first_part %llu\nsecond_part %llu\n", (unsigned long long)spent[0],
           (unsigned long long)spent[1]);
    fflush(stdout);
}

int main(int argc, char **argv) {
    round_ns = argc > 2 ? strtoull(argv[2], NULL, 10) : 1001001;
    return run_team(1, argc > 1 ? argv[1] : "1000");
}
