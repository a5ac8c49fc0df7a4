// Waits for ever in epoll_wait, in an address space that has no room for an agent. SIGTERM ends it
// with 7, or with 1 if the wait ended before.
#include <signal.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>
static volatile sig_atomic_t done;
static void stop(int s) { (void)s; done = 1; }
int main(void) {
    struct rlimit room = {1 << 20, 1 << 20};
    struct epoll_event event;
    int epoll = epoll_create1(0);
    signal(SIGTERM, stop);
    setrlimit(RLIMIT_AS, &room);
    write(1, "ready\n", 6);
    epoll_wait(epoll, &event, 1, -1);
    return done ? 7 : 1;
}
