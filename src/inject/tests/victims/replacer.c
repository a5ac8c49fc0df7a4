// Replaces the handler of SIGTRAP on SIGUSR1, and keeps the old one to call it on SIGUSR2. Forgets
// it on SIGHUP.
#include <signal.h>
#include <unistd.h>
static volatile sig_atomic_t done, replace, call, forget;
static struct sigaction old;
static void on(int s) {
    if (s == SIGTERM) done = 1;
    if (s == SIGUSR1) replace = 1;
    if (s == SIGUSR2) call = 1;
    if (s == SIGHUP) forget = 1;
}
static void mine(int s) { (void)s; }
// Earlier calls have left the old action below the stack pointer.
__attribute__((noinline)) static void scrub(void) {
    volatile char area[4096];
    for (unsigned i = 0; i < sizeof area; i++) area[i] = 0;
}
int main(void) {
    signal(SIGTERM, on); signal(SIGUSR1, on); signal(SIGUSR2, on); signal(SIGHUP, on);
    write(1, "ready\n", 6);
    while (!done) {
        if (replace) {
            replace = 0;
            struct sigaction a = {.sa_handler = mine};
            sigaction(SIGTRAP, &a, &old);
            write(1, "r\n", 2);
        }
        if (call) {
            call = 0;
            siginfo_t i = {0};
            old.sa_sigaction(SIGTRAP, &i, 0);
            write(1, "c\n", 2);
        }
        if (forget) {
            forget = 0;
            old.sa_sigaction = 0;
            old.sa_restorer = 0;
            scrub();
            write(1, "f\n", 2);
        }
        usleep(1000);
    }
    return 7;
}
