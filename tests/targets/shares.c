/* A thread that sleeps for 60 % of its time, waits for a lock for 25 % and computes for 15 %,
 * each in its own function, one after the other. It reports when each began. Another thread holds
 * the lock.
 */
#include "target.h"
#include "parts.h"
#include <semaphore.h>

#define PARTS 3

static const unsigned sleep_ms = 120, lock_ms = 50, compute_ms = 30;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static sem_t asked, given;
static volatile uint64_t sink;
static struct parts worked;

static void nap(unsigned ms) {
    struct timespec left = {.tv_nsec = ms * 1000000};
    while (nanosleep(&left, &left) != 0)
        ;
}

APART void sleeping_part(void) {
    nap(sleep_ms);
    __asm__ volatile("");
}

APART void locked_part(void) {
    sem_post(&asked);
    pthread_mutex_lock(&lock);
    pthread_mutex_unlock(&lock);
    sem_post(&given);
    __asm__ volatile("");
}

APART void computing_part(void) {
    uint64_t end = clock_ns(CLOCK_THREAD_CPUTIME_ID) + compute_ms * 1000000ull, x = 1;
    while (clock_ns(CLOCK_THREAD_CPUTIME_ID) < end) {
        CHAIN(x, 20000);
        sink = x;
    }
}

static void *hold(void *unused) {
    for (;;) {
        pthread_mutex_lock(&lock);
        sem_wait(&asked);
        nap(lock_ms);
        pthread_mutex_unlock(&lock);
        sem_wait(&given);
    }
    return unused;
}

static void *work(void *unused) {
    void (*parts[PARTS])(void) = {sleeping_part, locked_part, computing_part};
    for (unsigned number = 0;; number++) {
        part_begins(&worked);
        parts[number % PARTS]();
    }
    return unused;
}

int main(void) {
    pthread_t holder, worker;
    sem_init(&asked, 0, 0);
    sem_init(&given, 0, 0);
    if (pthread_create(&holder, NULL, hold, NULL))
        return 1;
    nap(20);
    if (pthread_create(&worker, NULL, work, NULL))
        return 1;
    pthread_setname_np(holder, "holder");
    pthread_setname_np(worker, "worker");
    target_ready();
    while (!stop)
        usleep(10000);
    report_parts(&worked);
    return OWN_EXIT_CODE;
}
