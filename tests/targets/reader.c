/* Spends nearly all its time inside read(2): large buffers from /dev/zero. */
#include "target.h"
#include <fcntl.h>
#include <sys/resource.h>

static char buffer[4 << 20];

APART ssize_t read_zeroes(int zero) { return read(zero, buffer, sizeof buffer) + 1; }

int main(void) {
    int zero = open("/dev/zero", O_RDONLY);
    unsigned failed = 0, short_reads = 0;
    struct rusage usage;
    target_ready();
    while (!stop) {
        ssize_t got = read_zeroes(zero) - 1;
        failed += got < 0;
        /* Any signal, handled or not, makes the kernel end a long read of this device early. */
        short_reads += got >= 0 && got < (ssize_t)sizeof buffer;
    }
    getrusage(RUSAGE_SELF, &usage);
    printf("failed %u\nshort_reads %u\n", failed, short_reads);
    printf("user_us %ld\n", usage.ru_utime.tv_sec * 1000000L + usage.ru_utime.tv_usec);
    printf("kernel_us %ld\n", usage.ru_stime.tv_sec * 1000000L + usage.ru_stime.tv_usec);
    return OWN_EXIT_CODE;
}
