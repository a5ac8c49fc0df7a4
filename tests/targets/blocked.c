/* Two busy threads; one of them blocks every signal. */
#include "target.h"
#include <sys/syscall.h>

static volatile uint64_t sink;

APART uint64_t blocked_work(uint64_t x) { CHAIN(x, 200000); return x; }
APART uint64_t open_work(uint64_t x) { CHAIN(x, 200000); return x; }

static void *block_signals(void *unused) {
    (void)unused;
    printf("blocked_tid %ld\n", (long)syscall(SYS_gettid));
    target_ready();
    while (!stop)
        sink = blocked_work(sink) + 1;
    return NULL;
}

int main(void) {
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_create(&thread, NULL, block_signals, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    while (!stop)
        sink = open_work(sink) + 1;
    pthread_join(thread, NULL);
    return OWN_EXIT_CODE;
}
