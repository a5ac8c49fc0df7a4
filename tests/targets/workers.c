/* Starts workers one after the other, each of which works for a while and exits.
 *
 *     workers HOW COUNT MS
 *
 * HOW is "fork" for workers that are forked and execute nothing, or "spawn" for workers that
 * execute another program and use their parent's memory until then, as with posix_spawn. MS is the
 * CPU time of each. The program prints `worker PID US` for each worker that has exited, with the
 * CPU time that it used, in microseconds.
 */
#include "target.h"
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>

extern char **environ;
static volatile uint64_t sink;

APART uint64_t burn_forked(uint64_t x) { CHAIN(x, 100000); return x; }
APART uint64_t burn_spawned(uint64_t x) { CHAIN(x, 100000); return x + 1; }

static void work(uint64_t (*burn)(uint64_t), uint64_t ns) {
    while (clock_ns(CLOCK_PROCESS_CPUTIME_ID) < ns)
        sink = burn(sink);
}

int main(int argc, char **argv) {
    if (argc != 4)
        return 2;
    uint64_t ns = strtoull(argv[3], NULL, 10) * 1000000;
    if (!strcmp(argv[1], "burn")) {
        work(burn_spawned, ns);
        return 0;
    }
    int count = atoi(argv[2]), status;
    for (int i = 0; i < count; i++) {
        pid_t pid;
        if (!strcmp(argv[1], "fork")) {
            pid = fork();
            if (pid == 0) {
                work(burn_forked, ns);
                _exit(0);
            }
        } else {
            char *words[] = {argv[0], "burn", "0", argv[3], NULL};
            if (posix_spawn(&pid, "/proc/self/exe", NULL, NULL, words, environ))
                return 3;
        }
        struct rusage used;
        if (wait4(pid, &status, 0, &used) != pid || status)
            return 4;
        long us = (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000000L + used.ru_utime.tv_usec +
                  used.ru_stime.tv_usec;
        printf("worker %d %ld\n", (int)pid, us);
        fflush(stdout);
    }
    return OWN_EXIT_CODE;
}
