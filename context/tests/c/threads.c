/* Threads that start and exit, threads with reused entries, and a child of fork. C and C++. */
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static pthread_key_t late;
static int was_late;

static void set_while_ending(void *again) {
    /* The C library calls destructors in rounds. The second is after the entry was released. */
    traceprof_context_set(77, 77);
    if (again == (void *)2) {
        CHECK(pthread_setspecific(late, (void *)1) == 0);
    } else {
        CHECK(!traceprof_context_is_available());
        CHECK(find(only_table(), traceprof_context_tid_()) == NULL);
        was_late++;
    }
}

static void *lives_and_dies(void *number) {
    const uint32_t tags[TRACEPROF_CONTEXT_TAGS] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    uint64_t span = (uint64_t)(uintptr_t)number;
    traceprof_context *here = traceprof_context_here();
    CHECK(here->checksum == 0 && here->span == 0 && here->tags[0] == 0 && here->tags[9] == 0);
    traceprof_context_set_all(span, span + 1, tags);
    CHECK(find(only_table(), traceprof_context_tid_())->root_span == span + 1);
    CHECK(pthread_setspecific(late, (void *)2) == 0);
    return (void *)(uintptr_t)traceprof_context_tid_();
}

static void threads_that_are_reused_do_not_inherit_contexts(void) {
    for (uintptr_t number = 1; number <= 300; number++) {
        pthread_t thread;
        void *tid;
        CHECK(pthread_create(&thread, NULL, lives_and_dies, (void *)number) == 0);
        CHECK(pthread_join(thread, &tid) == 0);
        CHECK(find(only_table(), (uint32_t)(uintptr_t)tid) == NULL);
    }
    CHECK(was_late == 300);
}

static void a_child_of_fork_has_a_table_of_its_own(void) {
    uint32_t parent = traceprof_context_tid_(), text = traceprof_context_text("/checkout");
    int tenant = traceprof_context_tag_number("tenant"), status = 0;
    pid_t child;
    traceprof_context_set(5, 6);
    traceprof_context_set_tag(tenant, 9);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        /* `only_table` also checks the process id. */
        CHECK(find(only_table(), parent) == NULL);
        CHECK(traceprof_context_here()->checksum == 0);
        traceprof_context_set(7, 8);
        CHECK(find(only_table(), traceprof_context_tid_())->span == 7);
        CHECK(traceprof_context_tag_number("tenant") == tenant);
        CHECK(traceprof_context_text("/checkout") == text);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(find(only_table(), parent)->span == 5);
    CHECK(traceprof_context_here()->tags[tenant] == 9);
}

int main(void) {
    CHECK(pthread_key_create(&late, set_while_ending) == 0);
    a_child_of_fork_has_a_table_of_its_own();
    threads_that_are_reused_do_not_inherit_contexts();
    puts("well");
    return 0;
}
