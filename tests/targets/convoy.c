/* Threads that all want one lock all the time, and compute while they hold it. They measure how
 * long they waited and computed.
 *
 *     convoy THREADS
 */
#include "target.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static volatile uint64_t sink;
static uint64_t waited_ns, computed_ns;

APART void with_the_lock(void) {
    uint64_t end = clock_ns(CLOCK_THREAD_CPUTIME_ID) + 3000000, x = 1;
    while (clock_ns(CLOCK_THREAD_CPUTIME_ID) < end) {
        CHAIN(x, 20000);
        sink = x;
    }
}

APART void want_the_lock(void) {
    pthread_mutex_lock(&lock);
    __asm__ volatile("");
}

static void *work(void *unused) {
    for (;;) {
        uint64_t begin = clock_ns(CLOCK_MONOTONIC);
        want_the_lock();
        uint64_t had = clock_ns(CLOCK_MONOTONIC);
        with_the_lock();
        uint64_t end = clock_ns(CLOCK_MONOTONIC);
        waited_ns += had - begin;
        computed_ns += end - had;
        pthread_mutex_unlock(&lock);
        /* Without this pause the thread that just released the lock takes it again, and the
         * others never get it. */
        usleep(100);
    }
    return unused;
}

int main(int argc, char **argv) {
    int count = argc > 1 ? atoi(argv[1]) : 4;
    for (int index = 0; index < count; index++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, work, NULL))
            return 1;
        pthread_setname_np(thread, "member");
    }
    target_ready();
    while (!stop)
        usleep(10000);
    pthread_mutex_lock(&lock);
    printf("waited_ns %lu\ncomputed_ns %lu\n", (unsigned long)waited_ns, (unsigned long)computed_ns);
    return OWN_EXIT_CODE;
}
