/* Threads that compute and check their results, beside threads that sleep in calls of many kinds
 * and count every wakeup.
 *
 *     steady THREADS [seccomp|lethal|undumpable]
 *
 * The main thread and up to two others compute. "seccomp": under a filter that refuses execve and
 * permits everything else. "lethal": under a filter that kills for shmat. "undumpable": closed to
 * other processes of its user.
 */
#include "target.h"
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/syscall.h>

#define COMPUTING 2
#define HOUR 3600

static unsigned up, eintr, other, wrong;
static int pipe_ends[2], epoll;

static unsigned raise_by_one(unsigned *count) { return __atomic_add_fetch(count, 1, __ATOMIC_SEQ_CST); }

/* Fills the integer and floating-point registers with values that must be the same each time. */
APART uint64_t compute(uint64_t x) {
    double a = 1.5, b = 2.5, c = 3.5, d = 0.25;
    for (int i = 0; i < 20000; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        a = a * 0.999 + 0.1;
        b = b * 0.998 + a;
        c = c * 0.997 + b;
        d = d * 0.996 + c;
    }
    double sum = a + b + c + d;
    uint64_t bits;
    memcpy(&bits, &sum, sizeof bits);
    return x ^ bits;
}

static void compute_until_the_end(void) {
    uint64_t right = compute(7);
    while (!stop)
        if (compute(7) != right)
            raise_by_one(&wrong);
}

static void *computing(void *unused) {
    (void)unused;
    raise_by_one(&up);
    compute_until_the_end();
    return NULL;
}

static long block(int kind) {
    static int word;
    char byte;
    struct timespec hour = {.tv_sec = HOUR};
    struct epoll_event event;
    sigset_t usr1;
    switch (kind % 6) {
    case 0:
        return nanosleep(&hour, NULL);
    case 1:
        return poll(NULL, 0, HOUR * 1000);
    case 2:
        return read(pipe_ends[0], &byte, 1);
    case 3:
        return syscall(SYS_futex, &word, FUTEX_WAIT, 0, &hour, NULL, 0);
    case 4:
        return epoll_wait(epoll, &event, 1, -1);
    default:
        sigemptyset(&usr1);
        sigaddset(&usr1, SIGUSR1);
        return sigtimedwait(&usr1, NULL, &hour);
    }
}

static void *asleep(void *kind) {
    raise_by_one(&up);
    while (!stop)
        raise_by_one(block((int)(intptr_t)kind) < 0 && errno == EINTR ? &eintr : &other);
    return NULL;
}

static void start(int count) {
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 << 10);
    for (int i = 0; i < count; i++) {
        pthread_t thread;
        void *(*what)(void *) = i < COMPUTING ? computing : asleep;
        if (pthread_create(&thread, &small, what, (void *)(intptr_t)i))
            abort();
    }
    while (__atomic_load_n(&up, __ATOMIC_SEQ_CST) < (unsigned)count)
        usleep(1000);
}

static void filter(unsigned call, unsigned consequence) {
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, consequence),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {4, steps};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0))
        abort();
}

int main(int argc, char **argv) {
    const char *how = argc > 2 ? argv[2] : "";
    sigset_t taken, before;
    epoll = epoll_create1(0);
    if (pipe(pipe_ends) || epoll < 0)
        return 1;
    if (!strcmp(how, "seccomp"))
        filter(SYS_execve, SECCOMP_RET_ERRNO | EPERM);
    if (!strcmp(how, "lethal"))
        filter(SYS_shmat, SECCOMP_RET_KILL_PROCESS);
    /* Only the main thread takes SIGTERM. */
    sigemptyset(&taken);
    sigaddset(&taken, SIGTERM);
    sigaddset(&taken, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &taken, &before);
    start((argc > 1 ? atoi(argv[1]) : 1) - 1);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    target_ready();
    if (!strcmp(how, "undumpable"))
        prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    compute_until_the_end();
    printf("eintr %u\nother %u\nwrong %u\n", eintr, other, wrong);
    fflush(stdout);
    /* The sleepers stay in their calls. */
    _exit(OWN_EXIT_CODE);
}
