/* A thread that writes, a handler on it that reads, and a reader on another thread. The thread
 * sanitizer exits the program with a message if two of them race. In each context root =
 * f(span). */
#include <signal.h>
#include <time.h>

#include "check.h"

static traceprof_context *writer_context;
static uint64_t by_handler, by_reader, torn_by_handler;
static int is_over, is_ready;

static uint64_t root_of(uint64_t span) { return span * 31 + 7; }

/* Reads as the agent does: 1 if there is a context, 0 if there is none, -1 if it is torn. */
static int read_context(traceprof_context *from, traceprof_context *to) {
    to->checksum = __atomic_load_n(&from->checksum, __ATOMIC_ACQUIRE);
    if (to->checksum == 0) {
        return 0;
    }
    /* Acquire, all of these: the sanitizer does not support fences. */
    to->span = __atomic_load_n(&from->span, __ATOMIC_ACQUIRE);
    to->root_span = __atomic_load_n(&from->root_span, __ATOMIC_ACQUIRE);
    for (int at = 0; at < TRACEPROF_CONTEXT_TAGS; at++) {
        to->tags[at] = __atomic_load_n(&from->tags[at], __ATOMIC_ACQUIRE);
    }
    if (__atomic_load_n(&from->checksum, __ATOMIC_RELAXED) != to->checksum) {
        return -1;
    }
    return traceprof_context_checksum(to->span, to->root_span) == to->checksum ? 1 : -1;
}

static void check_whole(const traceprof_context *read) {
    if (read->root_span != root_of(read->span)) {
        _Exit(3);
    }
    for (int at = 0; at < TRACEPROF_CONTEXT_TAGS; at++) {
        if (read->tags[at] != (uint32_t)read->span + (uint32_t)at) {
            _Exit(4);
        }
    }
}

static void on_signal(int number) {
    traceprof_context read;
    int outcome = read_context(writer_context, &read);
    (void)number;
    if (outcome > 0) {
        check_whole(&read);
        __atomic_fetch_add(&by_handler, 1, __ATOMIC_RELAXED);
    } else if (outcome < 0) {
        __atomic_fetch_add(&torn_by_handler, 1, __ATOMIC_RELAXED);
    }
}

static void *write_spans(void *unused) {
    uint32_t tags[TRACEPROF_CONTEXT_TAGS];
    uint64_t span;
    (void)unused;
    writer_context = traceprof_context_here();
    __atomic_store_n(&is_ready, 1, __ATOMIC_RELEASE);
    for (span = 1; !__atomic_load_n(&is_over, __ATOMIC_RELAXED); span++) {
        for (uint32_t at = 0; at < TRACEPROF_CONTEXT_TAGS; at++) {
            tags[at] = (uint32_t)span + at;
        }
        traceprof_context_set_all(span, root_of(span), tags);
#ifdef PLANTED
        writer_context->tags[0] = tags[0];
#endif
        if (span % 64 == 0) {
            traceprof_context_clear();
        }
    }
    return NULL;
}

static void *read_spans(void *unused) {
    traceprof_context read;
    (void)unused;
    while (!__atomic_load_n(&is_over, __ATOMIC_RELAXED)) {
        if (read_context(writer_context, &read) > 0) {
            check_whole(&read);
            __atomic_fetch_add(&by_reader, 1, __ATOMIC_RELAXED);
        }
    }
    return NULL;
}

int main(void) {
    const struct timespec pause = {0, 50000};
    struct sigaction action;
    pthread_t writer, reader;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    CHECK(pthread_create(&writer, NULL, write_spans, NULL) == 0);
    while (!__atomic_load_n(&is_ready, __ATOMIC_ACQUIRE)) {
    }
    CHECK(pthread_create(&reader, NULL, read_spans, NULL) == 0);
    for (int turn = 0; turn < 10000; turn++) {
        CHECK(pthread_kill(writer, SIGUSR1) == 0);
        nanosleep(&pause, NULL);
    }
    __atomic_store_n(&is_over, 1, __ATOMIC_RELAXED);
    CHECK(pthread_join(writer, NULL) == 0 && pthread_join(reader, NULL) == 0);
    CHECK(by_handler > 0 && by_reader > 0 && torn_by_handler == 0);
    puts("well");
    return 0;
}
