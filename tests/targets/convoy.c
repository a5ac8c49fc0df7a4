/* Threads that all want one lock all the time, and compute while they hold it. Each reports when it
 * began to wait, to compute and to pause.
 *
 *     convoy THREADS
 */
#include "target.h"
#include "parts.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static volatile uint64_t sink;

APART void with_the_lock(void) {
    uint64_t end = clock_ns(CLOCK_THREAD_CPUTIME_ID) + 6000000, x = 1;
    while (clock_ns(CLOCK_THREAD_CPUTIME_ID) < end) {
        CHAIN(x, 20000);
        sink = x;
    }
}

APART void want_the_lock(void) {
    pthread_mutex_lock(&lock);
    __asm__ volatile("");
}

static void *work(void *begun) {
    for (;;) {
        part_begins(begun);
        want_the_lock();
        part_begins(begun);
        with_the_lock();
        part_begins(begun);
        pthread_mutex_unlock(&lock);
        /* Without this pause the thread that just released the lock takes it again, and the
         * others never get it. */
        usleep(100);
    }
    return NULL;
}

int main(int argc, char **argv) {
    int count = argc > 1 ? atoi(argv[1]) : 4;
    struct parts *all = calloc(count, sizeof *all);
    if (all == NULL)
        return 1;
    for (int index = 0; index < count; index++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, work, &all[index]))
            return 1;
        pthread_setname_np(thread, "member");
    }
    target_ready();
    while (!stop)
        usleep(10000);
    for (int index = 0; index < count; index++)
        report_parts(&all[index]);
    return OWN_EXIT_CODE;
}
