/* The forms that a stack of compiled code can have. Every function has one caller: leaf_K is
 * called by parent_K, that by root_K, and that by main, unless the test says otherwise.
 *
 * Leaves are short and are called often, so that most samples are in prologues and epilogues.
 */
#include "../target.h"
#include <setjmp.h>
#include <sys/time.h>
#include <ucontext.h>
/* Used in names here, and a macro in some C libraries. */
#undef alloca

/* One copy of each function, about which its caller knows nothing. */
#define ALONE __attribute__((noipa, noinline))
#define KEEP(x) __asm__ volatile("" : "+r"(x)::"memory")
#define ROUNDS 400

/* A root that calls its parent so often that each kind takes a part of the time. */
#define ROOT(k) ROOT_OF(k, 4 * ROUNDS)
#define ROOT_OF(k, rounds)                                                                         \
    ALONE static unsigned root_##k(unsigned x) {                                                   \
        for (int round = 0; round < (rounds); round++) {                                             \
            x += parent_##k(x);                                                                    \
            KEEP(x);                                                                               \
        }                                                                                          \
        return x;                                                                                  \
    }
#define LEAF(k)                                                                                    \
    ALONE static unsigned leaf_##k(unsigned x) { KEEP(x); return x * 3 + 1; }

/* Frames of these sizes. */
#define FRAMES(k, size)                                                                            \
    LEAF(k)                                                                                        \
    ALONE static unsigned parent_##k(unsigned x) {                                                 \
        volatile unsigned char room[size];                                                         \
        room[x % (size)] = (unsigned char)x;                                                       \
        x = leaf_##k(x) + leaf_##k(x + 1);                                                         \
        KEEP(x);                                                                                   \
        return x + room[x % (size)];                                                               \
    }                                                                                              \
    ROOT(k)
FRAMES(small, 8)
FRAMES(medium, 300)
FRAMES(large, 100000)

/* Keeps many values in registers, which it must save. */
ALONE static unsigned leaf_saved(unsigned x) {
    unsigned a = x * 3, b = x + 5, c = x ^ 7, d = x - 9, e = x | 11, f = x & 13;
    __asm__ volatile("" : "+r"(a), "+r"(b), "+r"(c)::"rbx", "r12", "r13", "r14", "r15", "memory");
    __asm__ volatile("" : "+r"(d), "+r"(e), "+r"(f)::"rbx", "r12", "r13", "r14", "r15", "memory");
    return a + b + c + d + e + f;
}
ALONE static unsigned parent_saved(unsigned x) {
    unsigned a = x * 3, b = x + 5, c = x ^ 7;
    x = leaf_saved(x);
    KEEP(a);
    x += leaf_saved(b) + c;
    KEEP(x);
    return x + a;
}
ROOT(saved)

/* Arguments on the stack: sp changes between calls. */
ALONE static unsigned leaf_pushed(unsigned a, unsigned b, unsigned c, unsigned d, unsigned e,
                                  unsigned f, unsigned g, unsigned h, unsigned i) {
    KEEP(i);
    return a + b + c + d + e + f + g + h + i;
}
ALONE static unsigned parent_pushed(unsigned x) {
    x = leaf_pushed(x, 1, 2, 3, 4, 5, x, x + 1, x + 2);
    KEEP(x);
    return x + leaf_pushed(x, 1, 2, 3, 4, 5, 6, x, 8);
}
ROOT(pushed)

/* Writes below sp. */
ALONE static unsigned leaf_below(unsigned x) {
    volatile unsigned room[16];
    room[x & 15] = x;
    KEEP(x);
    return room[x & 15] + 1;
}
ALONE static unsigned parent_below(unsigned x) {
    x = leaf_below(x);
    KEEP(x);
    return x;
}
ROOT(below)

/* A frame whose size is known only at run time. */
LEAF(alloca)
ALONE static unsigned parent_alloca(unsigned x) {
    volatile char *room = __builtin_alloca(x % 500 + 1);
    room[x % 500] = 1;
    x = leaf_alloca(x);
    KEEP(x);
    return x + (unsigned)room[0];
}
ROOT(alloca)

/* Realigned, so that the CFA is kept in a register and then in memory. */
LEAF(realigned)
ALONE static unsigned parent_realigned(unsigned x) {
    __attribute__((aligned(64))) volatile unsigned char vector[64];
    volatile char *room = __builtin_alloca(x % 200 + 1);
    vector[x % 64] = 2;
    room[x % 200] = 1;
    x = leaf_realigned(x);
    KEEP(x);
    return x + vector[0] + (unsigned)room[0];
}
ROOT(realigned)
ALONE static unsigned leaf_aligned(unsigned x) {
    __attribute__((aligned(64))) volatile unsigned char vector[64];
    vector[x % 64] = 2;
    KEEP(x);
    return x + vector[0];
}
ALONE static unsigned parent_aligned(unsigned x) {
    x = leaf_aligned(x);
    KEEP(x);
    return x;
}
ROOT(aligned)

/* The parent exits before its leaf begins, where the compiler makes that call a jump. */
LEAF(tail)
ALONE static unsigned parent_tail(unsigned x) {
    KEEP(x);
    return leaf_tail(x + 1);
}
ROOT(tail)

/* The last instruction of the parent is a call that does not return. */
static jmp_buf back;
__attribute__((noipa, noinline, noreturn)) static void leaf_noreturn(unsigned x) {
    KEEP(x);
    longjmp(back, 1);
}
__attribute__((noipa, noinline, noreturn)) static void parent_noreturn(unsigned x) {
    leaf_noreturn(x + 1);
}
ALONE static unsigned root_noreturn(unsigned x) {
    for (volatile int round = 0; round < ROUNDS; round++)
        if (!setjmp(back))
            parent_noreturn(x);
    return x + 1;
}

/* The call is in the part of the parent that the compiler expects to run rarely. */
__attribute__((noipa, noinline, cold)) static unsigned leaf_cold(unsigned x) {
    KEEP(x);
    return x * 3;
}
static volatile unsigned seldom = 1;
ALONE static unsigned parent_cold(unsigned x) {
    volatile unsigned room[40];
    room[x % 40] = x;
    if (__builtin_expect(seldom != 0, 0)) {
        x += leaf_cold(x) + room[x % 40];
        KEEP(x);
        x ^= leaf_cold(x);
    }
    KEEP(x);
    return x + room[0];
}
ROOT(cold)

/* The C library is between the leaf and its parent. */
ALONE static int leaf_sorted(const void *a, const void *b) {
    unsigned x = *(const unsigned *)a, y = *(const unsigned *)b;
    KEEP(x);
    return (x > y) - (x < y);
}
ALONE static unsigned parent_sorted(unsigned x) {
    unsigned values[12];
    for (int i = 0; i < 12; i++)
        values[i] = x = x * 1103515245 + 12345;
    qsort(values, 12, sizeof *values, leaf_sorted);
    return values[0];
}
ROOT_OF(sorted, ROUNDS / 4)

/* Recursion to a known depth: leaf_deep calls itself, which the test knows. */
ALONE static unsigned leaf_deep(unsigned x, unsigned left) {
    if (left)
        x += leaf_deep(x + 1, left - 1);
    KEEP(x);
    return x;
}
ALONE static unsigned parent_deep(unsigned x) {
    x = leaf_deep(x, 30);
    KEEP(x);
    return x;
}
ROOT_OF(deep, ROUNDS / 2)

/* Handlers on another stack, and on the same one. */
LEAF(handled)
ALONE static unsigned parent_handled(unsigned x) {
    x = leaf_handled(x) + leaf_handled(x + 1);
    KEEP(x);
    return x;
}
ALONE static void root_handled(int number) {
    unsigned x = (unsigned)number;
    for (int round = 0; round < ROUNDS; round++)
        x += parent_handled(x);
    KEEP(x);
}
ALONE static void leaf_raised(int number) { raise(number); }
ALONE static unsigned parent_raised(unsigned x) {
    leaf_raised(SIGUSR1);
    leaf_raised(SIGUSR2);
    return x;
}
ALONE static unsigned root_raised(unsigned x) { return parent_raised(x) + 1; }

/* A handler that interrupts anything at any instruction. */
LEAF(interrupt)
ALONE static unsigned parent_interrupt(unsigned x) {
    x = leaf_interrupt(x) + leaf_interrupt(x + 1);
    KEEP(x);
    return x;
}
ALONE static void root_interrupt(int number) {
    unsigned x = (unsigned)number;
    for (int round = 0; round < 4 * ROUNDS; round++)
        x += parent_interrupt(x);
    KEEP(x);
}

#ifndef NO_FIBERS
/* A fiber with its own stack, and a switch there and back. */
static ucontext_t outside, inside;
static char fiber_stack[64 << 10];
static volatile unsigned carried;
LEAF(fiber)
ALONE static unsigned parent_fiber(unsigned x) {
    x = leaf_fiber(x) + leaf_fiber(x + 1);
    KEEP(x);
    return x;
}
ALONE static void root_fiber(void) {
    for (;;) {
        for (int round = 0; round < ROUNDS; round++)
            carried += parent_fiber(carried);
        swapcontext(&inside, &outside);
    }
}
ALONE static unsigned root_switch(unsigned x) {
    carried = x;
    swapcontext(&outside, &inside);
    return carried;
}
static void fiber_prepare(void) {
    getcontext(&inside);
    inside.uc_stack.ss_sp = fiber_stack;
    inside.uc_stack.ss_size = sizeof fiber_stack;
    inside.uc_link = NULL;
    makecontext(&inside, root_fiber, 0);
}
#endif

#ifdef LIBRARY
/* Calls out and back in through the procedure linkage table. */
extern unsigned parent_library(unsigned (*leaf)(unsigned), unsigned x);
ALONE static unsigned leaf_library(unsigned x) { KEEP(x); return x + 7; }
ALONE static unsigned root_library(unsigned x) {
    for (int round = 0; round < ROUNDS; round++)
        x += parent_library(leaf_library, x);
    return x;
}
#endif

static void signals_prepare(void) {
    static char other_stack[64 << 10];
    stack_t other = {.ss_sp = other_stack, .ss_size = sizeof other_stack};
    sigaltstack(&other, NULL);
    struct sigaction action = {.sa_handler = root_handled, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    action.sa_flags |= SA_ONSTACK;
    sigaction(SIGUSR2, &action, NULL);
    action.sa_handler = root_interrupt;
    sigaction(SIGALRM, &action, NULL);
    struct itimerval often = {{0, 1000}, {0, 1000}};
    setitimer(ITIMER_REAL, &often, NULL);
}

int main(void) {
    volatile unsigned x = 1;
    signals_prepare();
#ifndef NO_FIBERS
    fiber_prepare();
#endif
    target_ready();
    while (!stop) {
        x += root_small(x) + root_medium(x) + root_large(x) + root_saved(x) + root_pushed(x);
        x += root_below(x) + root_alloca(x) + root_realigned(x) + root_aligned(x) + root_tail(x);
        x += root_noreturn(x) + root_cold(x) + root_sorted(x) + root_deep(x) + root_raised(x);
#ifndef NO_FIBERS
        x += root_switch(x);
#endif
#ifdef LIBRARY
        x += root_library(x);
#endif
    }
    return OWN_EXIT_CODE;
}
