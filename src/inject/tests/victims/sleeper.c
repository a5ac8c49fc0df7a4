// Has one thread, which sleeps once for 1.5 s. Exits with 0 if the sleep was neither too short nor
// too long.
#include <errno.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>
int main(void) {
    struct timespec want = {1, 500000000}, left, a, b;
    write(1, "ready\n", 6);
    clock_gettime(CLOCK_MONOTONIC, &a);
    int rc = nanosleep(&want, &left), error = errno;
    clock_gettime(CLOCK_MONOTONIC, &b);
    long ms = (b.tv_sec - a.tv_sec) * 1000 + (b.tv_nsec - a.tv_nsec) / 1000000;
    if (rc != 0) fprintf(stderr, "nanosleep: errno %d after %ld ms\n", error, ms);
    if (ms < 1500 || ms > 2300) fprintf(stderr, "slept %ld ms\n", ms);
    return rc != 0 ? 1 : ms < 1500 || ms > 2300 ? 2 : 0;
}
