/* A simple JIT compiler: it writes one function after the other to the same page, describes each
 * in a jitdump in its folder, and calls each from its own caller.
 */
#include "target.h"
#include <fcntl.h>
#include <sys/mman.h>

enum { PAGE = 4096, FUNCTIONS = 8 };

typedef void (*code_t)(void);

#define CALLER(k)                                                                                  \
    APART static void caller_##k(code_t code) {                                                    \
        code();                                                                                    \
        __asm__ volatile("" ::: "memory");                                                         \
    }
CALLER(0) CALLER(1) CALLER(2) CALLER(3) CALLER(4) CALLER(5) CALLER(6) CALLER(7)

static void (*const callers[FUNCTIONS])(code_t) = {caller_0, caller_1, caller_2, caller_3,
                                                   caller_4, caller_5, caller_6, caller_7};

/* push %rbp; mov %rsp,%rbp; mov $ROUNDS,%ecx; dec %ecx; jnz; pop %rbp; ret. */
static const uint8_t body[] = {0x55, 0x48, 0x89, 0xe5, 0xb9, 0,    0,    0,
                               0,    0xff, 0xc9, 0x75, 0xfc, 0x5d, 0xc3};

static struct {
    uint32_t magic, version, length, machine, padding, pid;
    uint64_t time, flags;
} header = {0x4a695444, 1, 40, 62, 0, 0, 0, 0};

struct load {
    uint32_t kind, length;
    uint64_t time;
    uint32_t pid, tid;
    uint64_t avma, start, size, index;
    char name[8];
    uint8_t code[sizeof body];
} __attribute__((packed));

static void put(int file, const void *from, size_t length) {
    if (write(file, from, length) != (ssize_t)length)
        exit(1);
}

int main(void) {
    char path[64];
    snprintf(path, sizeof path, "jit-%d.dump", getpid());
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    header.pid = (uint32_t)getpid();
    header.time = clock_ns(CLOCK_MONOTONIC);
    put(file, &header, sizeof header);
    uint8_t *page =
        mmap(NULL, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    /* This mapping tells profilers about the dump. */
    if (page == MAP_FAILED ||
        mmap(NULL, PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0) == MAP_FAILED)
        return 1;
    memcpy(page, body, sizeof body);
    uint32_t rounds = 8000000;
    memcpy(page + 5, &rounds, sizeof rounds);
    target_ready();
    for (unsigned turn = 0; !stop; turn++) {
        unsigned k = turn % FUNCTIONS;
        struct load load = {0, sizeof load, 0, header.pid, header.pid, 0, 0, sizeof body, turn, "", ""};
        load.avma = load.start = (uint64_t)(uintptr_t)page;
        snprintf(load.name, sizeof load.name, "made_%u", k);
        memcpy(load.code, page, sizeof body);
        load.time = clock_ns(CLOCK_MONOTONIC);
        put(file, &load, sizeof load);
        callers[k]((code_t)(uintptr_t)page);
    }
    unlink(path);
    return OWN_EXIT_CODE;
}
