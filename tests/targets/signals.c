/* A program with signals of its own, which it counts.
 *
 *     signals blocked    every thread blocks every signal, and computes
 *     signals handled    handlers for every signal, on alternate stacks; threads raise them, and queue
 *                        real-time ones with values, all the time
 *     signals waited     one thread takes signals of all kinds from a signalfd, another from sigwaitinfo
 *
 * Each signal must arrive exactly once, with the value that it was sent with.
 */
#include "target.h"
#include <setjmp.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>

#define WORKERS 3
#define ALTERNATE (32 << 10)
#define VALUE 0x5eed0000

static uint64_t sent, arrived, wrong, jumps, up;
static __thread char *alternate;
static __thread sigjmp_buf home;
static volatile uint64_t sink;
static int tids[2], stranger;

static void add(uint64_t *count) { __atomic_add_fetch(count, 1, __ATOMIC_SEQ_CST); }

/* Leaves out signals that cannot be caught, those of glibc, and the one that ends the target.
 * Also leaves out SIGCONT, which the next stop signal cancels. */
static int is_free(int signal) {
    return signal != SIGKILL && signal != SIGSTOP && signal != 32 && signal != 33 && signal != SIGTERM &&
           signal != SIGCONT;
}

/* Reports the last signal that no thread here has sent. */
static int is_own(const siginfo_t *siginfo) {
    int is_own = siginfo->si_pid == getpid() && siginfo->si_value.sival_int == VALUE + siginfo->si_signo;
    if (!is_own)
        stranger = siginfo->si_signo;
    return is_own;
}

static void send_to(int tid, int signal) {
    siginfo_t siginfo = {.si_signo = signal, .si_code = SI_QUEUE};
    siginfo.si_pid = getpid();
    siginfo.si_uid = getuid();
    siginfo.si_value.sival_int = VALUE + signal;
    if (syscall(SYS_rt_tgsigqueueinfo, getpid(), tid, signal, &siginfo) == 0)
        add(&sent);
}

static void on_any(int signal, siginfo_t *siginfo, void *context) {
    char here;
    (void)context;
    if (alternate && (&here < alternate || &here >= alternate + ALTERNATE))
        add(&wrong);
    if (siginfo->si_signo != signal || !is_own(siginfo))
        add(&wrong);
    add(&arrived);
}

/* The handler of the program's own fault leaves it with a jump. */
static void on_fault(int signal, siginfo_t *siginfo, void *context) {
    if (siginfo->si_code == SI_QUEUE)
        return on_any(signal, siginfo, context);
    siglongjmp(home, 1);
}

static void handle_all(void) {
    struct sigaction action = {.sa_sigaction = on_any, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
    for (int signal = 1; signal <= SIGRTMAX; signal++) {
        action.sa_sigaction = signal == SIGSEGV || signal == SIGFPE ? on_fault : on_any;
        if (is_free(signal))
            sigaction(signal, &action, NULL);
    }
}

static void fault(void) {
    if (sigsetjmp(home, 1) == 0)
        *(volatile int *)(uintptr_t)sink = 0;
    else
        add(&jumps);
}

APART uint64_t compute(uint64_t x) { CHAIN(x, 20000); return x; }

static void compute_once(void) {
    if (compute(3) != compute(3))
        add(&wrong);
}

static int only_term_is_blocked(void) {
    sigset_t now;
    int blocked = 0;
    pthread_sigmask(SIG_SETMASK, NULL, &now);
    for (int signal = 1; signal <= SIGRTMAX; signal++)
        blocked += sigismember(&now, signal) == 1;
    return blocked == 1 && sigismember(&now, SIGTERM);
}

static void *raising(void *unused) {
    stack_t stack = {.ss_size = ALTERNATE}, now;
    (void)unused;
    alternate = stack.ss_sp = malloc(ALTERNATE);
    sigaltstack(&stack, NULL);
    add(&up);
    while (!stop) {
        for (int signal = 1; signal <= SIGRTMAX; signal++)
            if (is_free(signal))
                send_to((int)syscall(SYS_gettid), signal);
        fault();
        compute_once();
        sigaltstack(NULL, &now);
        if (now.ss_sp != alternate || now.ss_flags & SS_DISABLE || !only_term_is_blocked())
            add(&wrong);
    }
    return NULL;
}

static void *blocking(void *unused) {
    (void)unused;
    add(&up);
    while (!stop)
        compute_once();
    return NULL;
}

static pthread_t start(void *(*what)(void *)) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, what, NULL))
        abort();
    return thread;
}

/* SIGTRAP is left to perf events, which have no other signal. */
static sigset_t waited_for(void) {
    sigset_t set;
    sigfillset(&set);
    sigdelset(&set, SIGTERM);
    sigdelset(&set, SIGTRAP);
    return set;
}

static void take(const siginfo_t *siginfo) {
    if (!is_own(siginfo))
        add(&wrong);
    add(&arrived);
}

/* These two threads block all signals, so signals to them stay pending. */
static void *reading(void *unused) {
    struct signalfd_siginfo got;
    sigset_t all = waited_for();
    (void)unused;
    int fd = signalfd(-1, &all, SFD_CLOEXEC);
    __atomic_store_n(&tids[0], (int)syscall(SYS_gettid), __ATOMIC_SEQ_CST);
    while (read(fd, &got, sizeof got) == sizeof got) {
        siginfo_t siginfo = {.si_signo = (int)got.ssi_signo};
        siginfo.si_pid = (pid_t)got.ssi_pid;
        siginfo.si_value.sival_int = got.ssi_int;
        take(&siginfo);
    }
    add(&wrong);
    return NULL;
}

static void *waiting(void *unused) {
    siginfo_t siginfo;
    sigset_t all = waited_for();
    (void)unused;
    __atomic_store_n(&tids[1], (int)syscall(SYS_gettid), __ATOMIC_SEQ_CST);
    while (sigwaitinfo(&all, &siginfo) > 0)
        take(&siginfo);
    add(&wrong);
    return NULL;
}

static void *sending(void *unused) {
    (void)unused;
    add(&up);
    while (!stop) {
        for (int signal = 1; signal <= SIGRTMAX; signal++) {
            if (!is_free(signal) || signal == SIGTRAP)
                continue;
            send_to(tids[signal % 2], signal);
            /* Most signals do not queue, so they are sent one after the other. */
            for (int i = 0; i < 20000 && __atomic_load_n(&arrived, __ATOMIC_SEQ_CST) < sent; i++)
                usleep(100);
        }
        compute_once();
    }
    return NULL;
}

/* SIGTERM is blocked in all threads. */
static void run(void) {
    sigset_t pending;
    while (!stop) {
        compute_once();
        sigpending(&pending);
        stop = sigismember(&pending, SIGTERM);
    }
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "handled";
    sigset_t all, term;
    pthread_t threads[WORKERS];
    void *(*what)(void *) = !strcmp(how, "blocked") ? blocking : !strcmp(how, "handled") ? raising : sending;
    int started = 0;
    sigfillset(&all);
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    if (what == raising)
        handle_all();
    if (what == sending) {
        start(reading);
        start(waiting);
        while (!__atomic_load_n(&tids[0], __ATOMIC_SEQ_CST) || !__atomic_load_n(&tids[1], __ATOMIC_SEQ_CST))
            usleep(1000);
    }
    if (what != blocking)
        pthread_sigmask(SIG_SETMASK, &term, NULL);
    threads[started++] = start(what);
    while (what != sending && started < WORKERS)
        threads[started++] = start(what);
    while (__atomic_load_n(&up, __ATOMIC_SEQ_CST) < (uint64_t)started)
        usleep(1000);
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    puts("ready");
    fflush(stdout);
    run();
    while (started > 0)
        pthread_join(threads[--started], NULL);
    printf("sent %lu\narrived %lu\nwrong %lu\njumps %lu\nstranger %d\n", sent, arrived, wrong, jumps, stranger);
    fflush(stdout);
    /* The threads that wait for signals go on waiting. */
    _exit(OWN_EXIT_CODE);
}
