/* A program that computes in a span, and withdraws its context table every few seconds for a while,
 * which no writer of tables does:
 *
 *     withdrawn_table unmapped     by munmap
 *     withdrawn_table closed       by mprotect
 *     withdrawn_table truncated    by ftruncate of its file */
#include "target.h"

#include <sys/mman.h>
#include <sys/syscall.h>

#define TABLE_LEN 0x231000
#define TIDS 0x1000
#define ENTRIES 16384
#define CONTEXTS (TIDS + ENTRIES * 4)
#define KNUTH 0x9E3779B97F4A7C15u
/* Longer than the recorder takes to find a new table, and than it takes to miss one. */
#define UP_NS 2500000000u
#define DOWN_NS 1500000000u

static volatile uint64_t sink;

static void burn_until(uint64_t until) {
    uint64_t x = sink;
    while (!stop && clock_ns(CLOCK_MONOTONIC) < until)
        CHAIN(x, 20000);
    sink = x;
}

/* Maps a table and publishes a span of this thread in it. */
static uint8_t *publish(int *file) {
    *file = (int)syscall(SYS_memfd_create, "traceprof_context_v1", 1u);
    if (*file < 0 || ftruncate(*file, TABLE_LEN))
        abort();
    uint8_t *table = mmap(NULL, TABLE_LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE, *file, 0);
    if (table == MAP_FAILED)
        abort();
    const uint32_t tid = (uint32_t)getpid(), version_and_pid[] = {1, tid};
    uint32_t entry = (tid * 0x9E3779B9u >> 22) * 16;
    uint64_t root = 0x1000, sum = 0x1111 * KNUTH ^ (root << 32 | root >> 32) * KNUTH;
    const uint64_t context[] = {0x1111, root, sum};
    memcpy(table + TIDS + entry * 4, &tid, sizeof tid);
    memcpy(table + CONTEXTS + entry * 64, context, sizeof context);
    memcpy(table, "batxtcpt", 8);
    memcpy(table + 8, version_and_pid, sizeof version_and_pid);
    return table;
}

static void withdraw(uint8_t *table, int file, const char *how) {
    int failed = strcmp(how, "unmapped") == 0 ? munmap(table, TABLE_LEN)
                 : strcmp(how, "closed") == 0 ? mprotect(table, TABLE_LEN, PROT_NONE)
                                              : ftruncate(file, 0);
    if (failed)
        abort();
}

int main(int argc, char **argv) {
    if (argc < 2)
        return 1;
    target_ready();
    while (!stop) {
        int file;
        uint8_t *table = publish(&file);
        burn_until(clock_ns(CLOCK_MONOTONIC) + UP_NS);
        withdraw(table, file, argv[1]);
        burn_until(clock_ns(CLOCK_MONOTONIC) + DOWN_NS);
        close(file);
        munmap(table, TABLE_LEN);
    }
    return OWN_EXIT_CODE;
}
