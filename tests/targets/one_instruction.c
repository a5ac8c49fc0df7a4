/* Spends its time in one instruction, which jumps to itself.
 *
 *     one_instruction MILLISECONDS      of CPU time */
#include <stdlib.h>
#include <time.h>

__attribute__((noipa)) static void turn_around(unsigned long turns) {
    __asm__ volatile("1: loop 1b" : "+c"(turns));
}

int main(int argc, char **argv) {
    clock_t end = (argc > 1 ? atol(argv[1]) : 100) * (CLOCKS_PER_SEC / 1000);
    while (clock() < end)
        turn_around(1000000);
    return 0;
}
