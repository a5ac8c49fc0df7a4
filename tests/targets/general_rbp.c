/* Code in anonymous memory that uses %rbp as a general register: its callees save a frame pointer
 * of zero. Every other call is one of compiled code.
 */
#include "target.h"
#include <sys/mman.h>

/* push %rbp; xor %ebp,%ebp; call 16; pop %rbp; ret; padding; and at 16: push %rbp; mov %rsp,%rbp;
 * mov $0x80000,%ecx; dec %ecx; jnz; pop %rbp; ret. */
static const uint8_t code[] = {0x55, 0x31, 0xed, 0xe8, 8,    0,    0,    0,    0x5d, 0xc3, 0xcc,
                               0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0x55, 0x48, 0x89, 0xe5, 0xb9, 0,
                               0,    8,    0,    0xff, 0xc9, 0x75, 0xfc, 0x5d, 0xc3};

static uint64_t sink;

APART static void compiled(void) { CHAIN(sink, 200000); }

int main(void) {
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS,
                      -1, 0);
    if (page == MAP_FAILED)
        return 1;
    memcpy(page, code, sizeof code);
    void (*generated)(void) = (void (*)(void))(uintptr_t)page;
    target_ready();
    while (!stop) {
        generated();
        compiled();
    }
    return OWN_EXIT_CODE;
}
