/* The parent of a vfork that lasts until the child gets SIGTERM. Meanwhile a second thread
 * alternates between work and sleep. */
#include "target.h"
#include <sys/wait.h>

static void *naps(void *unused) {
    while (!stop)
        usleep(1000);
    return unused;
}

APART static int forks(int x) {
    sigset_t none;
    sigemptyset(&none);
    pid_t child = vfork();
    if (child == 0) {
        while (!stop)
            sigsuspend(&none);
        _exit(0);
    }
    return waitpid(child, NULL, 0) == child ? x : -1;
}

int main(void) {
    pthread_t thread;
    sigset_t term;
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &term, NULL);
    pthread_create(&thread, NULL, naps, NULL);
    target_ready();
    int x = forks(1);
    pthread_join(thread, NULL);
    return x == 1 ? OWN_EXIT_CODE : 1;
}
