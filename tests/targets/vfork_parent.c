/* The main thread waits again and again for a child of vfork, which uses the parent's memory. With
 * "busy" another thread computes meanwhile. No signal wakes the child: it sleeps and exits with a
 * code. With "nested" it has its own child of vfork do so.
 *
 *     vfork_parent MILLISECONDS [busy [nested]]
 */
#include "target.h"
#include <sys/syscall.h>
#include <sys/wait.h>

static volatile uint64_t sink;
static unsigned children, wrong;
static int nested;

static void *busy(void *unused) {
    uint64_t x = 1;
    (void)unused;
    while (!stop) {
        CHAIN(x, 20000);
        sink = x;
    }
    return NULL;
}

static struct timespec nap;

/* A separate function, because the child reuses the frames of the caller of vfork. */
APART int sleep_in_a_child(void) {
    int status = 0;
    pid_t child = vfork();
    if (child == 0)
        _exit(nanosleep(&nap, NULL) ? 1 : 9);
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

static void have_a_child(void) {
    int status = 0;
    pid_t child = vfork();
    if (child == 0)
        _exit(nested ? sleep_in_a_child() : nanosleep(&nap, NULL) ? 1 : 9);
    children++;
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 9)
        wrong++;
}

int main(int argc, char **argv) {
    long ms = argc > 1 ? atol(argv[1]) : 1000;
    nap = (struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    nested = argc > 3;
    pthread_t thread;
    sigset_t term, before;
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &term, &before);
    if (argc > 2 && pthread_create(&thread, NULL, busy, NULL))
        return 1;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    while (argc > 2 && sink == 0)
        usleep(1000);
    target_ready();
    while (!stop)
        have_a_child();
    printf("children %u\nwrong %u\n", children, wrong);
    return OWN_EXIT_CODE;
}
