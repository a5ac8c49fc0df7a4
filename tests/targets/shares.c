/* A thread that sleeps for 60 % of its time, waits for a lock for 25 % and computes for 15 %,
 * each in its own function. It measures the time in each. Another thread holds the lock. SIGUSR1
 * restarts the measurement, and SIGUSR2 ends it.
 */
#include "target.h"
#include <semaphore.h>

#define PARTS 3

static const unsigned sleep_ms = 120, lock_ms = 50, compute_ms = 30;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static sem_t asked, given;
static volatile uint64_t sink, spent_ns[PARTS], part_start_ns;
static volatile unsigned current_part, rounds;
static volatile sig_atomic_t is_restart_due, is_end_due;

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
    for (;; rounds++) {
        for (unsigned part = 0; part < PARTS; part++) {
            current_part = part;
            part_start_ns = clock_ns(CLOCK_MONOTONIC);
            parts[part]();
            spent_ns[part] += clock_ns(CLOCK_MONOTONIC) - part_start_ns;
        }
    }
    return unused;
}

static void on_signal(int signal) {
    *(signal == SIGUSR1 ? &is_restart_due : &is_end_due) = 1;
}

/* The time in each part so far, with that of the part that has not ended. */
static void measure(uint64_t into[PARTS]) {
    for (int part = 0; part < PARTS; part++)
        into[part] = spent_ns[part];
    into[current_part] += clock_ns(CLOCK_MONOTONIC) - part_start_ns;
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
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    sigaction(SIGUSR2, &action, NULL);
    uint64_t before[PARTS] = {0}, after[PARTS];
    int is_ended = 0;
    target_ready();
    while (!stop) {
        if (is_restart_due)
            measure(before);
        if (is_end_due)
            measure(after);
        is_ended |= is_end_due;
        is_restart_due = is_end_due = 0;
        usleep(10000);
    }
    if (!is_ended)
        measure(after);
    printf("sleeping_ns %lu\nlocked_ns %lu\ncomputing_ns %lu\n",
           (unsigned long)(after[0] - before[0]), (unsigned long)(after[1] - before[1]),
           (unsigned long)(after[2] - before[2]));
    printf("rounds %u\n", rounds);
    return OWN_EXIT_CODE;
}
