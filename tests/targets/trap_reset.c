/* Computes, and from SIGUSR1 on changes SIGTRAP in ways in which applications may.
 *
 *     trap_reset default       reset it once, and use no CPU time for half a second
 *     trap_reset own           install its own handler, which counts
 *     trap_reset urgent        the same for SIGURG
 *     trap_reset all           reset all signals again and again, except those that it needs
 */
#include "target.h"

static volatile sig_atomic_t go, handled;
static volatile uint64_t sink;

static void on_sigusr1(int signal) {
    (void)signal;
    go = 1;
}

static void on_sigtrap(int signal) {
    (void)signal;
    handled++;
}

APART uint64_t before_the_reset(uint64_t x) { CHAIN(x, 200000); return x; }
APART uint64_t after_the_reset(uint64_t x) { CHAIN(x, 200000); return x; }

static void reset_all(void) {
    for (int number = 1; number < NSIG; number++)
        if (number != SIGTERM && number != SIGUSR1 && number != SIGKILL && number != SIGSTOP)
            signal(number, SIG_DFL);
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "default";
    struct sigaction usr1 = {.sa_handler = on_sigusr1, .sa_flags = SA_RESTART};
    struct sigaction own = {.sa_handler = on_sigtrap, .sa_flags = SA_RESTART};
    uint64_t x = 1, after = 0;
    sigaction(SIGUSR1, &usr1, NULL);
    target_ready();
    while (!go && !stop)
        sink = x = before_the_reset(x);
    if (!strcmp(what, "own"))
        sigaction(SIGTRAP, &own, NULL);
    else if (!strcmp(what, "urgent"))
        sigaction(SIGURG, &own, NULL);
    else
        signal(SIGTRAP, SIG_DFL);
    if (!strcmp(what, "default"))
        usleep(500000);
    while (!stop) {
        if (!strcmp(what, "all"))
            reset_all();
        sink = x = after_the_reset(x);
        after++;
    }
    printf("rounds %llu\n", (unsigned long long)after);
    printf("handled %d\n", (int)handled);
    return OWN_EXIT_CODE;
}
