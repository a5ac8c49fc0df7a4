// A program in strict seccomp mode, or under a filter. SIGTERM ends it with 7. "strict": strict
// mode. "kill", "refuse": as in container filters, every number that is no system call's kills, or
// fails. The program sleeps in a call with a restart block, and exits with 1 if that returns early.
// Without an argument the filter permits all calls. "beside": the same, and another thread, under
// no filter, sleeps in a call with a restart block. "beside without": neither thread is under a
// filter. "later": another thread sleeps. On SIGUSR1 the first thread puts itself under a filter
// that kills for the calls of a restore, and runs.
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static volatile sig_atomic_t done, asked;
static void ask(int s) { (void)s; asked = 1; }
static void stop(int s) { (void)s; done = 1; }
static void *sleep_beside(void *none) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, 0);
    sleep(3600);
    return none;
}
static int jailed_later(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigaction, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_shmdt, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {5, filter};
    pthread_t other;
    signal(SIGUSR1, ask);
    if (pthread_create(&other, 0, sleep_beside, 0)) return 1;
    write(1, "ready\n", 6);
    while (!asked && !done) pause();
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) return 1;
    while (!done) {}
    return 7;
}
int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "permit";
    unsigned other = !strcmp(how, "kill") ? SECCOMP_RET_KILL_PROCESS
        : !strcmp(how, "refuse") ? SECCOMP_RET_ERRNO | EPERM : SECCOMP_RET_ALLOW;
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, 500, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, other),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {4, filter};
    int strict = !strcmp(how, "strict");
    signal(SIGTERM, stop);
    if (!strcmp(how, "later")) return jailed_later();
    pthread_t other_thread;
    if (!strncmp(how, "beside", 6) && pthread_create(&other_thread, 0, sleep_beside, 0)) return 1;
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    int mode = strict ? SECCOMP_MODE_STRICT : SECCOMP_MODE_FILTER;
    if (strcmp(how, "beside without") && prctl(PR_SET_SECCOMP, mode, &program)) return 1;
    write(1, "ready\n", 6);
    if (strict) for (;;) {}
    struct timespec hour = {3600, 0};
    while (!done)
        if (other == SECCOMP_RET_ALLOW) pause();
        else if (clock_nanosleep(CLOCK_MONOTONIC, 0, &hour, 0) != EINTR || !done) return 1;
    return 7;
}
