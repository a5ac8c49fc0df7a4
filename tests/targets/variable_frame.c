/* Computes in hand-written code without unwind information whose frame has a variable size: nothing
 * says where its caller is.
 */
#include "target.h"

void compute(uint64_t room, uint64_t rounds);

__asm__(".text\n"
        ".type compute, @function\n"
        "compute:\n\tmov %rsp, %rdx\n\tsub %rdi, %rsp\n"
        "1:\tdec %rsi\n\tjnz 1b\n\tmov %rdx, %rsp\n\tret\n"
        ".size compute, . - compute\n");

int main(void) {
    target_ready();
    while (!stop)
        compute(1 << 12, 100000);
    return OWN_EXIT_CODE;
}
