/* A thread in the middle of each of many blocking calls, and a second thread for each call with a
 * time limit, which repeats the call. Prints every distinct outcome: "NAME blocked", or results and
 * errors.
 *
 * The limits of the repeated calls are some milliseconds. A call that reports a timeout too soon
 * has the outcome "early".
 */
#include "target.h"
#include <fcntl.h>
#include <linux/futex.h>
#include <mqueue.h>
#include <netinet/in.h>
#include <poll.h>
#include <semaphore.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ipc.h>
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

#define HOUR_NS 3600000000000u
#define NAP_NS 3000000u
#define OUTCOMES 8

/* The objects that the calls wait for. They never become ready. */
static int pipe_ends[2], full_pipe[2], event, epoll, watcher, signals, listener, timed_listener;
static int pair[2], timed_pair[2], full_pair[2], semaphores, queue, full_queue, lock_file[2], ring;
static int timers[2];
static pid_t holder;
static mqd_t messages;
static unsigned long aio;
static int owned_word, words[2];
static char fifo[64], path[64];

struct place {
    const char *name;
    long (*call)(uint64_t limit_ns);
    uint64_t limit_ns; /* 0: made once, without a limit that matters */
    char outcomes[OUTCOMES][24];
    int count;
};

static struct timespec span(uint64_t ns) {
    return (struct timespec){.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
}

static struct timespec from_now(clockid_t clock, uint64_t ns) { return span(clock_ns(clock) + ns); }

static sigset_t only(int signal) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, signal);
    return set;
}

/* All signals but the one that ends the target. */
static sigset_t term_only(void) { return only(SIGTERM); }

static fd_set reading(int fd) {
    fd_set set;
    FD_ZERO(&set);
    FD_SET(fd, &set);
    return set;
}

#define CALL(name, ...)                                                                            \
    static long name(uint64_t ns) {                                                                \
        struct timespec limit = span(ns);                                                          \
        struct pollfd polled = {pipe_ends[0], POLLIN, 0};                                          \
        fd_set set = reading(pipe_ends[0]);                                                        \
        sigset_t term = term_only(), usr2 = only(SIGUSR2);                                         \
        struct epoll_event epolled;                                                                \
        struct sembuf take = {0, -1, 0};                                                           \
        struct msgbuf_like message = {1, {0}};                                                     \
        char bytes[8192] = {0};                                                                    \
        (void)limit, (void)polled, (void)set, (void)term, (void)usr2, (void)epolled, (void)take;   \
        (void)message, (void)bytes;                                                                \
        __VA_ARGS__                                                                                \
    }
struct msgbuf_like {
    long type;
    char text[8];
};
#define MS ((int)(ns / 1000000))

CALL(in_nanosleep, return nanosleep(&limit, NULL);)
CALL(in_clock_nanosleep, struct timespec end = from_now(CLOCK_MONOTONIC, ns);
     return (errno = clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &end, NULL)) ? -1 : 0;)
CALL(in_clock_nanosleep_for,
     return (errno = clock_nanosleep(CLOCK_MONOTONIC, 0, &limit, NULL)) ? -1 : 0;)
CALL(in_poll, return poll(&polled, 1, MS);)
CALL(in_poll_forever, return poll(&polled, 1, -1);)
CALL(in_ppoll, return ppoll(&polled, 1, &limit, &term);)
CALL(in_select, struct timeval time = {limit.tv_sec, limit.tv_nsec / 1000};
     return select(pipe_ends[0] + 1, &set, NULL, NULL, &time);)
CALL(in_select_forever, return select(pipe_ends[0] + 1, &set, NULL, NULL, NULL);)
CALL(in_pselect, return pselect(pipe_ends[0] + 1, &set, NULL, NULL, &limit, &term);)
CALL(in_epoll_wait, return epoll_wait(epoll, &epolled, 1, MS);)
CALL(in_epoll_wait_forever, return epoll_wait(epoll, &epolled, 1, -1);)
CALL(in_epoll_pwait, return epoll_pwait(epoll, &epolled, 1, MS, &term);)
CALL(in_epoll_pwait2, return syscall(SYS_epoll_pwait2, epoll, &epolled, 1, &limit, &term, 8);)
CALL(in_futex, return syscall(SYS_futex, &words[0], FUTEX_WAIT, 0, &limit, NULL, 0);)
CALL(in_futex_forever, return syscall(SYS_futex, &words[1], FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);)
CALL(in_futex_until, struct timespec end = from_now(CLOCK_MONOTONIC, ns);
     return syscall(SYS_futex, &words[0], FUTEX_WAIT_BITSET, 0, &end, NULL, ~0);)
CALL(in_futex_pi, struct timespec end = from_now(CLOCK_REALTIME, ns);
     return syscall(SYS_futex, &owned_word, FUTEX_LOCK_PI, 0, &end, NULL, 0);)
CALL(in_sem_timedwait, sem_t none; struct timespec end = from_now(CLOCK_REALTIME, ns);
     sem_init(&none, 0, 0); return sem_timedwait(&none, &end);)
CALL(in_cond_timedwait, pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
     pthread_cond_t never = PTHREAD_COND_INITIALIZER;
     struct timespec end = from_now(CLOCK_REALTIME, ns); pthread_mutex_lock(&mutex);
     return (errno = pthread_cond_timedwait(&never, &mutex, &end)) ? -1 : 0;)
CALL(in_sigtimedwait, return sigtimedwait(&usr2, NULL, &limit);)
CALL(in_sigwaitinfo, return sigwaitinfo(&usr2, NULL);)
CALL(in_sigsuspend, return sigsuspend(&term);)
CALL(in_pause, return pause();)
CALL(in_semop, return semop(semaphores, &take, 1);)
CALL(in_semtimedop, return semtimedop(semaphores, &take, 1, &limit);)
CALL(in_msgrcv, return msgrcv(queue, &message, sizeof message.text, 0, 0);)
CALL(in_msgsnd, return msgsnd(full_queue, &message, sizeof message.text, 0);)
CALL(in_mq_receive, return mq_receive(messages, bytes, sizeof bytes, NULL);)
CALL(in_mq_timedreceive, struct timespec end = from_now(CLOCK_REALTIME, ns);
     return mq_timedreceive(messages, bytes, sizeof bytes, NULL, &end);)
CALL(in_read_pipe, return read(pipe_ends[0], bytes, 1);)
CALL(in_write_pipe, return write(full_pipe[1], bytes, 1);)
CALL(in_splice, return splice(pipe_ends[0], NULL, full_pipe[1], NULL, 1, 0);)
CALL(in_read_eventfd, return read(event, bytes, 8);)
CALL(in_read_timerfd, struct itimerspec once = {.it_value = limit};
     int timer = timers[ns == NAP_NS]; timerfd_settime(timer, 0, &once, NULL);
     return read(timer, bytes, 8);)
CALL(in_read_signalfd, return read(signals, bytes, sizeof bytes);)
CALL(in_read_inotify, return read(watcher, bytes, sizeof bytes);)
CALL(in_accept, return accept(listener, NULL, NULL);)
CALL(in_accept_timed, return accept(timed_listener, NULL, NULL);)
CALL(in_recv, return recv(pair[0], bytes, 1, 0);)
CALL(in_recv_timed, return recv(timed_pair[0], bytes, 1, 0);)
CALL(in_recvmsg_timed, struct iovec part = {bytes, 1}; struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
     return recvmsg(timed_pair[0], &header, 0);)
CALL(in_read_socket_timed, return read(timed_pair[0], bytes, 1);)
CALL(in_send, return send(full_pair[0], bytes, sizeof bytes, 0);)
CALL(in_send_timed, return send(timed_pair[0], bytes, sizeof bytes, 0);)
CALL(in_wait4, return wait4(holder, NULL, 0, NULL);)
CALL(in_waitid, siginfo_t how; return waitid(P_PID, (id_t)holder, &how, WEXITED | WNOWAIT);)
CALL(in_wait_for_child, pid_t child = syscall(SYS_fork); if (child == 0) {
         usleep(2000);
         _exit(9);
     } int status = 0; pid_t got = waitpid(child, &status, 0);
     return got == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;)
CALL(in_flock, return flock(lock_file[0], LOCK_EX);)
CALL(in_setlkw, struct flock whole = {.l_type = F_WRLCK}; return fcntl(lock_file[1], F_SETLKW, &whole);)
CALL(in_ofd_setlkw, struct flock whole = {.l_type = F_WRLCK};
     return fcntl(lock_file[1], F_OFD_SETLKW, &whole);)
CALL(in_open_fifo, return open(fifo, O_RDONLY);)
CALL(in_io_getevents, return syscall(SYS_io_getevents, aio, 1L, 1L, bytes, &limit);)
CALL(in_io_uring_enter, return syscall(SYS_io_uring_enter, ring, 0, 1, 1 /* GETEVENTS */, NULL, 0);)
#undef CALL

#define ONCE(name) {#name, name, 0, {{0}}, 0}
#define OFTEN(name) {#name "_often", name, NAP_NS, {{0}}, 0}
static struct place places[] = {
    ONCE(in_nanosleep), ONCE(in_clock_nanosleep), ONCE(in_clock_nanosleep_for), ONCE(in_poll),
    ONCE(in_poll_forever), ONCE(in_ppoll), ONCE(in_select), ONCE(in_select_forever), ONCE(in_pselect),
    ONCE(in_epoll_wait), ONCE(in_epoll_wait_forever), ONCE(in_epoll_pwait), ONCE(in_epoll_pwait2),
    ONCE(in_futex), ONCE(in_futex_forever), ONCE(in_futex_until), ONCE(in_futex_pi),
    ONCE(in_sem_timedwait), ONCE(in_cond_timedwait), ONCE(in_sigtimedwait), ONCE(in_sigwaitinfo),
    ONCE(in_sigsuspend), ONCE(in_pause), ONCE(in_semop), ONCE(in_semtimedop), ONCE(in_msgrcv),
    ONCE(in_msgsnd), ONCE(in_mq_receive), ONCE(in_mq_timedreceive), ONCE(in_read_pipe),
    ONCE(in_write_pipe), ONCE(in_splice), ONCE(in_read_eventfd), ONCE(in_read_timerfd),
    ONCE(in_read_signalfd), ONCE(in_read_inotify), ONCE(in_accept), ONCE(in_recv), ONCE(in_send),
    ONCE(in_wait4), ONCE(in_waitid), ONCE(in_flock), ONCE(in_setlkw), ONCE(in_ofd_setlkw),
    ONCE(in_open_fifo), ONCE(in_io_getevents), ONCE(in_io_uring_enter),
    OFTEN(in_nanosleep), OFTEN(in_clock_nanosleep), OFTEN(in_clock_nanosleep_for), OFTEN(in_poll),
    OFTEN(in_ppoll), OFTEN(in_select), OFTEN(in_pselect), OFTEN(in_epoll_wait), OFTEN(in_epoll_pwait),
    OFTEN(in_epoll_pwait2), OFTEN(in_futex), OFTEN(in_futex_until), OFTEN(in_futex_pi),
    OFTEN(in_sem_timedwait), OFTEN(in_cond_timedwait), OFTEN(in_sigtimedwait), OFTEN(in_semtimedop),
    OFTEN(in_mq_timedreceive), OFTEN(in_read_timerfd), OFTEN(in_accept_timed), OFTEN(in_recv_timed),
    OFTEN(in_recvmsg_timed), OFTEN(in_read_socket_timed), OFTEN(in_send_timed), OFTEN(in_wait_for_child),
    OFTEN(in_io_getevents),
};
#define PLACES (sizeof places / sizeof *places)

static void note(struct place *place, long result, int error, int is_early) {
    char outcome[24];
    snprintf(outcome, sizeof outcome, "%s%ld/%d", is_early ? "early:" : "", result, result < 0 ? error : 0);
    for (int i = 0; i < place->count; i++)
        if (!strcmp(place->outcomes[i], outcome))
            return;
    if (place->count < OUTCOMES) {
        strcpy(place->outcomes[place->count], outcome);
        __atomic_store_n(&place->count, place->count + 1, __ATOMIC_RELEASE);
    }
}

/* The kernel counts the time limits of sockets in ticks. A virtual machine that had no processor
 * makes up for several ticks at once, and such a limit is over too soon. */
static int counts_ticks(const struct place *place) {
    return place->call == in_accept_timed || place->call == in_recv_timed || place->call == in_recvmsg_timed ||
           place->call == in_read_socket_timed || place->call == in_send_timed;
}

static int is_early(const struct place *place, uint64_t taken, uint64_t limit_ns) {
    /* Limits of the calendar's clock are a little off. */
    return place->call != in_wait_for_child && !counts_ticks(place) && taken + 1000000 < limit_ns;
}

static void *make_calls(void *argument) {
    struct place *place = argument;
    uint64_t x = 1, limit_ns = place->limit_ns ? place->limit_ns : HOUR_NS;
    do {
        uint64_t start = clock_ns(CLOCK_MONOTONIC);
        long result = place->call(limit_ns);
        int error = errno;
        uint64_t taken = clock_ns(CLOCK_MONOTONIC) - start;
        int is_over = result == 0 || error == ETIMEDOUT || error == EAGAIN;
        note(place, result, error, is_over && is_early(place, taken, limit_ns));
        CHAIN(x, 20000);
        if (x == 0)
            note(place, 1, 0, 0);
    } while (place->limit_ns && !stop);
    return NULL;
}

static void fill(int fd) {
    char bytes[4096] = {0};
    fcntl(fd, F_SETFL, O_NONBLOCK);
    while (write(fd, bytes, sizeof bytes) > 0)
        ;
    while (write(fd, bytes, 1) > 0)
        ;
    fcntl(fd, F_SETFL, 0);
}

static int listening(void) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    listen(fd, 1);
    return fd;
}

/* A child that holds the locks, and that the calls wait for. */
static void start_holder(const char *lock) {
    int ready[2];
    char byte;
    if (pipe(ready))
        abort();
    holder = fork();
    if (holder == 0) {
        struct flock whole = {.l_type = F_WRLCK};
        int fd = open(lock, O_RDWR);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        flock(fd, LOCK_EX);
        fcntl(fd, F_SETLK, &whole);
        if (write(ready[1], "", 1) == 1)
            for (;;)
                pause();
        _exit(1);
    }
    if (read(ready[0], &byte, 1) != 1)
        abort();
    close(ready[0]);
    close(ready[1]);
}

static void set_up_files(void) {
    snprintf(path, sizeof path, "lock.%d", getpid());
    snprintf(fifo, sizeof fifo, "fifo.%d", getpid());
    lock_file[0] = open(path, O_RDWR | O_CREAT, 0600);
    lock_file[1] = open(path, O_RDWR);
    if (lock_file[0] < 0 || mkfifo(fifo, 0600))
        abort();
    start_holder(path);
    watcher = inotify_init1(0);
    inotify_add_watch(watcher, fifo, IN_DELETE_SELF);
}

static void set_up(void) {
    char name[64];
    struct timeval nap = {0, NAP_NS / 1000};
    struct mq_attr shape = {.mq_maxmsg = 1, .mq_msgsize = 64};
    struct msgbuf_like message = {1, {0}};
    sigset_t usr2 = only(SIGUSR2);
    unsigned char ring_shape[120] = {0};
    set_up_files();
    if (pipe(pipe_ends) || pipe(full_pipe) || socketpair(AF_UNIX, SOCK_STREAM, 0, pair) ||
        socketpair(AF_UNIX, SOCK_STREAM, 0, timed_pair) || socketpair(AF_UNIX, SOCK_STREAM, 0, full_pair))
        abort();
    fill(full_pipe[1]);
    fill(full_pair[0]);
    fill(timed_pair[0]);
    setsockopt(timed_pair[0], SOL_SOCKET, SO_RCVTIMEO, &nap, sizeof nap);
    setsockopt(timed_pair[0], SOL_SOCKET, SO_SNDTIMEO, &nap, sizeof nap);
    event = eventfd(0, 0);
    epoll = epoll_create1(0);
    signals = signalfd(-1, &usr2, 0);
    timers[0] = timerfd_create(CLOCK_MONOTONIC, 0);
    timers[1] = timerfd_create(CLOCK_MONOTONIC, 0);
    listener = listening();
    timed_listener = listening();
    setsockopt(timed_listener, SOL_SOCKET, SO_RCVTIMEO, &nap, sizeof nap);
    semaphores = semget(IPC_PRIVATE, 1, 0600);
    queue = msgget(IPC_PRIVATE, 0600);
    full_queue = msgget(IPC_PRIVATE, 0600);
    while (msgsnd(full_queue, &message, sizeof message.text, IPC_NOWAIT) == 0)
        ;
    snprintf(name, sizeof name, "/calls.%d", getpid());
    messages = mq_open(name, O_RDWR | O_CREAT, 0600, &shape);
    mq_unlink(name);
    /* If the host does not have a call, the error is its outcome. */
    ring = (int)syscall(SYS_io_uring_setup, 4, ring_shape);
    syscall(SYS_io_setup, 4, &aio);
    syscall(SYS_futex, &owned_word, FUTEX_LOCK_PI, 0, NULL, NULL, 0);
}

static void report(void) {
    for (size_t i = 0; i < PLACES; i++) {
        printf("%s %s", places[i].name, places[i].count ? "" : "blocked");
        for (int j = 0; j < __atomic_load_n(&places[i].count, __ATOMIC_ACQUIRE); j++)
            printf("%s%s", j ? "," : "", places[i].outcomes[j]);
        puts("");
    }
    fflush(stdout);
}

int main(void) {
    sigset_t taken = only(SIGTERM), before;
    uint64_t x = 1;
    pthread_attr_t small;
    sigaddset(&taken, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &taken, &before);
    set_up();
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 128 << 10);
    for (size_t i = 0; i < PLACES; i++) {
        pthread_t thread;
        if (pthread_create(&thread, &small, make_calls, &places[i]))
            abort();
    }
    usleep(200000);
    sigaddset(&before, SIGUSR2);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    target_ready();
    while (!stop)
        CHAIN(x, 20000);
    report();
    unlink(path);
    unlink(fifo);
    semctl(semaphores, 0, IPC_RMID);
    msgctl(queue, IPC_RMID, NULL);
    msgctl(full_queue, IPC_RMID, NULL);
    kill(holder, SIGKILL);
    /* The other threads stay in their calls. */
    _exit(x == 0 ? 1 : OWN_EXIT_CODE);
}
