/* Threads that publish the span that they work on. Each function is only called within its own
 * span. "worker" alternates between two spans with tags. "caller" makes system calls in a span
 * that never ends. "tracer" opens a span around each of its calls, within another span that has
 * its own code. "sleeper" sleeps in others. "silent" publishes nothing. "brief" is a new thread
 * each time, with a span every second time. The first argument is the number of seconds before
 * it publishes spans. With a second argument it may have no memory file. */
#include "target.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/syscall.h>

#include "../../context/include/traceprof_context.h"

#define WORK_NS 3000000u

static volatile uint64_t sink;
static int route, tenant;
static uint32_t texts[2];

APART static void burn(void) {
    uint64_t x = sink, until = clock_ns(CLOCK_THREAD_CPUTIME_ID) + WORK_NS;
    while (clock_ns(CLOCK_THREAD_CPUTIME_ID) < until)
        CHAIN(x, 20000);
    sink = x;
}

APART static void in_first(void) {
    burn();
    sink++;
}

APART static void in_second(void) {
    burn();
    sink += 2;
}

APART static void in_none(void) {
    burn();
    sink += 3;
}

static void *work(void *unused) {
    (void)unused;
    prctl(PR_SET_NAME, "worker");
    while (!stop) {
        traceprof_context_set(0x1111, 0x1000);
        traceprof_context_set_tag(route, texts[0]);
        traceprof_context_set_tag(tenant, 42);
        in_first();
        traceprof_context_clear();
        in_none();
        traceprof_context_set(0x2222, 0x1000);
        traceprof_context_set_tag(route, texts[1]);
        in_second();
        traceprof_context_clear();
    }
    return NULL;
}

APART static void call_often(int descriptor, uint64_t ns) {
    static char buffer[1 << 16];
    uint64_t until = clock_ns(CLOCK_THREAD_CPUTIME_ID) + ns;
    while (clock_ns(CLOCK_THREAD_CPUTIME_ID) < until)
        for (int turn = 0; turn < 20; turn++)
            if (pread(descriptor, buffer, sizeof buffer, 0) < 0)
                abort();
    sink++;
}

APART static void in_lasting(int descriptor) {
    call_often(descriptor, 10 * WORK_NS);
    sink++;
}

static void *call(void *unused) {
    (void)unused;
    prctl(PR_SET_NAME, "caller");
    FILE *zero = fopen("/dev/zero", "r");
    traceprof_context_set(0x3333, 0x3000);
    while (!stop)
        in_lasting(fileno(zero));
    fclose(zero);
    return NULL;
}

APART static void in_child(int descriptor) {
    call_often(descriptor, WORK_NS / 3);
    sink++;
}

APART static void in_parent(void) {
    burn();
    sink += 4;
}

static void *trace_calls(void *unused) {
    (void)unused;
    prctl(PR_SET_NAME, "tracer");
    FILE *zero = fopen("/dev/zero", "r");
    traceprof_context_set(0x4444, 0x4444);
    while (!stop) {
        in_parent();
        traceprof_context_set(0x4445, 0x4444);
        in_child(fileno(zero));
        traceprof_context_set(0x4444, 0x4444);
    }
    fclose(zero);
    return NULL;
}

APART static void nap(void) {
    struct timespec time = {.tv_nsec = 50000000};
    nanosleep(&time, NULL);
    sink++;
}

static void *sleep_on(void *unused) {
    (void)unused;
    prctl(PR_SET_NAME, "sleeper");
    while (!stop) {
        traceprof_context_set(0x5555, 0x5000);
        nap();
        traceprof_context_set(0x6666, 0x5000);
        nap();
    }
    return NULL;
}

static void *be_silent(void *unused) {
    (void)unused;
    prctl(PR_SET_NAME, "silent");
    while (!stop)
        in_none();
    return NULL;
}

static void *be_brief(void *number) {
    prctl(PR_SET_NAME, "brief");
    if ((uintptr_t)number % 2) {
        in_none();
    } else {
        traceprof_context_set(0x7777, 0x7000);
        in_first();
        /* The thread exits without clearing its span. */
    }
    return NULL;
}

static void *start_others(void *unused) {
    (void)unused;
    for (uintptr_t number = 0; !stop; number++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, be_brief, (void *)number) == 0)
            pthread_join(thread, NULL);
    }
    return NULL;
}

static int refuse_memory_files(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_memfd_create, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof filter / sizeof *filter, .filter = filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, 2, &program);
}

int main(int argc, char **argv) {
    if (argc > 2 && refuse_memory_files() != 0)
        return 1;
    target_ready();
    struct timespec wait = {.tv_sec = argc > 1 ? atoi(argv[1]) : 0};
    nanosleep(&wait, NULL);
    route = traceprof_context_tag_text("route");
    tenant = traceprof_context_tag_number("tenant");
    texts[0] = traceprof_context_text("/checkout");
    texts[1] = traceprof_context_text("/cart");
    void *(*const bodies[])(void *) = {work, call, trace_calls, sleep_on, be_silent, start_others};
    pthread_t threads[sizeof bodies / sizeof *bodies];
    for (size_t number = 0; number < sizeof bodies / sizeof *bodies; number++)
        if (pthread_create(&threads[number], NULL, bodies[number], NULL) != 0)
            return 1;
    for (size_t number = 0; number < sizeof bodies / sizeof *bodies; number++)
        pthread_join(threads[number], NULL);
    return OWN_EXIT_CODE;
}
