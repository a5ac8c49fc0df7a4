/* A child that uses its parent's memory until it is asked to execute a program, beside a parent
 * that computes. SIGUSR1 makes the child execute a program, which computes as well.
 *
 * It prints `guest PID` before it is ready. The child exits with its parent.
 */
#include "target.h"
#include <sched.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define STACK (256 * 1024)
static volatile uint64_t sink;
static volatile sig_atomic_t is_asked;
static char stack[STACK] __attribute__((aligned(64)));

APART uint64_t burn_executed(uint64_t x) { CHAIN(x, 100000); return x; }
APART uint64_t burn_beside(uint64_t x) { CHAIN(x, 100000); return x + 1; }

static void on_sigusr1(int signal) {
    (void)signal;
    is_asked = 1;
}

/* No call of the libc, which would use the parent's thread block. */
static int guest(void *program) {
    char *words[] = {program, "burn", NULL}, *environment[] = {NULL};
    struct timespec nap = {.tv_nsec = 1000000};
    while (!is_asked)
        syscall(SYS_nanosleep, &nap, NULL);
    syscall(SYS_execve, "/proc/self/exe", words, environment);
    syscall(SYS_exit_group, 1);
    return 1;
}

int main(int argc, char **argv) {
    if (argc > 1) {
        prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
        prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
        for (;;)
            sink = burn_executed(sink);
    }
    signal(SIGUSR1, on_sigusr1);
    pid_t child = clone(guest, stack + STACK, CLONE_VM | SIGCHLD, argv[0]);
    if (child < 0)
        return 1;
    printf("guest %d\n", (int)child);
    target_ready();
    while (!stop)
        sink = burn_beside(sink);
    kill(child, SIGKILL);
    return waitpid(child, NULL, 0) == child ? OWN_EXIT_CODE : 1;
}
