/* Computes under a seccomp filter, beside a thread that sleeps in a call with a restart block.
 *
 *     jailed only NUMBER...      all threads may make these calls and those that the program needs;
 *                                all others kill the process
 *     jailed but NUMBER ACTION   all threads may make every call but this one, which has this action
 *     jailed one NUMBER ACTION   the same for the sleeping thread alone
 */
#include "target.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/syscall.h>

#define LOAD_NUMBER BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))
#define ANSWER(action) BPF_STMT(BPF_RET | BPF_K, (action))

static struct sock_filter program[128];
static unsigned short length;
static volatile int woken, asleep;
static volatile uint64_t sink;

static void add(struct sock_filter step) { program[length++] = step; }

static void answer_to(unsigned number, unsigned action) {
    add((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1));
    add((struct sock_filter)ANSWER(action));
}

static void jail(unsigned flags) {
    struct sock_fprog whole = {length, program};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &whole))
        exit(1);
}

static void *sleeper(void *alone) {
    struct timespec hour = {3600, 0};
    if (alone)
        jail(0);
    asleep = 1;
    clock_nanosleep(CLOCK_MONOTONIC, 0, &hour, NULL);
    woken = 1;
    return NULL;
}

int main(int argc, char **argv) {
    static const unsigned own[] = {SYS_write, SYS_exit_group, SYS_clock_nanosleep};
    int is_alone = argc > 1 && !strcmp(argv[1], "one");
    uint64_t x = 1;
    pthread_t thread;
    sigset_t set;
    add((struct sock_filter)LOAD_NUMBER);
    if (argc > 3 && strcmp(argv[1], "only")) {
        answer_to(strtoul(argv[2], NULL, 0), strtoul(argv[3], NULL, 0));
        add((struct sock_filter)ANSWER(SECCOMP_RET_ALLOW));
    } else {
        for (int index = 2; index < argc && index < 40; index++)
            answer_to(strtoul(argv[index], NULL, 0), SECCOMP_RET_ALLOW);
        for (unsigned index = 0; index < sizeof own / sizeof *own; index++)
            answer_to(own[index], SECCOMP_RET_ALLOW);
        add((struct sock_filter)ANSWER(SECCOMP_RET_KILL_PROCESS));
    }
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    pthread_create(&thread, NULL, sleeper, is_alone ? &set : NULL);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    while (!asleep)
        usleep(1000);
    usleep(1000);
    struct sigaction action = {.sa_handler = on_sigterm, .sa_flags = SA_RESTART};
    sigaction(SIGTERM, &action, NULL);
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    if (!is_alone)
        jail(SECCOMP_FILTER_FLAG_TSYNC);
    static const char ready[] = "ready\n";
    if (write(1, ready, sizeof ready - 1) < 0)
        return 1;
    while (!stop)
        CHAIN(x, 100000);
    sink = x;
    _exit(woken ? 1 : OWN_EXIT_CODE);
}
