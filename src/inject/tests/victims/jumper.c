// Faults all the time and leaves the handler by a jump, so that the program never returns to the
// interrupted code. An alarm interrupts it on another stack. SIGTERM ends it: 7 if all was well.
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>
static volatile sig_atomic_t done;
static sigjmp_buf back;
static char other[65536];
static void stop(int s) { (void)s; done = 1; }
static void fault(int s) { (void)s; siglongjmp(back, 1); }
static void tick(int s) { (void)s; volatile char used[2000]; memset((void *)used, 1, sizeof used); }
int main(void) {
    signal(SIGTERM, stop);
    stack_t stack = {.ss_sp = other, .ss_size = sizeof other}, found;
    sigaltstack(&stack, 0);
    struct sigaction action = {.sa_handler = fault, .sa_flags = SA_ONSTACK | SA_RESTART};
    sigaction(SIGSEGV, &action, 0);
    action.sa_handler = tick;
    sigaction(SIGALRM, &action, 0);
    struct itimerval every = {{0, 1000}, {0, 1000}};
    setitimer(ITIMER_REAL, &every, NULL);
    write(1, "ready\n", 6);
    while (!done)
        if (!sigsetjmp(back, 1)) *(volatile int *)8 = 1;
    sigaltstack(0, &found);
    return found.ss_sp == other && !(found.ss_flags & SS_DISABLE) ? 7 : 1;
}
