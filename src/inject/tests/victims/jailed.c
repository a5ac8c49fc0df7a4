// In strict seccomp mode, or under a filter that permits everything. SIGTERM ends the second: 7.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>
static volatile sig_atomic_t done;
static void stop(int s) { (void)s; done = 1; }
int main(int argc, char **argv) {
    struct sock_filter allow = {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW};
    struct sock_fprog program = {1, &allow};
    int strict = argc > 1 && !strcmp(argv[1], "strict");
    signal(SIGTERM, stop);
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (prctl(PR_SET_SECCOMP, strict ? SECCOMP_MODE_STRICT : SECCOMP_MODE_FILTER, &program)) return 1;
    write(1, "ready\n", 6);
    if (strict) for (;;) {}
    while (!done) pause();
    return 7;
}
