/* Computes on small stacks.
 *
 *     cramped threads    threads with stacks of 16 KiB
 *     cramped fibers     two threads that switch between fibers of 16 KiB with a pattern between
 *
 * Memory outside the stacks must not change.
 */
#include "target.h"
#include <limits.h>
#include <sys/mman.h>
#include <ucontext.h>

#define STACK (16 << 10)
#define GAP (8 << 10)
#define FIBERS 4
#define THREADS 4

static unsigned wrong, up;
static volatile uint64_t sink;

struct fiber {
    ucontext_t context;
    unsigned char *stack;
};
static __thread struct fiber fibers[FIBERS];
static __thread ucontext_t home;

/* Some frames deep. */
APART uint64_t compute(int depth, uint64_t x) {
    if (depth)
        return compute(depth - 1, x) + 1;
    CHAIN(x, 20000);
    return x;
}

static void check(void) {
    if (compute(8, 5) != compute(4, 5) + 4)
        __atomic_add_fetch(&wrong, 1, __ATOMIC_SEQ_CST);
}

static void *threads_work(void *unused) {
    (void)unused;
    __atomic_add_fetch(&up, 1, __ATOMIC_SEQ_CST);
    while (!stop)
        check();
    return NULL;
}

static void fiber_works(int own) {
    while (!stop) {
        check();
        swapcontext(&fibers[own].context, &fibers[(own + 1) % FIBERS].context);
    }
    setcontext(&home);
}

static void *fibers_work(void *unused) {
    unsigned char *area = mmap(NULL, FIBERS * (STACK + GAP) + GAP, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    (void)unused;
    if (area == MAP_FAILED)
        abort();
    memset(area, 0xa5, FIBERS * (STACK + GAP) + GAP);
    for (int i = 0; i < FIBERS; i++) {
        struct fiber *fiber = &fibers[i];
        getcontext(&fiber->context);
        fiber->stack = area + GAP + i * (STACK + GAP);
        fiber->context.uc_stack.ss_sp = fiber->stack;
        fiber->context.uc_stack.ss_size = STACK;
        makecontext(&fiber->context, (void (*)(void))fiber_works, 1, i);
    }
    __atomic_add_fetch(&up, 1, __ATOMIC_SEQ_CST);
    swapcontext(&home, &fibers[0].context);
    for (int i = 0; i < FIBERS * (STACK + GAP) + GAP; i++)
        if (i % (STACK + GAP) < GAP && area[i] != 0xa5)
            __atomic_add_fetch(&wrong, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

int main(int argc, char **argv) {
    int is_fibers = argc > 1 && !strcmp(argv[1], "fibers");
    int count = is_fibers ? 2 : THREADS;
    pthread_t threads[THREADS];
    pthread_attr_t small;
    sigset_t term, before;
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &term, &before);
    pthread_attr_init(&small);
    if (!is_fibers && pthread_attr_setstacksize(&small, STACK))
        return 1;
    for (int i = 0; i < count; i++)
        if (pthread_create(&threads[i], &small, is_fibers ? fibers_work : threads_work, NULL))
            return 1;
    while (__atomic_load_n(&up, __ATOMIC_SEQ_CST) < (unsigned)count)
        usleep(1000);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    target_ready();
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    printf("wrong %u\n", wrong);
    return OWN_EXIT_CODE;
}
