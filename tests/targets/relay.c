/* Works for a while, then executes the next program. Built several times under other names: the
 * functions of each are named after WHO.
 *
 *     relay HOW MS [PROGRAM ARGUMENT...]
 *
 * MS is milliseconds of CPU time, or "wait" for until SIGTERM. HOW says which thread executes the
 * next program: "main", or "thread" for the last of three that work beside the first. With "fork"
 * it leaves a child behind, which works until its parent exits. With "strict" it then enters
 * seccomp's strict mode, which permits only a few system calls, and works until SIGTERM.
 */
#include "target.h"
#include <linux/seccomp.h>
#include <sys/syscall.h>

#define GLUE2(a, b) a##b
#define GLUE(a, b) GLUE2(a, b)
#define TEXT2(a) #a
#define TEXT(a) TEXT2(a)
#define BURN GLUE(burn_, WHO)
#define LEAD GLUE(lead_, WHO)

static volatile uint64_t sinks[4];
static uint64_t budget_ns;
static char **next;

APART uint64_t BURN(uint64_t x) { CHAIN(x, 100000); return x; }
/* The addition after the call keeps the call from becoming a jump. */
APART uint64_t LEAD(uint64_t x) { return BURN(x) + 1; }

static void work(int thread) {
    uint64_t start = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    while (!stop && clock_ns(CLOCK_THREAD_CPUTIME_ID) - start < budget_ns)
        sinks[thread] = LEAD(sinks[thread]);
}

static int go_on(void) {
    /* The CPU time of the process, including that of the loader and of earlier programs. */
    printf(TEXT(WHO) "_ns %llu\n", (unsigned long long)clock_ns(CLOCK_PROCESS_CPUTIME_ID));
    fflush(stdout);
    if (!*next)
        return OWN_EXIT_CODE;
    execv(*next, next);
    perror(*next);
    return 1;
}

static void *run(void *argument) {
    int thread = (int)(intptr_t)argument;
    work(thread);
    if (thread == 3)
        exit(go_on());
    pause();
    return NULL;
}

int main(int argc, char **argv) {
    if (argc < 3)
        return 2;
    next = argv + 3;
    budget_ns = strcmp(argv[2], "wait") ? strtoull(argv[2], NULL, 10) * 1000000 : UINT64_MAX;
    target_ready();
    if (!strcmp(argv[1], "fork") && fork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;)
            sinks[0] = LEAD(sinks[0]);
    }
    if (!strcmp(argv[1], "strict")) {
        if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT))
            return 1;
        while (!stop)
            sinks[0] = LEAD(sinks[0]);
        syscall(SYS_exit, OWN_EXIT_CODE);
    }
    if (strcmp(argv[1], "thread")) {
        work(0);
        return go_on();
    }
    for (intptr_t thread = 1; thread <= 3; thread++) {
        pthread_t handle;
        pthread_create(&handle, NULL, run, (void *)thread);
    }
    work(0);
    for (;;)
        pause();
}
