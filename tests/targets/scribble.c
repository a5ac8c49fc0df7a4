/* Computes, and overwrites or unmaps the memory that a profiler has attached to it.
 *
 *     scribble zeros|ones|random|small|pointers|counters|unmap-tables|unmap-data
 *
 * From SIGUSR1 on it does so every 5 ms. It writes pages that are present only. What becomes of it
 * is its own fault; the recorder must not mind.
 */
#include "target.h"
#include <sys/mman.h>

#define PAGE 4096

static volatile sig_atomic_t go;
static volatile uint64_t sink;
static uint64_t state = 88172645463325252u;

static void on_usr1(int signal) {
    (void)signal;
    go = 1;
}

static void *compute(void *unused) {
    uint64_t x = 1;
    while (!stop) {
        CHAIN(x, 100000);
        sink = x;
    }
    return unused;
}

static uint64_t next(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static uint64_t word(const char *what) {
    switch (what[0]) {
    case 'z': return 0;
    case 'o': return UINT64_MAX;
    case 's': return next() % 100000;
    case 'p': return (uint64_t)&state + next() % PAGE;
    default: return next();
    }
}

static void overwrite(const char *what, char *start, char *end) {
    unsigned char present;
    if (!strcmp(what, "counters"))
        end = start + PAGE;
    for (char *page = start; page < end; page += PAGE) {
        if (mincore(page, PAGE, &present) || !(present & 1))
            continue;
        for (int at = 0; at < PAGE; at += 8)
            /* A few words, so that some of them meet what is valid around them. */
            if (what[0] == 'z' || what[0] == 'o' || next() % 16 == 0)
                *(volatile uint64_t *)(page + at) = word(what);
    }
}

static void scribble(const char *what) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    while (maps && fgets(line, sizeof line, maps)) {
        char *start, *end, access[8];
        if (!strstr(line, "/SYSV") || sscanf(line, "%p-%p %7s", (void **)&start, (void **)&end, access) != 3)
            continue;
        int is_data = access[1] == 'w', is_tables = access[1] != 'w' && access[2] != 'x';
        if ((is_data && !strcmp(what, "unmap-data")) || (is_tables && !strcmp(what, "unmap-tables")))
            munmap(start, end - start);
        else if (is_data && strncmp(what, "unmap", 5))
            overwrite(what, start, end);
    }
    if (maps)
        fclose(maps);
}

int main(int argc, char **argv) {
    struct sigaction action = {.sa_handler = on_usr1, .sa_flags = SA_RESTART};
    pthread_t threads[3];
    sigaction(SIGUSR1, &action, NULL);
    for (int i = 0; i < 3; i++)
        pthread_create(&threads[i], NULL, compute, NULL);
    target_ready();
    while (!stop) {
        usleep(5000);
        if (go && argc > 1)
            scribble(argv[1]);
    }
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    return OWN_EXIT_CODE;
}
