/* Forks all the time, from two threads beside one that computes, and checks how each child exits.
 *
 * A child only affects its own copy: it uses its own timers and signals, executes another program
 * or crashes. It exits with RIGHT if it got nothing that it did not ask for.
 */
#include "target.h"
#include <spawn.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define RIGHT 9
#define KINDS 7
#define FORKERS 2

static unsigned children[KINDS], wrong[KINDS], up;
static int last_status[KINDS];
static volatile sig_atomic_t strange, ticks;
static const char *self;
extern char **environ;

static void on_strange(int signal) { (void)signal; strange++; }
static void on_tick(int signal) { (void)signal; ticks++; }

APART uint64_t compute(uint64_t x) { CHAIN(x, 20000); return x; }

static int computes_for(uint64_t ns) {
    uint64_t right = compute(3), start = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    while (clock_ns(CLOCK_PROCESS_CPUTIME_ID) - start < ns)
        if (compute(3) != right)
            return 0;
    return 1;
}

/* Its own CPU timer, one signal of its own, and handlers for the kinds of signals that sample. */
static int own_signals(void) {
    struct sigaction strangers = {.sa_handler = on_strange}, tick = {.sa_handler = on_tick};
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
    struct itimerspec often = {{0, 1000000}, {0, 1000000}};
    timer_t timer;
    for (int signal = SIGRTMIN; signal <= SIGRTMAX; signal++)
        sigaction(signal, &strangers, NULL);
    sigaction(SIGTRAP, &strangers, NULL);
    sigaction(SIGURG, &strangers, NULL);
    sigaction(SIGWINCH, &strangers, NULL);
    sigaction(SIGUSR1, &tick, NULL);
    sigaction(SIGUSR2, &tick, NULL);
    if (timer_create(CLOCK_PROCESS_CPUTIME_ID, &event, &timer) || timer_settime(timer, 0, &often, NULL))
        return 1;
    raise(SIGUSR2);
    /* The kernel checks timers of CPU time at ticks, so few expire. */
    for (int tries = 0; ticks < 2 && tries < 200; tries++)
        if (!computes_for(5000000))
            return 2;
    return strange ? 6 : ticks < 2 ? 7 : RIGHT;
}

/* After an exec nothing that was inherited is left. */
static int after_exec(void) {
    char line[512];
    int found = 0;
    FILE *file = fopen("/proc/self/maps", "r");
    while (file && fgets(line, sizeof line, file))
        found += strstr(line, "SYSV") != NULL || strstr(line, "memfd:") != NULL;
    fclose(file);
    file = fopen("/proc/self/timers", "r");
    found += file && fgets(line, sizeof line, file) != NULL;
    for (int signal = 1; signal < SIGRTMIN; signal++) {
        struct sigaction now;
        if (sigaction(signal, NULL, &now) == 0 && now.sa_handler != SIG_DFL && now.sa_handler != SIG_IGN)
            found++;
    }
    return computes_for(2000000) && !found ? RIGHT : 3;
}

static void crash(int signal) {
    struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    if (signal == SIGTRAP)
        __asm__ volatile("int3");
    else
        *(volatile int *)(uintptr_t)strange = 0;
}

static void live(int kind) {
    switch (kind) {
    case 0:
        _exit(own_signals());
    case 1:
        execl(self, self, "executed", NULL);
        _exit(4);
    case 2:
        crash(SIGTRAP);
        _exit(5);
    case 3:
        crash(SIGSEGV);
        _exit(5);
    case 4:
        /* Ignored by default, whatever handler the parent has. */
        raise(SIGURG);
        raise(SIGWINCH);
        _exit(computes_for(2000000) ? RIGHT : 2);
    default:
        _exit(computes_for(5000000) ? RIGHT : 2);
    }
}

static pid_t start(int kind) {
    char *arguments[] = {(char *)self, "executed", NULL};
    pid_t child = -1;
    if (kind == 6)
        return posix_spawn(&child, self, NULL, NULL, arguments, environ) ? -1 : child;
    child = fork();
    if (child == 0)
        live(kind);
    return child;
}

static int is_right(int kind, int status) {
    int crashes = kind == 2 ? SIGTRAP : kind == 3 ? SIGSEGV : 0;
    return crashes ? WIFSIGNALED(status) && WTERMSIG(status) == crashes
                   : WIFEXITED(status) && WEXITSTATUS(status) == RIGHT;
}

static void *fork_all_the_time(void *first) {
    int kind = (int)(intptr_t)first;
    __atomic_add_fetch(&up, 1, __ATOMIC_SEQ_CST);
    while (!stop) {
        int status = 0;
        pid_t child = start(kind);
        if (child < 0 || waitpid(child, &status, 0) != child || !is_right(kind, status)) {
            last_status[kind] = status;
            __atomic_add_fetch(&wrong[kind], 1, __ATOMIC_SEQ_CST);
        }
        __atomic_add_fetch(&children[kind], 1, __ATOMIC_SEQ_CST);
        kind = (kind + 1) % KINDS;
    }
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t forkers[FORKERS];
    sigset_t term, before;
    self = argv[0];
    if (argc > 1)
        return after_exec();
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &term, &before);
    for (int i = 0; i < FORKERS; i++)
        if (pthread_create(&forkers[i], NULL, fork_all_the_time, (void *)(intptr_t)(i * KINDS / FORKERS)))
            return 1;
    while (__atomic_load_n(&up, __ATOMIC_SEQ_CST) < FORKERS)
        usleep(1000);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    target_ready();
    while (!stop)
        if (compute(3) != compute(3))
            wrong[0]++;
    for (int i = 0; i < FORKERS; i++)
        pthread_join(forkers[i], NULL);
    for (int i = 0; i < KINDS; i++)
        printf("children_%d %u\nwrong_%d %u\nstatus_%d %d\n", i, children[i], i, wrong[i], i, last_status[i]);
    return OWN_EXIT_CODE;
}
