/* Two kinds of threads alternate, and each thread reuses the thread id of the one before. Needs the
 * permission to set the next id.
 *
 *     reuse [MS]       CPU time of each, 15 if not given
 */
#include "target.h"
#include <fcntl.h>
#include <sys/syscall.h>

static volatile uint64_t sink;
static uint64_t budget_ns = 15000000;
static int next_id, wanted, reused[2];

APART uint64_t alpha_work(uint64_t x) {
    do {
        CHAIN(x, 2000);
    } while (clock_ns(CLOCK_THREAD_CPUTIME_ID) < budget_ns);
    return x;
}

APART uint64_t beta_work(uint64_t x) {
    do {
        CHAIN(x, 2000);
    } while (clock_ns(CLOCK_THREAD_CPUTIME_ID) < budget_ns);
    return x + 1;
}

static void *thread_main(void *kind) {
    int is_beta = kind != NULL, tid = syscall(SYS_gettid);
    if (wanted && tid != wanted)
        return NULL; /* another process took the id */
    wanted = tid;
    pthread_setname_np(pthread_self(), is_beta ? "beta" : "alpha");
    sink = is_beta ? beta_work(1) : alpha_work(1);
    reused[is_beta]++;
    return kind;
}

int main(int argc, char **argv) {
    if (argc > 1)
        budget_ns = strtoull(argv[1], NULL, 10) * 1000000;
    next_id = open("/proc/sys/kernel/ns_last_pid", O_WRONLY | O_CLOEXEC);
    if (next_id < 0)
        return 1;
    target_ready();
    for (int kind = 0; !stop;) {
        pthread_t thread;
        void *result;
        int before = reused[kind];
        if (wanted) {
            char text[16];
            int len = snprintf(text, sizeof text, "%d", wanted - 1);
            if (pwrite(next_id, text, len, 0) != len)
                return 2;
        }
        if (pthread_create(&thread, NULL, thread_main, kind ? &reused : NULL))
            return 3;
        pthread_join(thread, &result);
        if (reused[kind] > before)
            kind = !kind;
    }
    printf("tid %d\nalpha %d\nbeta %d\n", wanted, reused[0], reused[1]);
    return OWN_EXIT_CODE;
}
