/* Owns SIGTRAP, as helpers of debuggers and crash reporters do. Every trap that it raises must
 * reach its handler, and no other may. With the argument "dense" it does little else, so that
 * any stop finds a trap pending. */
#include "target.h"

static volatile sig_atomic_t handled;
static volatile uint64_t sink;

static void on_sigtrap(int signal) {
    (void)signal;
    handled++;
}

int main(int argc, char **argv) {
    int dense = argc > 1 && !strcmp(argv[1], "dense");
    struct sigaction action = {.sa_handler = on_sigtrap, .sa_flags = SA_RESTART}, now;
    int raised = 0;
    uint64_t x = 1;
    sigaction(SIGTRAP, &action, NULL);
    target_ready();
    while (!stop) {
        CHAIN(x, dense ? 100 : 500000);
        sink = x;
        raise(SIGTRAP);
        __asm__ volatile("int3" ::: "memory");
        raised += 2;
    }
    sigaction(SIGTRAP, NULL, &now);
    printf("raised %d\nhandled %d\n", raised, (int)handled);
    printf("own_handler %d\n", now.sa_handler == on_sigtrap);
    return OWN_EXIT_CODE;
}
