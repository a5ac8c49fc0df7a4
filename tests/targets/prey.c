/* The target of the fault tests: it checks what it computes and how its calls end.
 *
 *     prey spin|nap|epoll|pause|crowd|ticks|fiber|poor    until SIGTERM
 *     prey brief                                          for a moment, then it prints "fine"
 *
 * SIGUSR1 makes it execute itself again as `prey spin`. SIGUSR2 makes it exit at once with 3. It
 * exits with 18 if a call returned EINTR without a signal of its own, and with 19 if it computed
 * something wrong.
 */
#include "target.h"
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <ucontext.h>

#define EINTR_SEEN 18
#define WRONG 19
#define FIBER_BYTES 65536
#define AREA_BYTES (1 << 20)
#define PATTERN 0xa5

static volatile unsigned interrupted, wrong, ticks;
static const char *own_path;

static void on_usr1(int signal) {
    (void)signal;
    /* A timer survives an exec, its handler does not. */
    struct sigaction ignored = {.sa_handler = SIG_IGN};
    sigaction(SIGALRM, &ignored, NULL);
    execl(own_path, own_path, "spin", "again", (char *)NULL);
    _exit(4);
}

static void on_usr2(int signal) {
    (void)signal;
    _exit(3);
}

static void on_alarm(int signal) {
    (void)signal;
    ticks++;
}

/* Computes the same number from the same start, in integer and in vector registers, whatever
 * interrupts it. */
APART void compute(void) {
    uint64_t x = 1;
    double a = 1.0, b = 0.5, c = 0.25, d = 0.125;
    for (int i = 0; i < 20000; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        a += b;
        b += c;
        c += d;
        d = d * 0.999;
    }
    static uint64_t first_x;
    static double first_a;
    if (!first_x) {
        first_a = a;
        first_x = x;
    }
    wrong += first_x != x || first_a != a;
}

static void spin(void) {
    while (!stop)
        compute();
}

static void count(long result) {
    if (result < 0 && errno == EINTR && !stop)
        interrupted++;
}

static void nap(void) {
    while (!stop) {
        struct timespec hour = {.tv_sec = 3600};
        count(nanosleep(&hour, NULL));
    }
}

/* Opened before the test inspects the program from outside. */
static int events;

static void wait_for_events(void) {
    struct epoll_event event;
    while (!stop)
        count(epoll_wait(events, &event, 1, -1));
}

static void wait_for_signal(void) {
    while (!stop)
        count(pause());
}

static int up;

static void *in_thread(void *work) {
    __atomic_add_fetch(&up, 1, __ATOMIC_SEQ_CST);
    ((void (*)(void))work)();
    return NULL;
}

static pthread_t threads[4];

static void start_crowd(void) {
    void (*const works[])(void) = {nap, wait_for_events, spin, wait_for_signal};
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, in_thread, (void *)works[i]);
    /* A thread that has not run yet has all signals blocked. */
    while (__atomic_load_n(&up, __ATOMIC_SEQ_CST) < 4)
        usleep(1000);
    usleep(20000);
}

static void crowd(void) {
    spin();
    for (int i = 0; i < 4; i++)
        while (pthread_tryjoin_np(threads[i], NULL)) {
            pthread_kill(threads[i], SIGTERM);
            usleep(1000);
        }
}

static void start_ticks(void) {
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    struct itimerval every = {{0, 1000}, {0, 1000}};
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &every, NULL);
}

static void tick(void) {
    spin();
    struct itimerval never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &never, NULL);
    wrong += ticks == 0;
}

/* Computes on a stack cut out of ordinary memory, where nothing may be written below the stack
 * pointer. The pattern there is checked at the end. Handlers run on their own stack. */
static unsigned char *area;

static void cut_stack(void) {
    static char alternate[65536];
    stack_t alt = {.ss_sp = alternate, .ss_size = sizeof alternate};
    area =
        mmap(NULL, AREA_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(area, PATTERN, AREA_BYTES);
    sigaltstack(&alt, NULL);
}

static void fiber(void) {
    static ucontext_t home, other;
    getcontext(&other);
    other.uc_stack.ss_sp = area + AREA_BYTES / 2;
    other.uc_stack.ss_size = FIBER_BYTES;
    other.uc_link = &home;
    makecontext(&other, spin, 0);
    swapcontext(&home, &other);
    for (int i = 0; i < AREA_BYTES / 2; i++)
        wrong += area[i] != PATTERN;
}

/* No signal can be queued for the process, so no timer can be created. */
static void be_poor(void) {
    struct rlimit none = {0, 0};
    setrlimit(RLIMIT_SIGPENDING, &none);
}

static void handle(int signal, void (*handler)(int), int flags) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags | SA_ONSTACK};
    sigaction(signal, &action, NULL);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*prepare)(void);
        void (*work)(void);
    } works[] = {
        {"spin", NULL, spin},          {"nap", NULL, nap},
        {"epoll", NULL, wait_for_events}, {"pause", NULL, wait_for_signal},
        {"crowd", start_crowd, crowd}, {"ticks", start_ticks, tick},
        {"fiber", cut_stack, fiber},   {"poor", be_poor, spin},
    };
    size_t chosen = 0;
    const char *name = argc > 1 ? argv[1] : "spin";
    own_path = argv[0];
    handle(SIGUSR1, on_usr1, 0);
    handle(SIGUSR2, on_usr2, 0);
    if (!strcmp(name, "brief")) {
        for (int i = 0; i < 3000; i++)
            compute();
        puts(wrong ? "wrong" : "fine");
        return wrong ? WRONG : OWN_EXIT_CODE;
    }
    if (argc > 2) {
        /* The exec was in the handler of SIGUSR1, so the signal is still blocked. */
        sigset_t all;
        sigfillset(&all);
        sigprocmask(SIG_UNBLOCK, &all, NULL);
    }
    handle(SIGTERM, on_sigterm, 0);
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    for (size_t i = 0; i < sizeof works / sizeof *works; i++)
        if (!strcmp(works[i].name, name))
            chosen = i;
    events = epoll_create1(EPOLL_CLOEXEC);
    if (works[chosen].prepare)
        works[chosen].prepare();
    puts("ready");
    fflush(stdout);
    works[chosen].work();
    return wrong ? WRONG : interrupted ? EINTR_SEEN : OWN_EXIT_CODE;
}
