// Has its own handler for the signal that its first argument names; the handler prints "o". With a
// second argument, the signal is blocked until SIGUSR1. SIGTERM ends it with 7.
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>
static volatile sig_atomic_t done, open;
static void stop(int s) { (void)s; done = 1; }
static void unblock(int s) { (void)s; open = 1; }
static void own(int s, siginfo_t *i, void *u) {
    (void)s; (void)u;
    write(1, i->si_code == SI_USER ? "o\n" : "x\n", 2);
}
int main(int argc, char **argv) {
    int signal_ = atoi(argv[1]);
    struct sigaction act = {.sa_sigaction = own, .sa_flags = SA_SIGINFO};
    sigaddset(&act.sa_mask, SIGUSR2);
    signal(SIGTERM, stop);
    signal(SIGUSR1, unblock);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, signal_);
    if (argc > 2) sigprocmask(SIG_BLOCK, &set, 0);
    else sigaction(signal_, &act, 0);
    write(1, "ready\n", 6);
    while (!done)
        if (open) {
            open = 0;
            sigprocmask(SIG_UNBLOCK, &set, 0);
            write(1, "u\n", 2);
        }
    return 7;
}
