/* A thread that sleeps again and again where no signal ends the sleep: it waits for a child to
 * exit, as vfork does.
 *
 *     disk MILLISECONDS
 */
#include "target.h"
#include <sched.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static struct timespec nap;

/* By its number, because the libc functions for it have no unwind information at the call. */
APART void wait_for_a_child(void) {
    pid_t child = (pid_t)syscall(SYS_clone, CLONE_VFORK | SIGCHLD, 0, 0, 0, 0);
    if (child == 0) {
        syscall(SYS_nanosleep, &nap, NULL);
        syscall(SYS_exit_group, 0);
    }
    while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
        ;
}

static void *work(void *unused) {
    while (!stop)
        wait_for_a_child();
    return unused;
}

int main(int argc, char **argv) {
    unsigned ms = argc > 1 ? (unsigned)atoi(argv[1]) : 1000;
    pthread_t thread;
    nap = (struct timespec){ms / 1000, ms % 1000 * 1000000l};
    target_ready();
    if (pthread_create(&thread, NULL, work, NULL))
        return 1;
    pthread_setname_np(thread, "waiter");
    pthread_join(thread, NULL);
    return OWN_EXIT_CODE;
}
