/* A chain of callers with frames of several sizes and without frame pointers. Built without unwind
 * tables: only the debug information says where a frame ends.
 *
 *     frameless    until SIGTERM
 */
#include "target.h"

static volatile uint64_t sink;

/* The array and the addition after the call keep the frame and the call. */
#define CALLER(name, callee, words)                                                                \
    APART uint64_t name(uint64_t steps) {                                                          \
        volatile uint64_t frame[words];                                                            \
        frame[steps % (words)] = steps;                                                            \
        return callee(frame[steps % (words)]) + frame[steps % (words)] + 1;                        \
    }

APART uint64_t innermost(uint64_t steps) {
    volatile uint64_t frame[50];
    uint64_t x = sink;
    frame[steps % 50] = x;
    CHAIN(x, steps);
    return x + frame[steps % 50];
}

CALLER(inner, innermost, 33)
CALLER(middle, inner, 1021)
CALLER(outer, middle, 17)

int main(void) {
    target_ready();
    while (!stop)
        sink = outer(20000);
    return OWN_EXIT_CODE;
}
