// In strict seccomp mode, or under a filter. "strict": the former. "kill", "refuse": every number that
// is no system call's kills, or fails, as container filters do; it sleeps in a call with a restart
// block, and ends with 1 if that ends early. Without an argument all is permitted. "beside": that, and
// another thread, under no filter, sleeps in a call with a restart block; "beside without": neither is
// under any. SIGTERM ends it: 7.
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>
static volatile sig_atomic_t done;
static void stop(int s) { (void)s; done = 1; }
static void *sleep_beside(void *none) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, 0);
    sleep(3600);
    return none;
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
    pthread_t other_thread;
    if (!strncmp(how, "beside", 6) && pthread_create(&other_thread, 0, sleep_beside, 0)) return 1;
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (strcmp(how, "beside without") && prctl(PR_SET_SECCOMP, strict ? SECCOMP_MODE_STRICT : SECCOMP_MODE_FILTER, &program)) return 1;
    write(1, "ready\n", 6);
    if (strict) for (;;) {}
    struct timespec hour = {3600, 0};
    while (!done)
        if (other == SECCOMP_RET_ALLOW) pause();
        else if (clock_nanosleep(CLOCK_MONOTONIC, 0, &hour, 0) != EINTR || !done) return 1;
    return 7;
}
