/* N threads that are started at SIGUSR1. Each works for some microseconds of CPU time and stays
 * until the end. The main thread's name shows when all have worked.
 *
 *     crowd N MICROSECONDS
 */
#include "target.h"

static volatile uint64_t sink;
static volatile sig_atomic_t begin;
static uint64_t budget_ns;
static unsigned done;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void on_sigusr1(int signal) {
    (void)signal;
    begin = 1;
}

APART uint64_t crowd_work(void) {
    uint64_t x = 1;
    do {
        CHAIN(x, 20000);
    } while (clock_ns(CLOCK_THREAD_CPUTIME_ID) < budget_ns);
    return x;
}

static void *thread_main(void *unused) {
    (void)unused;
    sink = crowd_work();
    __atomic_add_fetch(&done, 1, __ATOMIC_SEQ_CST);
    /* Held by main until the end. */
    pthread_mutex_lock(&lock);
    pthread_mutex_unlock(&lock);
    return NULL;
}

int main(int argc, char **argv) {
    unsigned count = argc > 1 ? atoi(argv[1]) : 100, failed = 0;
    budget_ns = 1000ull * (argc > 2 ? atoi(argv[2]) : 1000);
    struct sigaction action = {.sa_handler = on_sigusr1, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 << 10);
    pthread_mutex_lock(&lock);
    target_ready();
    while (!begin && !stop)
        usleep(1000);
    for (unsigned i = 0; i < count && !stop; i++) {
        pthread_t thread;
        failed += pthread_create(&thread, &small, thread_main, NULL) != 0;
    }
    while (!stop && __atomic_load_n(&done, __ATOMIC_SEQ_CST) + failed < count)
        usleep(1000);
    /* A waiting process polls the name. */
    prctl(PR_SET_NAME, "crowd-done");
    while (!stop)
        usleep(1000);
    printf("failed %u\ndone %u\n", failed, done);
    return OWN_EXIT_CODE;
}
