/* Computes, resets all its signals at some moment, and computes on.
 *
 *     resets CODE BEFORE_US AFTER_US
 *
 * It exits with the code after that much CPU time.
 */
#include "target.h"

static volatile uint64_t sink;

static uint64_t spin(uint64_t cpu_us) {
    uint64_t x = 1, start = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    while (clock_ns(CLOCK_THREAD_CPUTIME_ID) - start < cpu_us * 1000) {
        CHAIN(x, 200);
    }
    return x;
}

APART uint64_t before_the_reset(uint64_t cpu_us) { return spin(cpu_us) + 1; }
APART uint64_t after_the_reset(uint64_t cpu_us) { return spin(cpu_us) + 2; }

int main(int argc, char **argv) {
    if (argc != 4)
        return 125;
    sink = before_the_reset(strtoull(argv[2], NULL, 10));
    for (int number = 1; number < NSIG; number++)
        signal(number, SIG_DFL);
    sink = after_the_reset(strtoull(argv[3], NULL, 10));
    return atoi(argv[1]);
}
