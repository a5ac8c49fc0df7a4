/* Threads that alternate between a short computation and a short sleep, in each of the calls that a
 * signal handler ends with EINTR, whatever its flags. New threads start all the time.
 *
 *     naps
 */
#include "target.h"
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#define KINDS 3

static volatile uint64_t sink;
static unsigned long eintr[KINDS], naps[KINDS];

APART uint64_t between_naps(uint64_t x) { CHAIN(x, 200000); return x; }

static int nap(int kind, int epoll) {
    struct epoll_event event;
    struct timespec moment = {.tv_nsec = 1000000};
    switch (kind) {
    case 0: return epoll_wait(epoll, &event, 1, 1);
    case 1: return poll(NULL, 0, 1);
    default: return nanosleep(&moment, NULL);
    }
}

static void *napper(void *argument) {
    int kind = (int)(intptr_t)argument, epoll = epoll_create1(EPOLL_CLOEXEC);
    uint64_t x = 1;
    for (int round = 0; round < 100 && !stop; round++) {
        sink = x = between_naps(x);
        if (nap(kind, epoll) < 0 && errno == EINTR && !stop)
            __atomic_add_fetch(&eintr[kind], 1, __ATOMIC_RELAXED);
        __atomic_add_fetch(&naps[kind], 1, __ATOMIC_RELAXED);
    }
    close(epoll);
    return NULL;
}

int main(void) {
    target_ready();
    while (!stop) {
        pthread_t threads[KINDS];
        for (int kind = 0; kind < KINDS; kind++)
            if (pthread_create(&threads[kind], NULL, napper, (void *)(intptr_t)kind))
                return 1;
        for (int kind = 0; kind < KINDS; kind++)
            pthread_join(threads[kind], NULL);
    }
    for (int kind = 0; kind < KINDS; kind++)
        printf("eintr_%d %lu\nnaps_%d %lu\n", kind, eintr[kind], kind, naps[kind]);
    return OWN_EXIT_CODE;
}
