/* A thread waits for SIGTRAP, which it blocks, and computes for some milliseconds after each. The
 * main thread sends it a SIGTRAP now and then. Each must arrive exactly once, and no other may.
 *
 *     trap_waiter sigwait     with sigtimedwait
 *     trap_waiter signalfd    with a descriptor
 *     trap_waiter late        with a descriptor, from the first SIGUSR1 on
 *     trap_waiter all         with sigtimedwait, for every other signal as well
 *
 * With `quiet` behind it, the first SIGTRAP is sent after the first SIGUSR1: until then the thread
 * waits.
 */
#include "target.h"
#include <sys/signalfd.h>
#include <sys/syscall.h>

#define VALUE 0x5eed

static uint64_t sent, arrived, wrong;
static volatile uint64_t sink;
static int waiter, by_descriptor, is_over;
static volatile sig_atomic_t is_late, is_quiet;
static sigset_t trap;

static void add(uint64_t *count) { __atomic_add_fetch(count, 1, __ATOMIC_SEQ_CST); }

static void note(int pid, int value) {
    if (!__atomic_load_n(&is_over, __ATOMIC_SEQ_CST))
        add(pid == getpid() && value == VALUE ? &arrived : &wrong);
}

static void wait_by_call(void) {
    siginfo_t got;
    if (sigwaitinfo(&trap, &got) > 0)
        note(got.si_code == SI_QUEUE ? got.si_pid : 0, got.si_value.sival_int);
}

static void wait_by_descriptor(int fd) {
    struct signalfd_siginfo got;
    if (read(fd, &got, sizeof got) == sizeof got)
        note(got.ssi_code == SI_QUEUE ? (int)got.ssi_pid : 0, got.ssi_int);
}

APART uint64_t between_waits(uint64_t x) { CHAIN(x, 5000000); return x; }
APART uint64_t beside_waits(uint64_t x) { CHAIN(x, 200000); return x; }

static void on_sigusr1(int signal) {
    (void)signal;
    is_late = is_quiet = 0;
}

static void *waiting(void *unused) {
    int fd = -1;
    (void)unused;
    while (is_late)
        sink = between_waits(sink) + 1;
    pthread_sigmask(SIG_BLOCK, &trap, NULL);
    if (by_descriptor)
        fd = signalfd(-1, &trap, SFD_CLOEXEC);
    __atomic_store_n(&waiter, (int)syscall(SYS_gettid), __ATOMIC_SEQ_CST);
    while (!__atomic_load_n(&is_over, __ATOMIC_SEQ_CST)) {
        by_descriptor ? wait_by_descriptor(fd) : wait_by_call();
        sink = between_waits(sink) + 1;
    }
    return NULL;
}

static void send(void) {
    siginfo_t siginfo = {.si_signo = SIGTRAP, .si_code = SI_QUEUE};
    siginfo.si_pid = getpid();
    siginfo.si_uid = getuid();
    siginfo.si_value.sival_int = VALUE;
    syscall(SYS_rt_tgsigqueueinfo, getpid(), waiter, SIGTRAP, &siginfo);
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "sigwait";
    struct sigaction late = {.sa_handler = on_sigusr1, .sa_flags = SA_RESTART};
    pthread_t thread;
    sigset_t ends, before;
    is_late = !strcmp(how, "late");
    is_quiet = argc > 2 && !strcmp(argv[2], "quiet");
    by_descriptor = is_late || !strcmp(how, "signalfd");
    sigemptyset(&trap);
    if (!strcmp(how, "all"))
        sigfillset(&trap);
    sigaddset(&trap, SIGTRAP);
    sigdelset(&trap, SIGTERM);
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGUSR1);
    sigaction(SIGUSR1, &late, NULL);
    pthread_sigmask(SIG_BLOCK, &ends, &before);
    if (pthread_create(&thread, NULL, waiting, NULL))
        return 1;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    while (!is_late && !__atomic_load_n(&waiter, __ATOMIC_SEQ_CST))
        usleep(1000);
    target_ready();
    uint64_t last = 0;
    while (!stop) {
        sink = beside_waits(sink) + 1;
        /* Such signals do not queue, so they are sent one after the other. */
        if (!is_quiet && clock_ns(CLOCK_MONOTONIC) - last > 300000000 &&
            __atomic_load_n(&waiter, __ATOMIC_SEQ_CST) &&
            __atomic_load_n(&arrived, __ATOMIC_SEQ_CST) == sent) {
            last = clock_ns(CLOCK_MONOTONIC);
            add(&sent);
            send();
        }
    }
    for (int i = 0; i < 2000 && __atomic_load_n(&arrived, __ATOMIC_SEQ_CST) < sent; i++)
        usleep(1000);
    is_late = 0;
    __atomic_store_n(&is_over, 1, __ATOMIC_SEQ_CST);
    /* Sends one more if the thread waits. */
    if (__atomic_load_n(&waiter, __ATOMIC_SEQ_CST))
        send();
    pthread_join(thread, NULL);
    printf("sent %lu\narrived %lu\nwrong %lu\n", sent, arrived, wrong);
    return OWN_EXIT_CODE;
}
