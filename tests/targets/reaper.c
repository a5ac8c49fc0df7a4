/* Threads with short-lived children beside threads that wait in calls which a stop ends with
 * EINTR.
 *
 * SIGCHLD is ignored by default: the kernel drops it when it is sent, and no call ends. But if
 * the child's parent is traced, the kernel sends it nevertheless.
 */
#include "target.h"
#include <sys/epoll.h>
#include <sys/wait.h>

#define PARENTS 3
#define WAITERS 24

static unsigned children, eintr, wrong;
static int epoll;

static void *have_children(void *unused) {
    (void)unused;
    while (!stop) {
        pid_t child = fork();
        if (child == 0)
            _exit(9);
        int status = 0;
        if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 9)
            __atomic_add_fetch(&wrong, 1, __ATOMIC_RELAXED);
        __atomic_add_fetch(&children, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

static void *wait_for_nothing(void *unused) {
    struct epoll_event event;
    (void)unused;
    while (!stop)
        if (epoll_wait(epoll, &event, 1, 500) < 0)
            __atomic_add_fetch(errno == EINTR ? &eintr : &wrong, 1, __ATOMIC_RELAXED);
    return NULL;
}

int main(void) {
    pthread_t threads[PARENTS + WAITERS];
    sigset_t term, before;
    uint64_t x = 1;
    epoll = epoll_create1(0);
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &term, &before);
    for (int i = 0; i < PARENTS + WAITERS; i++)
        if (pthread_create(&threads[i], NULL, i < PARENTS ? have_children : wait_for_nothing, NULL))
            return 1;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    target_ready();
    while (!stop)
        CHAIN(x, 20000);
    for (int i = 0; i < PARENTS + WAITERS; i++)
        pthread_join(threads[i], NULL);
    printf("children %u\neintr %u\nwrong %u\nother %d\n", children, eintr, wrong, x == 0);
    return OWN_EXIT_CODE;
}
