/* Computes in two threads whose stacks are one page each, with no memory next to it. A signal with
 * a handler would end the program: its frame needs most of a page. One thread sleeps now and then.
 */
#include "target.h"
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#define PAGE 4096
#define THREADS 2

static int alive[THREADS];

APART static uint64_t in_small(uint64_t x) {
    CHAIN(x, 100000);
    return x;
}

/* Without the C library's thread block, and so without the C library. */
static long call(long number, void *a, void *b) {
    __asm__ volatile("syscall" : "+a"(number) : "D"(a), "S"(b) : "rcx", "r11", "memory");
    return number;
}

static int work(void *sleeps) {
    struct timespec nap = {.tv_nsec = 100000};
    volatile uint64_t x = 1;
    while (!stop) {
        x = in_small(x);
        if (sleeps)
            call(SYS_nanosleep, &nap, NULL);
    }
    return 0;
}

static char *new_stack(void) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    char *area = mmap(NULL, 3 * PAGE, PROT_NONE, flags, -1, 0);
    if (area == MAP_FAILED || mprotect(area + PAGE, PAGE, PROT_READ | PROT_WRITE))
        abort();
    return area + 2 * PAGE;
}

int main(void) {
    int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM |
                CLONE_CHILD_CLEARTID;
    sigset_t term, before;
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    /* The small stacks have no room for this signal's handler, either. */
    sigprocmask(SIG_BLOCK, &term, &before);
    for (long i = 0; i < THREADS; i++) {
        alive[i] = 1;
        if (clone(work, new_stack(), flags, (void *)i, NULL, NULL, &alive[i]) < 0)
            return 1;
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
    target_ready();
    for (int i = 0; i < THREADS; i++)
        while (__atomic_load_n(&alive[i], __ATOMIC_SEQ_CST))
            usleep(50000);
    return OWN_EXIT_CODE;
}
