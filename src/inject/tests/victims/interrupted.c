// Ignores signal 50. On SIGUSR1 it asks for the handler of that signal, which is ours, and calls it
// as a function, again and again, until an alarm interrupts it in our code. The handler of the alarm
// then stays, far down on its stack, until SIGUSR2.
//     interrupted same      the handler runs on the stack that it interrupted
//     interrupted other     it runs on an alternate stack
//     interrupted twice     it is interrupted by another one, which runs on an alternate stack
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <ucontext.h>
#include <unistd.h>
static volatile sig_atomic_t done, go, leave, hit;
static const char *how;
static unsigned long start, end;
static char alternate[512 << 10];
static void on(int s) {
    if (s == SIGTERM) done = 1;
    if (s == SIGUSR1) go = 1;
    if (s == SIGUSR2) leave = 1;
}
static void stay(void) {
    volatile char deep[100 << 10];
    memset((char *)deep, 1, sizeof deep);
    write(1, "in\n", 3);
    while (!leave) usleep(1000);
    deep[0] = deep[1];
}
static void on_second(int s) { stay(); }
static void on_alarm(int s, siginfo_t *i, void *context) {
    unsigned long rip = ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    if (hit || rip < start || rip >= end)
        return;
    hit = 1;
    struct itimerval none = {0};
    setitimer(ITIMER_REAL, &none, 0);
    if (!strcmp(how, "twice"))
        raise(51);
    else
        stay();
}
static void find_code(unsigned long handler) {
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx", &start, &end) == 2 && start <= handler && handler < end)
            break;
    fclose(maps);
}
int main(int argc, char **argv) {
    how = argv[1];
    stack_t stack = {.ss_sp = alternate, .ss_size = sizeof alternate};
    int flags = strcmp(how, "other") ? 0 : SA_ONSTACK;
    struct sigaction alarm = {.sa_sigaction = on_alarm, .sa_flags = SA_SIGINFO | SA_RESTART | flags};
    struct sigaction second = {.sa_handler = on_second, .sa_flags = SA_RESTART | SA_ONSTACK};
    signal(SIGTERM, on); signal(SIGUSR1, on); signal(SIGUSR2, on);
    signal(50, SIG_IGN);
    sigaltstack(&stack, 0);
    sigaction(SIGALRM, &alarm, 0);
    sigaction(51, &second, 0);
    write(1, "ready\n", 6);
    while (!done) {
        if (go) {
            go = 0;
            struct sigaction ours;
            struct itimerval often = {{0, 100}, {0, 100}};
            static ucontext_t context;
            siginfo_t info = {.si_signo = 50};
            getcontext(&context);
            sigaction(50, 0, &ours);
            find_code((unsigned long)ours.sa_sigaction);
            setitimer(ITIMER_REAL, &often, 0);
            while (!hit)
                ours.sa_sigaction(50, &info, &context);
            write(1, "out\n", 4);
        }
        usleep(1000);
    }
    return 7;
}
