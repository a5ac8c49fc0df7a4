/* Spends nearly all its time in two system calls, each made by a function of its own. */
#include "target.h"
#include <fcntl.h>
#include <sys/syscall.h>

static char buffer[64 << 10];

APART long asks_parent(void) {
    long sum = 0;
    for (int i = 0; i < 2000; i++)
        sum += syscall(SYS_getppid);
    return sum;
}

APART long reads_zeroes(int zero) {
    long sum = 0;
    for (int i = 0; i < 100; i++)
        sum += read(zero, buffer, sizeof buffer);
    return sum;
}

int main(void) {
    int zero = open("/dev/zero", O_RDONLY);
    long sum = 0;
    target_ready();
    while (!stop)
        sum += asks_parent() + reads_zeroes(zero);
    printf("sum %ld\n", sum);
    return OWN_EXIT_CODE;
}
