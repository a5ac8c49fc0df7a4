// One thread in each of many blocking calls. A call that returns is counted and named. SIGTERM ends
// the program; the exit code is the number of calls that returned.
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static volatile int ending;
static int returned, pipes[2], epoll, event, pair[2], timed[2], listener, sem, msg;
static int word;
static struct timespec age = {1000, 0};
static void *gone(const char *what) {
    if (ending) return NULL;
    fprintf(stderr, "%s returned, errno %d\n", what, errno);
    __atomic_add_fetch(&returned, 1, __ATOMIC_SEQ_CST);
    return NULL;
}
#define BLOCK(name, ...) \
    static void *name(void *unused) { (void)unused; __VA_ARGS__; return gone(#name); }
BLOCK(in_nanosleep, nanosleep(&age, NULL))
BLOCK(in_clock_nanosleep, struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); t.tv_sec += 1000;
      clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL))
BLOCK(in_read, char c; read(pipes[0], &c, 1))
BLOCK(in_eventfd, long v; read(event, &v, 8))
BLOCK(in_poll, struct pollfd p = {pipes[0], POLLIN, 0}; poll(&p, 1, 1000000))
// SIGTERM stays for the main thread, which may be between two calls.
BLOCK(in_ppoll, struct pollfd p = {pipes[0], POLLIN, 0}; sigset_t s; sigemptyset(&s);
      sigaddset(&s, SIGTERM); ppoll(&p, 1, &age, &s))
BLOCK(in_select, fd_set s; FD_ZERO(&s); FD_SET(pipes[0], &s); struct timeval t = {1000, 0};
      select(pipes[0] + 1, &s, NULL, NULL, &t))
BLOCK(in_epoll, struct epoll_event e; epoll_wait(epoll, &e, 1, -1))
BLOCK(in_epoll_timed, struct epoll_event e; epoll_wait(epoll, &e, 1, 1000000))
BLOCK(in_futex, syscall(SYS_futex, &word, FUTEX_WAIT, 0, NULL, NULL, 0))
BLOCK(in_futex_timed, syscall(SYS_futex, &word, FUTEX_WAIT, 0, &age, NULL, 0))
BLOCK(in_pause, pause())
BLOCK(in_sigsuspend, sigset_t s; sigemptyset(&s); sigaddset(&s, SIGTERM); sigsuspend(&s))
BLOCK(in_sigtimedwait, sigset_t s; sigemptyset(&s); sigaddset(&s, SIGUSR2);
      sigtimedwait(&s, NULL, &age))
BLOCK(in_semop, struct sembuf b = {0, -1, 0}; semop(sem, &b, 1))
BLOCK(in_msgrcv, struct { long t; char b[8]; } m; msgrcv(msg, &m, 8, 0, 0))
BLOCK(in_accept, accept(listener, NULL, NULL))
BLOCK(in_recv, char c; recv(pair[0], &c, 1, 0))
BLOCK(in_recv_timed, char c; recv(timed[0], &c, 1, 0))
int main(void) {
    pipe(pipes);
    epoll = epoll_create1(0);
    event = eventfd(0, 0);
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    socketpair(AF_UNIX, SOCK_STREAM, 0, timed);
    struct timeval limit = {1000, 0};
    setsockopt(timed[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    listener = socket(AF_INET, SOCK_STREAM, 0);
    listen(listener, 1);
    sem = semget(IPC_PRIVATE, 1, 0600);
    msg = msgget(IPC_PRIVATE, 0600);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    void *(*all[])(void *) = {in_nanosleep, in_clock_nanosleep, in_read, in_eventfd, in_poll,
                              in_ppoll,
        in_select, in_epoll, in_epoll_timed, in_futex, in_futex_timed, in_pause, in_sigsuspend,
        in_sigtimedwait, in_semop, in_msgrcv, in_accept, in_recv, in_recv_timed};
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++) {
        pthread_t t;
        if (pthread_create(&t, NULL, all[i], NULL)) return 99;
    }
    usleep(100000);
    write(1, "ready\n", 6);
    int s;
    sigdelset(&set, SIGUSR2);
    while (sigwait(&set, &s) != 0) {}
    int verdict = returned;
    ending = 1;
    semctl(sem, 0, IPC_RMID);
    msgctl(msg, IPC_RMID, NULL);
    return verdict;
}
