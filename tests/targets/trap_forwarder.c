/* Puts a handler over that of SIGTRAP on SIGUSR1, and forwards to that one, as crash reporters do.
 * From then on it raises traps of its own. Every one must reach both of its handlers once.
 *
 *     trap_forwarder call       calls the handler below its own, with "handled": its own first one
 *     trap_forwarder bare       calls it with the signal's number alone
 */
#include "target.h"

static volatile sig_atomic_t go, is_own, handled, below_handled, is_bare;
static volatile uint64_t sink;
static struct sigaction below;

static void on_sigusr1(int signal) {
    (void)signal;
    go = 1;
}

static void on_first(int signal) {
    (void)signal;
    below_handled += is_own;
}

/* Kernel and traceprof send SIGTRAP with other codes. */
static void on_sigtrap(int signal, siginfo_t *info, void *context) {
    is_own = info->si_code == SI_TKILL || info->si_code == SI_KERNEL;
    handled += is_own;
    if (is_bare)
        below.sa_sigaction(signal, (siginfo_t *)8, (void *)3);
    else
        below.sa_sigaction(signal, info, context);
    is_own = 0;
}

int main(int argc, char **argv) {
    struct sigaction usr1 = {.sa_handler = on_sigusr1, .sa_flags = SA_RESTART};
    struct sigaction first = {.sa_handler = on_first, .sa_flags = SA_RESTART};
    struct sigaction over = {.sa_sigaction = on_sigtrap, .sa_flags = SA_RESTART | SA_SIGINFO};
    int raised = 0;
    uint64_t x = 1;
    is_bare = argc > 1 && !strcmp(argv[1], "bare");
    sigaction(SIGUSR1, &usr1, NULL);
    if (argc > 2)
        sigaction(SIGTRAP, &first, NULL);
    target_ready();
    while (!stop) {
        CHAIN(x, 500000);
        sink = x;
        if (go == 1) {
            go = 2;
            sigaction(SIGTRAP, &over, &below);
            /* Without traceprof there may be nothing to call. */
            if (below.sa_handler == SIG_DFL)
                return 1;
        }
        if (go) {
            raise(SIGTRAP);
            __asm__ volatile("int3" ::: "memory");
            raised += 2;
        }
    }
    printf("raised %d\nhandled %d\nbelow %d\n", raised, (int)handled, (int)below_handled);
    return OWN_EXIT_CODE;
}
