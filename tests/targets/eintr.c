/* A thread for each of many blocking calls, in a loop: some work, then the call, with a time limit
 * or until it is woken. Each thread counts its calls, those that returned EINTR although the thread
 * has handled no signal, and those with another wrong result. The program prints the counts at
 * SIGUSR1 and at the end.
 *
 *     eintr [CALL...]      only these */
#include "target.h"
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/io_uring.h>
#include <mqueue.h>
#include <poll.h>
#include <stdarg.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <sys/wait.h>

#define DIRECTED (SIGRTMIN + 2)

struct call {
    const char *name;
    /* Makes the call once, for at most this long if it has a time limit. */
    void (*make)(struct call *, unsigned ms);
    /* Makes the call return, from another thread. Called repeatedly until it has returned. */
    void (*wake)(struct call *);
    pthread_t thread;
    int in_call, is_woken, is_skipped, ends[2], is_held;
    uint32_t word;
    unsigned long calls, eintr, wrong;
    int wrong_errno;
};

static volatile uint64_t sink;
static __thread volatile unsigned long handled;
static char folder[64] = "/tmp/eintr-XXXXXX";

static void on_wake(int signal) {
    (void)signal;
    handled++;
}

static char *inside(char *path, const char *name) {
    sprintf(path, "%s/%s", folder, name);
    return path;
}

static struct timespec in_ms(clockid_t clock, unsigned ms) {
    uint64_t ns = (clock < 0 ? 0 : clock_ns(clock)) + ms * 1000000ull;
    return (struct timespec){ns / 1000000000u, ns % 1000000000u};
}
#define SPAN(ms) in_ms(-1, ms)

/* Makes a call whose result is as expected if `ok`, which may use it. */
#define JUDGE(call, expression, ok)                                                                \
    do {                                                                                           \
        unsigned long was_handled = handled;                                                       \
        __atomic_store_n(&(call)->is_woken, 0, __ATOMIC_RELAXED);                                  \
        __atomic_store_n(&(call)->in_call, 1, __ATOMIC_RELEASE);                                   \
        errno = 0;                                                                                 \
        long result = (long)(expression);                                                          \
        int error = errno;                                                                         \
        __atomic_store_n(&(call)->in_call, 0, __ATOMIC_RELAXED);                                   \
        __atomic_add_fetch(&(call)->calls, 1, __ATOMIC_RELAXED);                                   \
        if (result == -1 && error == EINTR && handled == was_handled) {                            \
            __atomic_add_fetch(&(call)->eintr, 1, __ATOMIC_RELAXED);                               \
        } else if (!(ok)) {                                                                        \
            (call)->wrong_errno = error;                                                           \
            __atomic_add_fetch(&(call)->wrong, 1, __ATOMIC_RELAXED);                               \
        }                                                                                          \
    } while (0)
/* Whether the time has passed, with room for the difference of the clocks. */
#define PASSED (clock_ns(CLOCK_MONOTONIC) - begin + 1000000 >= ms * 1000000ull)
#define FAILED(number) (result == -1 && error == (number))
#define BEGIN uint64_t begin = clock_ns(CLOCK_MONOTONIC)
#define CALL(name) static void name(struct call *c, unsigned ms)
#define WAKE(name) static void wake_##name(struct call *c)

/* Sleeps. */
CALL(nanosleep_) { BEGIN; struct timespec t = SPAN(ms); JUDGE(c, nanosleep(&t, NULL), result == 0 && PASSED); }
CALL(clock_nanosleep_) {
    BEGIN;
    struct timespec t = in_ms(CLOCK_MONOTONIC, ms);
    JUDGE(c, (errno = clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL)) ? -1 : 0, result == 0 && PASSED);
}

/* Reads from descriptors. When woken, there is something to read. */
CALL(read_pipe) { char b[8]; (void)ms; JUDGE(c, read(c->ends[0], b, 8), result == 1); }
CALL(read_eventfd) { uint64_t b; (void)ms; JUDGE(c, read(c->ends[1], &b, 8), result == 8 && b == 1); }
CALL(read_timerfd) {
    uint64_t b = 0;
    struct itimerspec t = {.it_value = SPAN(ms)};
    timerfd_settime(c->ends[0], 0, &t, NULL);
    JUDGE(c, read(c->ends[0], &b, 8), result == 8 && b == 1);
}
CALL(read_signalfd) {
    struct signalfd_siginfo b;
    (void)ms;
    JUDGE(c, read(c->ends[0], &b, sizeof b), result == sizeof b && (int)b.ssi_signo == DIRECTED);
}
CALL(read_inotify) { char b[512]; (void)ms; JUDGE(c, read(c->ends[0], b, sizeof b), result >= 16); }
CALL(write_pipe) {
    static char much[65536];
    (void)ms;
    /* The pipe is full before, and the reader takes all of that. */
    JUDGE(c, write(c->ends[1], much, sizeof much), result == sizeof much);
}
static void write_byte(struct call *c) { if (write(c->ends[1], "x", 1)) {} }
WAKE(eventfd) { uint64_t one = 1; if (write(c->ends[1], &one, 8)) {} }
WAKE(signalfd) { pthread_kill(c->thread, DIRECTED); }
WAKE(inotify) { char path[128]; utimensat(AT_FDCWD, inside(path, "touched"), NULL, 0); (void)c; }
WAKE(write_pipe) { char b[65536]; if (read(c->ends[0], b, sizeof b)) {} }

/* Several descriptors that are never ready, or one that another thread makes ready. */
CALL(poll_) { BEGIN; struct pollfd p = {c->ends[0], POLLIN, 0}; JUDGE(c, poll(&p, 1, ms), result == 0 && PASSED); }
CALL(ppoll_) {
    BEGIN;
    struct pollfd p = {c->ends[0], POLLIN, 0};
    struct timespec t = SPAN(ms);
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    JUDGE(c, ppoll(&p, 1, &t, &mask), result == 0 && PASSED);
}
CALL(select_) {
    BEGIN;
    fd_set set;
    FD_ZERO(&set);
    FD_SET(c->ends[0], &set);
    struct timeval t = {ms / 1000, ms % 1000 * 1000};
    JUDGE(c, select(c->ends[0] + 1, &set, NULL, NULL, &t), result == 0 && PASSED);
}
CALL(epoll_wait_) { BEGIN; struct epoll_event e; JUDGE(c, epoll_wait(c->ends[0], &e, 1, ms), result == 0 && PASSED); }
CALL(epoll_pwait_) {
    BEGIN;
    struct epoll_event e;
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    JUDGE(c, epoll_pwait(c->ends[0], &e, 1, ms, &mask), result == 0 && PASSED);
}
CALL(epoll_forever) {
    struct epoll_event e;
    uint64_t b;
    (void)ms;
    JUDGE(c, epoll_wait(c->ends[0], &e, 1, -1), result == 1);
    if (read(c->ends[1], &b, 8)) {}
}

/* Futexes. */
#define FUTEX(c, operation, time, mask) syscall(SYS_futex, &(c)->word, operation, 0, time, NULL, mask)
CALL(futex) { (void)ms; JUDGE(c, FUTEX(c, FUTEX_WAIT_PRIVATE, NULL, 0), result == 0); }
CALL(futex_timed) {
    BEGIN;
    struct timespec t = SPAN(ms);
    JUDGE(c, FUTEX(c, FUTEX_WAIT_PRIVATE, &t, 0), FAILED(ETIMEDOUT) && PASSED);
}
CALL(futex_bitset) {
    BEGIN;
    struct timespec t = in_ms(CLOCK_MONOTONIC, ms);
    JUDGE(c, FUTEX(c, FUTEX_WAIT_BITSET_PRIVATE, &t, FUTEX_BITSET_MATCH_ANY), FAILED(ETIMEDOUT) && PASSED);
}
WAKE(futex) { syscall(SYS_futex, &c->word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0); }

/* Signals: with a handled one EINTR is right, and without one it is not. */
CALL(pause_) { (void)ms; unsigned long was = handled; JUDGE(c, pause(), FAILED(EINTR) && handled > was); }
CALL(sigsuspend_) {
    sigset_t set, before;
    (void)ms;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &set, &before);
    unsigned long was = handled;
    JUDGE(c, sigsuspend(&before), FAILED(EINTR) && handled > was);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}
CALL(sigtimedwait_) {
    BEGIN;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, DIRECTED);
    struct timespec t = SPAN(ms);
    JUDGE(c, sigtimedwait(&set, NULL, &t), FAILED(EAGAIN) && PASSED);
}
WAKE(signal) { pthread_kill(c->thread, SIGUSR2); }

/* System V, POSIX queues. */
CALL(msgrcv_) { struct { long type; char b[8]; } m; (void)ms; JUDGE(c, msgrcv(c->ends[0], &m, 8, 0, 0), result == 1); }
CALL(semop_) { struct sembuf b = {0, -1, 0}; (void)ms; JUDGE(c, semop(c->ends[0], &b, 1), result == 0); }
CALL(semtimedop_) {
    BEGIN;
    struct sembuf b = {0, -1, 0};
    struct timespec t = SPAN(ms);
    JUDGE(c, semtimedop(c->ends[0], &b, 1, &t), FAILED(EAGAIN) && PASSED);
}
CALL(mq_receive_) { char b[16]; (void)ms; JUDGE(c, mq_receive(c->ends[0], b, 16, NULL), result == 1); }
CALL(mq_timedreceive_) {
    char b[16];
    struct timespec t = in_ms(CLOCK_REALTIME, ms);
    JUDGE(c, mq_timedreceive(c->ends[0], b, 16, NULL, &t), FAILED(ETIMEDOUT));
}
WAKE(msgrcv) { struct { long type; char b[8]; } m = {1, "x"}; msgsnd(c->ends[0], &m, 1, IPC_NOWAIT); }
WAKE(semop) { struct sembuf b = {0, 1, 0}; semop(c->ends[0], &b, 1); }
WAKE(mq) { mq_send(c->ends[0], "x", 1, 0); }

/* Sockets. */
CALL(accept_) { (void)ms; JUDGE(c, accept(c->ends[0], NULL, NULL), result >= 0 && close(result) == 0); }
CALL(recv_) { char b[8]; (void)ms; JUDGE(c, recv(c->ends[0], b, 8, 0), result == 1); }
CALL(recv_timed) {
    char b[8];
    struct timeval t = {ms / 1000, ms % 1000 * 1000};
    setsockopt(c->ends[0], SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
    JUDGE(c, recv(c->ends[0], b, 8, 0), FAILED(EAGAIN));
}
WAKE(accept) {
    struct sockaddr_un name = {0};
    socklen_t len = sizeof name;
    int caller = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
    getsockname(c->ends[0], (struct sockaddr *)&name, &len);
    connect(caller, (struct sockaddr *)&name, len);
    close(caller);
}

/* Children, locks, named pipes. */
CALL(wait4_) {
    int status;
    (void)ms;
    JUDGE(c, waitpid(c->ends[0], &status, WUNTRACED | WCONTINUED), result == c->ends[0]);
}
WAKE(wait4) { kill(c->ends[0], (c->is_held = !c->is_held) ? SIGSTOP : SIGCONT); }
static int lock(int file, int is_flock, short type, int waits) {
    struct flock all = {.l_type = type, .l_whence = SEEK_SET};
    int operation = (type == F_UNLCK ? LOCK_UN : LOCK_EX) | (waits ? 0 : LOCK_NB);
    return is_flock ? flock(file, operation) : fcntl(file, waits ? F_OFD_SETLKW : F_OFD_SETLK, &all);
}
#define LOCKED(name, is_flock)                                                                     \
    CALL(name) {                                                                                   \
        (void)ms;                                                                                  \
        JUDGE(c, lock(c->ends[0], is_flock, F_WRLCK, 1), result == 0);                             \
        lock(c->ends[0], is_flock, F_UNLCK, 0);                                                    \
        usleep(2000);                                                                              \
    }                                                                                              \
    WAKE(name) { /* The other thread takes it and releases it. */                                  \
        int taken = lock(c->ends[1], is_flock, c->is_held ? F_UNLCK : F_WRLCK, 0) == 0;            \
        c->is_held = c->is_held ? 0 : taken;                                                       \
    }
LOCKED(ofd_lock, 0)
LOCKED(flock_, 1)
CALL(open_fifo) { char path[128]; (void)ms; JUDGE(c, open(inside(path, "fifo"), O_RDONLY), result >= 0 && close(result) == 0); }
WAKE(open_fifo) {
    char path[128];
    int end = open(inside(path, "fifo"), O_WRONLY | O_NONBLOCK);
    if (end >= 0)
        close(end);
    (void)c;
}

/* A ring with one request, which ends when its time is over. */
static struct { unsigned *tail, *mask, *array, *head, *ready; struct io_uring_sqe *requests; } ring;
CALL(io_uring) {
    struct __kernel_timespec t = {ms / 1000, ms % 1000 * 1000000};
    unsigned at = *ring.tail & *ring.mask;
    ring.requests[at] = (struct io_uring_sqe){.opcode = IORING_OP_TIMEOUT, .fd = -1, .addr = (uintptr_t)&t, .len = 1};
    ring.array[at] = at;
    __atomic_store_n(ring.tail, *ring.tail + 1, __ATOMIC_RELEASE);
    syscall(SYS_io_uring_enter, c->ends[0], 1, 0, 0, NULL, 0);
    JUDGE(c, syscall(SYS_io_uring_enter, c->ends[0], 0, 1, IORING_ENTER_GETEVENTS, NULL, 0), result == 0);
    while (__atomic_load_n(ring.ready, __ATOMIC_ACQUIRE) == *ring.head)
        sched_yield();
    __atomic_store_n(ring.head, *ring.head + 1, __ATOMIC_RELEASE);
}
static int set_up_ring(struct call *c) {
    struct io_uring_params p = {0};
    int fd = c->ends[0] = syscall(SYS_io_uring_setup, 4, &p);
    if (fd < 0)
        return 0;
    char *sq = mmap(NULL, p.sq_off.array + p.sq_entries * 4, PROT_READ | PROT_WRITE, MAP_SHARED, fd, IORING_OFF_SQ_RING);
    char *cq = mmap(NULL, p.cq_off.cqes + p.cq_entries * 16, PROT_READ | PROT_WRITE, MAP_SHARED, fd, IORING_OFF_CQ_RING);
    ring.requests = mmap(NULL, p.sq_entries * sizeof *ring.requests, PROT_READ | PROT_WRITE, MAP_SHARED, fd, IORING_OFF_SQES);
    ring.tail = (unsigned *)(sq + p.sq_off.tail), ring.mask = (unsigned *)(sq + p.sq_off.ring_mask);
    ring.array = (unsigned *)(sq + p.sq_off.array);
    ring.head = (unsigned *)(cq + p.cq_off.head), ring.ready = (unsigned *)(cq + p.cq_off.tail);
    return 1;
}

#define ENDS(call, by) {.name = #call, .make = by}
#define WOKEN(call, by, waker) {.name = #call, .make = by, .wake = waker}
/* With a time limit, and without. */
static struct call calls[] = {
    ENDS(nanosleep, nanosleep_), ENDS(clock_nanosleep, clock_nanosleep_),
    WOKEN(read_pipe, read_pipe, write_byte), WOKEN(read_eventfd, read_eventfd, wake_eventfd),
    ENDS(read_timerfd, read_timerfd), WOKEN(read_signalfd, read_signalfd, wake_signalfd),
    WOKEN(read_inotify, read_inotify, wake_inotify),
    WOKEN(write_pipe, write_pipe, wake_write_pipe), ENDS(poll, poll_), ENDS(ppoll, ppoll_),
    ENDS(select, select_), ENDS(epoll_wait, epoll_wait_), ENDS(epoll_pwait, epoll_pwait_),
    WOKEN(epoll_forever, epoll_forever, wake_eventfd), WOKEN(futex, futex, wake_futex),
    ENDS(futex_timed, futex_timed), ENDS(futex_bitset, futex_bitset),
    WOKEN(pause, pause_, wake_signal), WOKEN(sigsuspend, sigsuspend_, wake_signal),
    ENDS(sigtimedwait, sigtimedwait_), WOKEN(msgrcv, msgrcv_, wake_msgrcv),
    WOKEN(semop, semop_, wake_semop), ENDS(semtimedop, semtimedop_),
    WOKEN(mq_receive, mq_receive_, wake_mq), ENDS(mq_timedreceive, mq_timedreceive_),
    WOKEN(accept, accept_, wake_accept), WOKEN(recv, recv_, write_byte),
    ENDS(recv_timed, recv_timed), WOKEN(wait4, wait4_, wake_wait4),
    WOKEN(ofd_lock, ofd_lock, wake_ofd_lock), WOKEN(flock, flock_, wake_flock_),
    WOKEN(open_fifo, open_fifo, wake_open_fifo), ENDS(io_uring, io_uring),
};
#define CALLS (sizeof calls / sizeof *calls)

static int is(const struct call *c, const char *name) { return !strcmp(c->name, name); }

/* Sets up what a call needs. Each has a pipe, which most need. */
static int set_up(struct call *c) {
    char path[128];
    struct epoll_event e = {.events = EPOLLIN};
    struct sockaddr_un none = {.sun_family = AF_UNIX};
    struct mq_attr one = {.mq_maxmsg = 4, .mq_msgsize = 16};
    if (pipe(c->ends))
        return 0;
    if (is(c, "read_eventfd"))
        c->ends[1] = eventfd(0, 0);
    if (is(c, "read_timerfd"))
        c->ends[0] = timerfd_create(CLOCK_MONOTONIC, 0);
    if (is(c, "read_signalfd")) {
        sigset_t set;
        sigemptyset(&set);
        sigaddset(&set, DIRECTED);
        c->ends[0] = signalfd(-1, &set, 0);
    }
    if (is(c, "read_inotify")) {
        close(open(inside(path, "touched"), O_CREAT | O_WRONLY, 0600));
        c->ends[0] = inotify_init();
        inotify_add_watch(c->ends[0], path, IN_ATTRIB);
    }
    if (is(c, "write_pipe"))
        wake_write_pipe((write_byte(c), c));
    if (!strncmp(c->name, "epoll", 5)) {
        c->ends[0] = epoll_create1(0);
        c->ends[1] = eventfd(0, EFD_NONBLOCK);
        epoll_ctl(c->ends[0], EPOLL_CTL_ADD, c->ends[1], &e);
    }
    if (is(c, "msgrcv"))
        c->ends[0] = msgget(IPC_PRIVATE, 0600);
    if (!strncmp(c->name, "sem", 3))
        c->ends[0] = semget(IPC_PRIVATE, 1, 0600);
    if (!strncmp(c->name, "mq", 2)) {
        sprintf(path, "/eintr-%d-%s", getpid(), c->name);
        c->ends[0] = mq_open(path, O_CREAT | O_RDWR, 0600, &one);
        mq_unlink(path);
    }
    if (is(c, "accept")) {
        c->ends[0] = socket(AF_UNIX, SOCK_STREAM, 0);
        bind(c->ends[0], (struct sockaddr *)&none, sizeof none.sun_family);
        listen(c->ends[0], 8);
    }
    if (!strncmp(c->name, "recv", 4) && socketpair(AF_UNIX, SOCK_STREAM, 0, c->ends))
        return 0;
    if (is(c, "wait4") && (c->ends[0] = fork()) == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;)
            pause();
    }
    for (int end = 0; end < 2 && (is(c, "ofd_lock") || is(c, "flock")); end++)
        c->ends[end] = open(inside(path, c->name), O_CREAT | O_RDWR, 0600);
    if (is(c, "open_fifo") && mkfifo(inside(path, "fifo"), 0600))
        return 0;
    return is(c, "io_uring") ? set_up_ring(c) : c->ends[0] >= 0 && c->ends[1] >= 0;
}

static void tear_down(struct call *c) {
    if (is(c, "msgrcv"))
        msgctl(c->ends[0], IPC_RMID, NULL);
    if (!strncmp(c->name, "sem", 3))
        semctl(c->ends[0], 0, IPC_RMID);
    if (is(c, "wait4"))
        kill(c->ends[0], SIGKILL);
}

static uint64_t next(uint64_t *random) {
    *random ^= *random << 13, *random ^= *random >> 7, *random ^= *random << 17;
    return *random >> 16;
}

static void *loop(void *argument) {
    struct call *c = argument;
    uint64_t random = (uintptr_t)c * 0x9E3779B97F4A7C15u | 1, x = 1;
    pthread_setname_np(pthread_self(), c->name);
    while (!stop) {
        /* From nothing to some milliseconds of work; sleeps of 1 ms to 30 ms, and a long one now
         * and then. */
        uint64_t steps = next(&random) % 16 ? next(&random) % 20000 : next(&random) % 2000000;
        CHAIN(x, steps);
        sink = x;
        c->make(c, next(&random) % 16 ? 1 + next(&random) % 30 : 100 + next(&random) % 400);
    }
    return NULL;
}

static void *wake(void *unused) {
    uint64_t random = 0x5DEECE66D;
    pthread_setname_np(pthread_self(), "waker");
    while (!stop) {
        for (struct call *c = calls; c < calls + CALLS; c++) {
            if (c->is_skipped || !c->wake || next(&random) % 4)
                continue;
            /* Anything left ready would keep the next call from blocking. */
            int keeps = c->wake == wake_futex || c->wake == wake_signal || c->wake == wake_wait4 ||
                        c->wake == wake_ofd_lock || c->wake == wake_flock_ || c->wake == wake_open_fifo;
            if (__atomic_load_n(&c->in_call, __ATOMIC_ACQUIRE) &&
                (keeps || !__atomic_exchange_n(&c->is_woken, 1, __ATOMIC_RELAXED)))
                c->wake(c);
        }
        usleep(1000 + next(&random) % 4000);
    }
    return unused;
}

static void report(void) {
    unsigned long sums[3] = {0};
    for (struct call *c = calls; c < calls + CALLS; c++) {
        if (c->is_skipped) {
            printf("skipped_%s 1\n", c->name);
            continue;
        }
        printf("calls_%s %lu\neintr_%s %lu\nwrong_%s %lu\n", c->name, c->calls, c->name, c->eintr, c->name, c->wrong);
        if (c->wrong)
            printf("errno_%s %d\n", c->name, c->wrong_errno);
        sums[0] += c->calls, sums[1] += c->eintr, sums[2] += c->wrong;
    }
    printf("calls %lu\neintr %lu\nwrong %lu\n", sums[0], sums[1], sums[2]);
    fflush(stdout);
}

int main(int argc, char **argv) {
    sigset_t set;
    pthread_t waker;
    struct sigaction action = {.sa_handler = on_wake};
    int signal = 0;
    char command[128];
    sigaction(SIGUSR2, &action, NULL);
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, DIRECTED);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    sigdelset(&set, DIRECTED);
    if (!mkdtemp(folder))
        return 1;
    for (struct call *c = calls; c < calls + CALLS; c++) {
        c->is_skipped = argc > 1;
        for (int at = 1; at < argc; at++)
            c->is_skipped &= !is(c, argv[at]);
        c->is_skipped = c->is_skipped || !set_up(c);
    }
    for (struct call *c = calls; c < calls + CALLS; c++)
        if (!c->is_skipped && pthread_create(&c->thread, NULL, loop, c))
            return 1;
    pthread_create(&waker, NULL, wake, NULL);
    target_ready();
    while (signal != SIGTERM)
        if (!sigwait(&set, &signal))
            report();
    stop = 1;
    for (struct call *c = calls; c < calls + CALLS; c++)
        if (!c->is_skipped)
            tear_down(c);
    sprintf(command, "rm -r %s", folder);
    return system(command) ? 1 : OWN_EXIT_CODE;
}
