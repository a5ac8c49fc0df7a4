// A hundred threads: some spin, some sleep, some start and exit repeatedly. SIGTERM ends it with 7,
// or with 1 if a sleep was interrupted.
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>
static volatile sig_atomic_t done, broken;
static void stop(int s) { (void)s; done = 1; }
static void *spin(void *p) { while (!done) __asm__ volatile("pause"); return p; }
static void *doze(void *p) {
    struct timespec t = {0, 3000000};
    while (!done) if (nanosleep(&t, NULL)) broken = 1;
    return p;
}
static void *brief(void *p) { for (volatile int i = 0; i < 20000; i++) {} return p; }
static void *bear(void *p) {
    struct timespec t = {0, 500000};
    while (!done) {
        pthread_t b;
        if (!pthread_create(&b, NULL, brief, NULL)) pthread_join(b, NULL);
        nanosleep(&t, NULL);
    }
    return p;
}
int main(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    pthread_t t;
    pthread_create(&t, NULL, spin, NULL);
    for (int i = 0; i < 96; i++) pthread_create(&t, NULL, doze, NULL);
    pthread_create(&t, NULL, bear, NULL);
    signal(SIGTERM, stop);
    write(1, "ready\n", 6);
    sigemptyset(&set);
    while (!done) sigsuspend(&set);
    return broken ? 1 : 7;
}
