/* Threads that wait for work that never comes, and two that wait for each other's locks.
 *
 *     pool THREADS
 */
#include "target.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER, locks[2];
static pthread_cond_t work_came = PTHREAD_COND_INITIALIZER;
static pthread_barrier_t both;

APART void take_work(void) {
    pthread_mutex_lock(&lock);
    while (!stop)
        pthread_cond_wait(&work_came, &lock);
    pthread_mutex_unlock(&lock);
}

static void *wait_for_work(void *unused) {
    take_work();
    return unused;
}

APART void embrace(int mine) {
    pthread_mutex_lock(&locks[mine]);
    pthread_barrier_wait(&both);
    pthread_mutex_lock(&locks[!mine]);
    __asm__ volatile("");
}

static void *hang(void *mine) {
    embrace((int)(intptr_t)mine);
    return NULL;
}

static void start(void *(*body)(void *), void *argument, const char *name) {
    pthread_t thread;
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 << 10);
    if (pthread_create(&thread, &small, body, argument))
        exit(1);
    pthread_setname_np(thread, name);
}

int main(int argc, char **argv) {
    int count = argc > 1 ? atoi(argv[1]) : 4;
    pthread_barrier_init(&both, NULL, 2);
    for (int mine = 0; mine < 2; mine++) {
        pthread_mutex_init(&locks[mine], NULL);
        start(hang, (void *)(intptr_t)mine, "hung");
    }
    for (int index = 0; index < count; index++)
        start(wait_for_work, NULL, "idle");
    target_ready();
    while (!stop)
        pause();
    return OWN_EXIT_CODE;
}
