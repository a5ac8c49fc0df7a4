// Overwrites what an interpreter knows about its frames with wild values, keeps the processor busy,
// and restores it. The caller holds the interpreter's lock, and nothing of the interpreter runs
// meanwhile: only a profiler sees the wild values.
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { WORDS_MAX = 4096, SPAN = 32, HIT_MAX = 64 };

static uint64_t *words[WORDS_MAX];
static int word_count;
static uint64_t state = 88172645463325252u;
static volatile uint64_t sink;

static uint64_t below(uint64_t limit)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % limit;
}

// Copies through the kernel, which refuses what cannot be read or written.
static int copy(uint64_t *to, uint64_t *from, int is_write)
{
    struct iovec own = {is_write ? from : to, 8}, other = {is_write ? to : from, 8};
    ssize_t done = is_write ? process_vm_writev(getpid(), &own, 1, &other, 1, 0)
                            : process_vm_readv(getpid(), &own, 1, &other, 1, 0);
    return done == 8;
}

// Collects the words that can be reached from an address, and that this function does not use.
static void collect(uint64_t start, int depth)
{
    uint64_t here = (uint64_t)__builtin_frame_address(0);
    for (int at = 0; at < SPAN && word_count < WORDS_MAX; at++) {
        uint64_t *word = (uint64_t *)(start & ~7ull) + at, value;
        uint64_t address = (uint64_t)word;
        if (address + 65536 > here && address < here + 4096)
            continue;
        if (address >= (uint64_t)words && address < (uint64_t)(&words[WORDS_MAX]))
            continue;
        if (!copy(&value, word, 0))
            return;
        words[word_count++] = word;
        if (depth > 0 && value > 65536 && value < 1ull << 47 && below(4))
            collect(value, depth - 1);
    }
}

static uint64_t wild(uint64_t old)
{
    switch (below(12)) {
    case 0: return 0;
    case 1: return 1;
    case 2: return UINT64_MAX;
    case 3: return UINT64_MAX - 7;
    case 4: return old + 8;
    case 5: return old ^ 1ull << below(64);
    case 6: return 1ull << 63 | old;
    case 7: return 0x7ffffffff000 - 8;
    case 8: return INT64_MAX;
    case 9: return (old & ~0xffffffffull) | UINT32_MAX;
    // A circle, or a pointer to another structure.
    case 10: return (uint64_t)words[below(word_count)];
    default: return (uint64_t)words[below(word_count)] - 8 * below(12);
    }
}

static uint64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return time.tv_sec * 1000000000ull + time.tv_nsec;
}

// Returns the number of words that were wild for this long.
int scribble(uint64_t start, int depth, uint64_t busy_ns)
{
    uint64_t *hit[HIT_MAX], old[HIT_MAX];
    int hits = 0;
    sigset_t term;
    // The interpreter's own handler reads its structures.
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    sigprocmask(SIG_BLOCK, &term, NULL);
    word_count = 0;
    collect(start, depth);
    for (int wanted = 1 + below(HIT_MAX - 1); wanted > 0 && word_count > 0; wanted--) {
        uint64_t *word = words[below(word_count)], value;
        if (!copy(&value, word, 0))
            continue;
        uint64_t changed = wild(value);
        if (!copy(word, &changed, 1))
            continue;
        hit[hits] = word;
        old[hits++] = value;
    }
    for (uint64_t end = now_ns() + busy_ns; now_ns() < end;)
        for (int i = 0; i < 1000; i++)
            sink += i;
    for (int last = hits - 1; last >= 0; last--)
        copy(hit[last], &old[last], 1);
    sigprocmask(SIG_UNBLOCK, &term, NULL);
    return hits;
}
