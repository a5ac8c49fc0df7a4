// The kinds of stacks that C code can have. single_step.rs steps it instruction by instruction.
// int3 marks: 1 stepping may start, 2 stepping pauses, 3 the deepest recursion, 4 stepping resumes.
#define _GNU_SOURCE
#include <alloca.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MARK() __asm__ volatile("int3" ::: "memory")
#define ALONE __attribute__((noinline, noclone))
#define KEEP(x) __asm__ volatile("" : "+r"(x)::"memory")

// Each leaf has one caller, which has one caller too.
#define CHAIN(k, size)                                                                            \
    ALONE static unsigned leaf_##k(unsigned x) { KEEP(x); return x * 3 + k; }                     \
    ALONE static unsigned parent_##k(unsigned x) {                                                \
        unsigned char room[size];                                                                 \
        memset(room, (int)x, sizeof room);                                                        \
        unsigned y = leaf_##k(x + room[size / 2]);                                                \
        KEEP(y);                                                                                  \
        return y + room[0];                                                                       \
    }                                                                                             \
    ALONE static unsigned root_##k(unsigned x) {                                                  \
        unsigned a = parent_##k(x), b = parent_##k(a), c = parent_##k(a + b);                     \
        KEEP(c);                                                                                  \
        return a ^ b ^ c;                                                                         \
    }
CHAIN(1, 8)
CHAIN(2, 200)
CHAIN(3, 5000)

ALONE static unsigned tail(unsigned x) { return root_1(x + 1); }

// A realigned stack whose size is known only at run time.
ALONE static unsigned realigned(unsigned n) {
    __attribute__((aligned(64))) unsigned char vector[64];
    unsigned char *room = alloca(n + 16);
    memset(room, 1, n);
    memset(vector, 2, sizeof vector);
    KEEP(room);
    unsigned x = leaf_1(room[n / 2] + vector[3]);
    KEEP(x);
    return x + room[0];
}

ALONE static int compare(const void *a, const void *b) {
    unsigned x = *(const unsigned *)a, y = *(const unsigned *)b;
    KEEP(x);
    return (x > y) - (x < y);
}

ALONE static unsigned sorted(unsigned seed) {
    unsigned values[24];
    for (int i = 0; i < 24; i++) values[i] = seed = seed * 1103515245 + 12345;
    qsort(values, 24, sizeof *values, compare);
    return values[0];
}

static volatile unsigned handled;
static void on_signal(int number) { handled = root_2(handled + (unsigned)number); }

static char other_stack[64 << 10];
ALONE static unsigned signalled(void) {
    stack_t other = {.ss_sp = other_stack, .ss_size = sizeof other_stack};
    sigaltstack(&other, 0);
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGUSR1, &action, 0);
    action.sa_flags = SA_ONSTACK;
    sigaction(SIGUSR2, &action, 0);
    raise(SIGUSR1);
    raise(SIGUSR2);
    return handled;
}

// A signal trampoline without unwind information, as in musl.
__asm__(".text\n.p2align 4\nown_restorer: mov $15,%rax\nsyscall\n.p2align 4\n");
extern void own_restorer(void);
struct kernel_action { void (*handler)(int); unsigned long flags; void (*restorer)(void); unsigned long mask; };

ALONE static unsigned signalled_without_libc(void) {
    struct kernel_action action = {on_signal, 0x04000000 /* SA_RESTORER */, own_restorer, 0};
    syscall(SYS_rt_sigaction, SIGUSR1, &action, 0, 8);
    raise(SIGUSR1);
    return handled;
}

// Calls a function on another stack, as libraries for deep recursion do.
__asm__(".text\n.p2align 4\non_other_stack:\n.cfi_startproc\npush %rbp\n.cfi_def_cfa_offset 16\n"
        ".cfi_offset %rbp,-16\nmov %rsp,%rbp\n.cfi_def_cfa_register %rbp\nmov %rdx,%rsp\n"
        "mov %rdi,%rax\nmov %esi,%edi\ncall *%rax\nmov %rbp,%rsp\npop %rbp\n"
        ".cfi_def_cfa %rsp,8\nret\n.cfi_endproc\n");
extern unsigned on_other_stack(unsigned (*function)(unsigned), unsigned x, void *top);
static char third_stack[64 << 10] __attribute__((aligned(64)));

// Generated code that keeps frame pointers and has no unwind information:
// push %rbp; mov %rsp,%rbp; mov %edi,%eax; mov %rsi,%rdx; call *%rdx; pop %rbp; ret
static const unsigned char generated[] = {0x55, 0x48, 0x89, 0xE5, 0x89, 0xF8, 0x48, 0x89,
                                          0xF2, 0xFF, 0xD2, 0x5D, 0xC3};
ALONE static unsigned jitted(unsigned x) {
    void *page = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(page, generated, sizeof generated);
    unsigned (*code)(unsigned, unsigned (*)(unsigned)) = page;
    unsigned y = code(x, root_2);
    KEEP(y);
    return y;
}

// A static program reaches functions that are chosen by the processor through stubs: by calls,
// through pointers, and by jumps.
static void *(*volatile copy)(void *, const void *, size_t) = memcpy;
ALONE static char *found(char *text, int letter) { KEEP(letter); return strchr(text, letter); }
ALONE static unsigned picked(unsigned x) {
    char text[300], other[300];
    memset(text, 'a' + (int)(x % 8), sizeof text);
    text[299] = 0;
    copy(other, text, sizeof text);
    char *end = found(other, 0);
    KEEP(end);
    return (unsigned)(end - other) + (unsigned)strlen(text);
}

static jmp_buf back;
ALONE static void jump(unsigned n) {
    KEEP(n);
    if (n == 0) longjmp(back, 1);
    jump(n - 1);
    KEEP(n);
}

ALONE static unsigned jumped(void) {
    if (setjmp(back)) return root_3(1);
    jump(3);
    return 0;
}

ALONE static unsigned recurse(unsigned n) {
    KEEP(n);
    if (n == 0) {
        MARK();
        return 1;
    }
    unsigned x = recurse(n - 1);
    KEEP(x);
    return x + 1;
}

// A call that never returns is the last instruction.
__attribute__((noinline, noclone, noreturn)) static void finish(unsigned x) {
    KEEP(x);
    exit(x == 0xFFFFFFFF);
}

int main(void) {
    MARK();
    unsigned x = root_1(1) + root_2(2) + root_3(3) + tail(4);
    x += realigned(100) + realigned(x % 2000) + sorted(x) + signalled() + jumped();
    x += signalled_without_libc() + jitted(x) + picked(x);
    x += on_other_stack(root_1, x, third_stack + sizeof third_stack);
    char text[64];
    x += (unsigned)snprintf(text, sizeof text, "%u %s %f", x, "words", 1.5);
    free(malloc(x % 1000 + 100));
    MARK();
    x += recurse(1100);
    MARK();
    x += root_1(x);
    finish(x);
}
