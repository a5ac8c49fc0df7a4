// Spins and checks that no register, no vector register and no byte of its red zone ever changes.
// With -DTICKING an alarm interrupts it all the time. SIGTERM ends it: 7 if all was well, 1 if not.
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>
static volatile sig_atomic_t done;
static void stop(int s) { (void)s; done = 1; }
static void tick(int s) { (void)s; }
long check(void);
__asm__(
    ".text\n.globl check\ncheck:\n"
    "push %rbx; push %rbp; push %r12; push %r13; push %r14; push %r15\n"
    "mov $0x11111111,%rbx; mov $0x22222222,%rbp; mov $0x33333333,%rsi; mov $0x44444444,%rdi\n"
    "mov $0x55555551,%r8; mov $0x55555552,%r9; mov $0x55555553,%r10; mov $0x55555554,%r11\n"
    "mov $0x55555555,%r12; mov $0x55555556,%r13; mov $0x55555557,%r14; mov $0x55555558,%r15\n"
    ".irp i,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n"
    "mov $0x6000000+\\i,%eax; vmovd %eax,%xmm\\i; vpbroadcastd %xmm\\i,%ymm\\i\n.endr\n"
    ".irp i,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16\nmovq $0x700000+\\i,-8*\\i(%rsp)\n.endr\n"
    "mov $300000,%ecx\n1: dec %ecx; jnz 1b\n"
    "cmp $0x11111111,%rbx; jne 9f; cmp $0x22222222,%rbp; jne 9f\n"
    "cmp $0x33333333,%rsi; jne 9f; cmp $0x44444444,%rdi; jne 9f\n"
    "cmp $0x55555551,%r8; jne 9f; cmp $0x55555552,%r9; jne 9f\n"
    "cmp $0x55555553,%r10; jne 9f; cmp $0x55555554,%r11; jne 9f\n"
    "cmp $0x55555555,%r12; jne 9f; cmp $0x55555556,%r13; jne 9f\n"
    "cmp $0x55555557,%r14; jne 9f; cmp $0x55555558,%r15; jne 9f\n"
    ".irp i,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n"
    "mov $0x6000000+\\i,%eax; vmovd %eax,%xmm0; vpbroadcastd %xmm0,%ymm0\n"
    "vpcmpeqd %ymm0,%ymm\\i,%ymm0; vpmovmskb %ymm0,%eax; cmp $-1,%eax; jne 9f\n.endr\n"
    ".irp i,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16\n"
    "cmpq $0x700000+\\i,-8*\\i(%rsp); jne 9f\n.endr\n"
    "xor %eax,%eax; jmp 8f\n9: mov $1,%eax\n"
    "8: vzeroupper; pop %r15; pop %r14; pop %r13; pop %r12; pop %rbp; pop %rbx; ret\n");
int main(void) {
    signal(SIGTERM, stop);
#ifdef TICKING
    signal(SIGALRM, tick);
    struct itimerval every = {{0, 150}, {0, 150}};
    setitimer(ITIMER_REAL, &every, NULL);
#endif
    write(1, "ready\n", 6);
    while (!done)
        if (check()) return 1;
    return 7;
}
