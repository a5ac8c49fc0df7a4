/* A program that computes, with memory that looks like a context table but must not be read:
 *
 *     posing_tables short     the file ends after the first page
 *     posing_tables closed    the pages after the first cannot be read
 *     posing_tables shared    the file is mapped as shared, and was truncated
 *     posing_tables many      ten good tables, and two hundred that are short */
#include "target.h"

#include <sys/mman.h>
#include <sys/syscall.h>

#define PAGE 4096
#define TABLE_LEN 0x231000

static volatile uint64_t sink;

static uint8_t *map(off_t len, int kind) {
    int file = (int)syscall(SYS_memfd_create, "traceprof_context_v1", 1u);
    if (file < 0 || ftruncate(file, len))
        abort();
    uint8_t *table = mmap(NULL, TABLE_LEN, PROT_READ | PROT_WRITE, kind, file, 0);
    close(file);
    if (table == MAP_FAILED)
        abort();
    const uint32_t version_and_pid[] = {1, (uint32_t)getpid()};
    memcpy(table, "batxtcpt", 8);
    memcpy(table + 8, version_and_pid, sizeof version_and_pid);
    return table;
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    if (strcmp(mode, "short") == 0)
        map(PAGE, MAP_PRIVATE);
    if (strcmp(mode, "closed") == 0 &&
        mprotect(map(TABLE_LEN, MAP_PRIVATE) + PAGE, TABLE_LEN - PAGE, PROT_NONE) != 0)
        return 1;
    if (strcmp(mode, "shared") == 0)
        map(PAGE, MAP_SHARED);
    if (strcmp(mode, "many") == 0) {
        /* Later mappings have lower addresses. */
        for (int number = 0; number < 200; number++)
            map(PAGE, MAP_PRIVATE);
        for (int number = 0; number < 10; number++)
            map(TABLE_LEN, MAP_PRIVATE);
    }
    target_ready();
    uint64_t x = sink;
    while (!stop)
        CHAIN(x, 20000);
    sink = x;
    return OWN_EXIT_CODE;
}
