/* Blocks in one system call and counts how often it returned EINTR.
 *
 *     sleeper nanosleep|poll|read|sigwait|futex [burn]
 *
 * With "burn" a second thread uses CPU time, so that there is something to sample.
 */
#include "target.h"
#include <linux/futex.h>
#include <poll.h>
#include <sys/syscall.h>

static volatile uint64_t sink;
static volatile int up;

static void *burn(void *unused) {
    (void)unused;
    uint64_t x = 1;
    up = 1;
    while (!stop) {
        CHAIN(x, 100000);
        sink = x;
    }
    return NULL;
}

/* Blocks once; 0 or -1 with errno. */
static int block(const char *call, int pipe_end) {
    static int word;
    char byte;
    struct timespec long_time = {.tv_sec = 3600};
    sigset_t usr1;
    if (!strcmp(call, "nanosleep"))
        return nanosleep(&long_time, NULL);
    if (!strcmp(call, "poll"))
        return poll(NULL, 0, 3600 * 1000);
    if (!strcmp(call, "read"))
        return read(pipe_end, &byte, 1) < 0 ? -1 : 0;
    if (!strcmp(call, "futex"))
        return syscall(SYS_futex, &word, FUTEX_WAIT, 0, &long_time, NULL, 0) < 0 ? -1 : 0;
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    return sigtimedwait(&usr1, NULL, &long_time) < 0 ? -1 : 0;
}

int main(int argc, char **argv) {
    const char *call = argc > 1 ? argv[1] : "nanosleep";
    unsigned eintr = 0, other = 0;
    int ends[2];
    pthread_t burner;
    sigset_t term;
    if (pipe(ends))
        return 1;
    if (argc > 2) {
        sigemptyset(&term);
        sigaddset(&term, SIGTERM);
        pthread_sigmask(SIG_BLOCK, &term, NULL);
        pthread_create(&burner, NULL, burn, NULL);
        pthread_sigmask(SIG_UNBLOCK, &term, NULL);
        while (!up)
            usleep(1000);
    }
    target_ready();
    /* No SA_RESTART here: SIGTERM must interrupt the main thread's call. */
    struct sigaction action = {.sa_handler = on_sigterm};
    sigaction(SIGTERM, &action, NULL);
    while (!stop) {
        if (block(call, ends[0]) == 0)
            other++;
        else if (errno == EINTR)
            eintr += !stop;
        else
            other++;
    }
    printf("eintr %u\nother %u\n", eintr, other);
    return OWN_EXIT_CODE;
}
