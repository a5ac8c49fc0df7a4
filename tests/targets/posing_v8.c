// A library for Node.js: a thread of it runs generated code whose frames look like those of
// JavaScript functions. Their slots hold anything: addresses of memory of no use, that changes, is
// unreadable or not there, and small integers.
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

enum { WORDS = 1 << 13, PAGE = 4096 };

// Pushes five words, the innermost last, and counts down: push %rbp; mov %rsp,%rbp;
// push (%rdi); push 8(%rdi); ...; mov $20000,%ecx; dec %ecx; jne; leave; ret
static const unsigned char code[] = {
    0x55, 0x48, 0x89, 0xE5, 0xFF, 0x37, 0xFF, 0x77, 0x08, 0xFF, 0x77, 0x10, 0xFF, 0x77, 0x18, 0xFF,
    0x77, 0x20, 0xB9, 0x20, 0x4E, 0, 0, 0xFF, 0xC9, 0x75, 0xFC, 0xC9, 0xC3,
};

static uint64_t state = 0x5EED;
static uint64_t next(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static uint64_t *heap;
static char *edge;

static uint64_t tagged(void)
{
    switch (next() % 8) {
    case 0:
        return next() | 1;
    case 1: // the last words before unreadable memory, and that memory
        return (uint64_t)(edge - 128 + next() % 256) | 1;
    case 2:
        return next() % (1 << 20) << 32;
    default:
        return (uint64_t)(heap + next() % WORDS) | 1;
    }
}

static void *pose(void *unused)
{
    void *memory = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(memory, code, sizeof code);
    mprotect(memory, PAGE, PROT_READ | PROT_EXEC);
    void (*run)(const uint64_t *) = (void (*)(const uint64_t *))memory;
    heap = mmap(0, WORDS * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    edge = mmap(0, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    edge += PAGE;
    munmap(edge, PAGE);
    for (;;) {
        for (int word = 0; word < WORDS; word++) {
            // A half looks like maps with the type of some object.
            heap[word] = word % 2 ? (uint64_t)(0x400 + next() % 0x480) << 32 : tagged();
        }
        for (int turn = 0; turn < 200; turn++) {
            uint64_t slots[5];
            for (int slot = 0; slot < 5; slot++) slots[slot] = tagged();
            slots[0] |= 1;
            run(slots);
        }
    }
    return unused;
}

__attribute__((constructor)) static void start(void)
{
    pthread_t thread;
    pthread_create(&thread, 0, pose, 0);
}
