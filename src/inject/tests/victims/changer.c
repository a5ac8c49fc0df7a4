// Four threads spin. On SIGUSR1, a thread other than the first executes the program again. On
// SIGUSR2, the first thread forks a child that spins too, and prints the child's pid. SIGTERM ends
// the program with 7.
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>
static volatile sig_atomic_t done, change, child;
static void stop(int s) { (void)s; done = 1; }
static void exec_(int s) { (void)s; change = 1; }
static void fork_(int s) { (void)s; child = 1; }
static int running;
static void *spin(void *first) {
    __atomic_add_fetch(&running, 1, __ATOMIC_SEQ_CST);
    while (!done)
        if (first && change) execl("/proc/self/exe", "changer", NULL);
    return NULL;
}
int main(void) {
    pthread_t t;
    signal(SIGTERM, stop);
    signal(SIGUSR1, exec_);
    signal(SIGUSR2, fork_);
    for (long i = 0; i < 3; i++) pthread_create(&t, NULL, spin, i ? NULL : (void *)1);
    while (__atomic_load_n(&running, __ATOMIC_SEQ_CST) < 3) {}
    write(1, "ready\n", 6);
    while (!done)
        if (child) {
            child = 0;
            int pid = fork();
            if (!pid) {
                for (volatile long i = 0; i < 300000000 && !done; i++) {}
                _exit(done ? 7 : 8);
            }
            dprintf(1, "%d\n", pid);
        }
    return 7;
}
