// Spins on a small stack inside ordinary memory, with other "stacks" full of a pattern close below
// it. With -DTICKING an alarm interrupts it all the time. SIGTERM ends it: 7 if the pattern was
// never touched, 1 if it was.
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <ucontext.h>
#include <unistd.h>
#define FIBER 8192
#define AREA (4 << 20)
static volatile sig_atomic_t done;
static unsigned char *area;
static ucontext_t home, fiber;
static char alternate[65536];
static void stop(int s) { (void)s; done = 1; }
static void tick(int s) { (void)s; }
static void spin(void) { write(1, "ready\n", 6); while (!done) __asm__ volatile("pause"); }
int main(void) {
    stack_t alt = {.ss_sp = alternate, .ss_size = sizeof alternate};
    sigaltstack(&alt, NULL);
    struct sigaction act = {.sa_handler = stop, .sa_flags = SA_ONSTACK};
    sigaction(SIGTERM, &act, NULL);
    area = mmap(NULL, AREA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < AREA; i++) area[i] = 0xa5;
    unsigned char *stack = area + AREA / 2;
    getcontext(&fiber);
    fiber.uc_stack.ss_sp = stack;
    fiber.uc_stack.ss_size = FIBER;
    fiber.uc_link = &home;
    makecontext(&fiber, spin, 0);
#ifdef TICKING
    act.sa_handler = tick;
    sigaction(SIGALRM, &act, NULL);
    struct itimerval every = {{0, 150}, {0, 150}};
    setitimer(ITIMER_REAL, &every, NULL);
#endif
    swapcontext(&home, &fiber);
    stack_t now;
    sigaltstack(NULL, &now);
    if (now.ss_sp != alternate || now.ss_flags & SS_DISABLE) return 2;
    for (int i = 0; i < AREA; i++)
        if (area[i] != 0xa5 && (area + i < stack || area + i >= stack + FIBER)) return 1;
    return 7;
}
