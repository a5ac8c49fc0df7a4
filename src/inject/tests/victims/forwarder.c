// On SIGUSR1 it puts a handler over that of signal 50, and forwards each signal to that one. On
// SIGUSR2 it raises the signal ten times, and tells how many of its own its two handlers saw.
//     forwarder call|jump|bare default|handled
// It calls the handler below its own as a function, or leaves its own by a jump, or calls it with
// one argument. With "handled" it had a handler before.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
static volatile sig_atomic_t done, over, ask, mine, first, own;
static struct sigaction below;
static const char *how;
static volatile unsigned long sink;
static void on(int s) {
    if (s == SIGTERM) done = 1;
    if (s == SIGUSR1) over = 1;
    if (s == SIGUSR2) ask = 1;
}
static void on_first(int s) { if (own) first++; }
static void on_mine(int s, siginfo_t *i, void *c) {
    own = i->si_code == SI_TKILL;
    if (own) mine++;
    if (!strcmp(how, "bare")) {
        below.sa_sigaction(s, (siginfo_t *)8, (void *)3);
    } else if (!strcmp(how, "call")) {
        below.sa_sigaction(s, i, c);
        own = 0;
    } else {
        // The compiler makes a jump of it, with -foptimize-sibling-calls.
        below.sa_sigaction(s, i, c);
    }
}
int main(int argc, char **argv) {
    how = argv[1];
    signal(SIGTERM, on); signal(SIGUSR1, on); signal(SIGUSR2, on);
    if (!strcmp(argv[2], "handled"))
        signal(50, on_first);
    setvbuf(stdout, 0, _IOLBF, 0);
    puts("ready");
    while (!done) {
        if (over) {
            over = 0;
            struct sigaction a = {.sa_sigaction = on_mine, .sa_flags = SA_SIGINFO | SA_RESTART};
            sigaction(50, &a, &below);
            puts("over");
        }
        if (ask) {
            ask = 0;
            mine = first = 0;
            for (int i = 0; i < 10; i++)
                raise(50);
            printf("%d %d\n", mine, first);
        }
        for (int i = 0; i < 100000; i++)
            sink += i;
    }
    return 7;
}
