/* Named threads that each use a given CPU time from SIGUSR1 on, by their own clocks, part of it
 * inside the kernel. Afterwards they sleep.
 *
 *     busy_named THREADS MILLISECONDS [PENDING]
 *
 * With PENDING the user may have only this many more pending signals than at the start.
 */
#include "team.h"
#include <sys/resource.h>

APART uint64_t in_user_mode(uint64_t x) { CHAIN(x, 400000); return x; }

APART void in_the_kernel(const struct member *member) {
    for (int i = 0; i < 4; i++)
        read_zeros(member, BUFFER_BYTES);
}

static void work(struct member *member) {
    while (spent_ns(member) < budget_ns && !stop) {
        member->x = in_user_mode(member->x);
        in_the_kernel(member);
    }
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
    if (argc > 3)
        limit_pending(atoi(argv[3]));
    return run_team(argc > 1 ? atoi(argv[1]) : 8, argc > 2 ? argv[2] : "1000");
}
