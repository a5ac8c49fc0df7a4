// Forty threads spin on stacks too small for a chain, and the main thread waits. SIGTERM ends it
// with 7, or with 1 if the wait was interrupted by anything else.
#include <pthread.h>
#include <signal.h>
#include <unistd.h>
static volatile sig_atomic_t done;
static void stop(int s) { (void)s; done = 1; }
static pthread_barrier_t started;
static void *spin(void *p) {
    pthread_barrier_wait(&started);
    while (!done) __asm__ volatile("pause");
    return p;
}
int main(void) {
    sigset_t term;
    pthread_t t;
    pthread_attr_t small;
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &term, NULL);
    pthread_barrier_init(&started, NULL, 41);
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 32768);
    for (int i = 0; i < 40; i++) pthread_create(&t, &small, spin, NULL);
    pthread_barrier_wait(&started);
    signal(SIGTERM, stop);
    pthread_sigmask(SIG_UNBLOCK, &term, NULL);
    write(1, "ready\n", 6);
    pause();
    return done ? 7 : 1;
}
