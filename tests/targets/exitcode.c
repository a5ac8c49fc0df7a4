/* Uses CPU time in two phases, then exits with the given code.
 *
 *     exitcode CODE FIRST_MS SECOND_MS [reset]     resets all signals between the two
 *
 * The first phase begins with the first instruction of main.
 */
#include "target.h"

static volatile uint64_t sink;

static uint64_t spin(uint64_t cpu_ms) {
    uint64_t x = 1, start = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    while (clock_ns(CLOCK_THREAD_CPUTIME_ID) - start < cpu_ms * 1000000) {
        CHAIN(x, 2000);
    }
    return x;
}

APART uint64_t first_phase(uint64_t cpu_ms) { return spin(cpu_ms) + 1; }
APART uint64_t second_phase(uint64_t cpu_ms) { return spin(cpu_ms) + 2; }

int main(int argc, char **argv) {
    if (argc < 4)
        return 125;
    sink = first_phase(strtoull(argv[2], NULL, 10));
    for (int number = 1; argc > 4 && number < NSIG; number++)
        signal(number, SIG_DFL);
    sink = second_phase(strtoull(argv[3], NULL, 10));
    return atoi(argv[1]);
}
