/* N threads asleep and one at work: what an attach has to walk through.
 *
 *     many_threads N
 */
#include "target.h"

static volatile uint64_t sink;
static int up;

static void *asleep(void *unused) {
    (void)unused;
    struct timespec long_time = {.tv_sec = 3600};
    __atomic_add_fetch(&up, 1, __ATOMIC_SEQ_CST);
    nanosleep(&long_time, NULL);
    return NULL;
}

APART uint64_t lone_worker(uint64_t x) { CHAIN(x, 200000); return x; }

int main(int argc, char **argv) {
    int count = argc > 1 ? atoi(argv[1]) : 100;
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 << 10);
    for (int i = 0; i < count; i++) {
        pthread_t thread;
        if (pthread_create(&thread, &small, asleep, NULL))
            return 1;
    }
    while (__atomic_load_n(&up, __ATOMIC_SEQ_CST) < count)
        usleep(1000);
    target_ready();
    while (!stop)
        sink = lone_worker(sink) + 1;
    return OWN_EXIT_CODE;
}
