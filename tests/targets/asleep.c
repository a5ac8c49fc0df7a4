/* A thread for each of several calls to sleep in, a thread that sleeps at the end of a very long
 * stack, and a thread that runs. Each has two functions named after it. No call may return
 * before SIGTERM. */
#include "target.h"
#include <sys/epoll.h>
#include <sys/ipc.h>
#include <sys/sem.h>

static pthread_mutex_t taken = PTHREAD_MUTEX_INITIALIZER;
static volatile uint64_t sink;
static unsigned eintr, other;
static int set = -1;

static void came_back(void) {
    if (!stop)
        __atomic_add_fetch(errno == EINTR ? &eintr : &other, 1, __ATOMIC_RELAXED);
}

/* About 500 KB of stack. */
#define DEEP 4000
APART static int dig(int left) {
    volatile char room[100] = {(char)left};
    if (left == 0)
        pause();
    else
        room[1] = (char)dig(left - 1);
    return room[0] + room[1];
}

#define THREAD(name, body)                                                                         \
    APART static int name##_inner(int x) {                                                         \
        body;                                                                                      \
        came_back();                                                                               \
        return x + 1;                                                                              \
    }                                                                                              \
    APART static int name##_outer(int x) { return name##_inner(x + 1) + 1; }                       \
    static void *name(void *unused) {                                                              \
        pthread_setname_np(pthread_self(), #name);                                                 \
        sink = name##_outer(3);                                                                    \
        return unused;                                                                             \
    }

THREAD(on_mutex, pthread_mutex_lock(&taken))
THREAD(in_read, {
    int ends[2];
    char byte;
    if (!pipe(ends) && read(ends[0], &byte, 1)) {}
})
THREAD(in_sleep, {
    struct timespec long_time = {.tv_sec = 3600};
    nanosleep(&long_time, NULL);
})
THREAD(in_epoll, {
    struct epoll_event event;
    epoll_wait(epoll_create1(0), &event, 1, -1);
})
THREAD(in_sigwait, {
    sigset_t usr1;
    struct timespec long_time = {.tv_sec = 3600};
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    sigtimedwait(&usr1, NULL, &long_time);
})
THREAD(in_semop, {
    set = semget(IPC_PRIVATE, 1, 0600);
    struct sembuf down = {.sem_op = -1};
    struct timespec long_time = {.tv_sec = 3600};
    semtimedop(set, &down, 1, &long_time);
})
THREAD(is_deep, sink = dig(DEEP))
THREAD(runs, {
    uint64_t steps = 1;
    while (!stop)
        CHAIN(steps, 100000);
    sink = steps;
})

int main(void) {
    void *(*const all[])(void *) = {on_mutex, in_read,  in_sleep, in_epoll,
                                    in_sigwait, in_semop, is_deep,  runs};
    pthread_t thread;
    sigset_t term, none;
    sigemptyset(&none);
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    sigaddset(&term, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &term, NULL);
    pthread_mutex_lock(&taken);
    for (unsigned index = 0; index < sizeof all / sizeof *all; index++)
        pthread_create(&thread, NULL, all[index], NULL);
    target_ready();
    while (!stop)
        sigsuspend(&none);
    pthread_join(thread, NULL);
    semctl(set, 0, IPC_RMID);
    printf("eintr %u\nother %u\n", eintr, other);
    return OWN_EXIT_CODE;
}
