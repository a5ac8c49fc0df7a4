/* The times at which the parts of a thread's work began. */
#ifndef PARTS_H
#define PARTS_H
#include <sys/syscall.h>

#define PARTS_MAX 10000

struct parts {
    uint64_t begun_ns[PARTS_MAX];
    volatile unsigned begun;
    pid_t tid;
};

/* Notes that the calling thread begins its next part. */
static void part_begins(struct parts *parts) {
    unsigned number = parts->begun;
    if (number == 0)
        parts->tid = syscall(SYS_gettid);
    if (number < PARTS_MAX) {
        parts->begun_ns[number] = clock_ns(CLOCK_MONOTONIC);
        parts->begun = number + 1;
    }
}

/* Prints the time of the first part, and the time from each to the next, which is short. */
static void report_parts(const struct parts *parts) {
    uint64_t last = 0;
    unsigned begun = parts->begun;
    if (begun == PARTS_MAX)
        abort();
    printf("begun_%d", parts->tid);
    for (unsigned number = 0; number < begun; number++) {
        printf(" %lu", (unsigned long)(parts->begun_ns[number] / 1000 - last));
        last = parts->begun_ns[number] / 1000;
    }
    printf("\n");
}
#endif
