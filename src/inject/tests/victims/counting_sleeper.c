// Sleeps in nanosleep, in "pause" or in "epoll", and counts the SIGUSR1 that it takes. SIGTERM ends
// it with that number. Other exit codes: 100 if SIGTRAP was taken, 101 if a call returned EINTR
// without one of these signals, 102 if more than two SIGUSR1 did not end the call that they came
// in.
//
// A signal that comes after the kernel has restarted a call, and before the call has begun again,
// does not end the call. That happens without a tracer as well: with SIGSTOP, SIGCONT and SIGUSR1
// to a thread in pause(), 5 to 37 times in 20,000 on a busy machine with two processors.
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>
static volatile sig_atomic_t done, taken, trapped, ended, unended;
static void stop(int s) { (void)s; done = 1; }
static void take(int s) { (void)s; taken++; }
static void trap(int s) { (void)s; trapped = 1; }
int main(int argc, char **argv) {
    struct sigaction act = {.sa_handler = stop};
    sigaction(SIGTERM, &act, NULL);
    act.sa_handler = take;
    sigaction(SIGUSR1, &act, NULL);
    act.sa_handler = trap;
    sigaction(SIGTRAP, &act, NULL);
    int epoll = argc > 1 && !strcmp(argv[1], "epoll") ? epoll_create1(0) : -1;
    struct epoll_event event;
    write(1, "ready\n", 6);
    while (!done) {
        struct timespec hour = {.tv_sec = 3600};
        int before = taken;
        int result = epoll >= 0 ? epoll_wait(epoll, &event, 1, -1)
                     : argc > 1 ? pause()
                                : nanosleep(&hour, NULL);
        unended += taken > before + 1;
        ended |= result < 0 && errno == EINTR && !done && taken == before;
    }
    return trapped ? 100 : ended ? 101 : unended > 2 ? 102 : taken;
}
