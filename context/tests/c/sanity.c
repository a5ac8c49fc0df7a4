/* The sanity tests of the thread-local context document, by name, and tests of the other
 * functions. C and C++. */
#include "check.h"

static void basic_read_write(void) {
    traceprof_context context = {0, 0, 0, {0}};
    context.span = 100;
    context.root_span = 200;
    context.checksum = 300;
    CHECK(context.span == 100);
    CHECK(context.root_span == 200);
    CHECK(context.checksum == 300);
}

static void sequential_write_read_cycles(void) {
    const traceprof_context *here = traceprof_context_here();
    uint64_t turn;
    for (turn = 1; turn < 10000; turn++) {
        traceprof_context_set(turn, turn * 31);
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        CHECK(here->span == turn && here->root_span == turn * 31);
        CHECK(here->checksum == traceprof_context_checksum(turn, turn * 31));
        traceprof_context_clear();
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        CHECK(here->checksum == 0 && here->span == 0 && here->root_span == 0);
    }
}

static void *another_thread(void *unused) {
    uint32_t tid = traceprof_context_tid_();
    traceprof_context_values before;
    (void)unused;
    traceprof_context_get(&before);
    CHECK(before.checksum == 0);
    traceprof_context_set(124, 456);
    CHECK(find(only_table(), tid)->span == 124);
    return (void *)(uintptr_t)tid;
}

static void tls_mechanism(void) {
    traceprof_context *mine;
    pthread_t thread;
    void *tid;
    traceprof_context_set(123, 456);
    mine = find(only_table(), traceprof_context_tid_());
    CHECK(mine && mine == traceprof_context_here() && (uintptr_t)mine % 64 == 0);
    CHECK(mine->span == 123);
    CHECK(pthread_create(&thread, NULL, another_thread, NULL) == 0);
    CHECK(pthread_join(thread, &tid) == 0);
    CHECK(find(only_table(), (uint32_t)(uintptr_t)tid) == NULL);
    CHECK(mine->span == 123);
    CHECK(traceprof_context_table_v1 == (uintptr_t)only_table());
    traceprof_context_clear();
}

static void tags_and_texts(void) {
    const traceprof_context *here = traceprof_context_here();
    char name[8], longest[TRACEPROF_CONTEXT_TEXT_MAX + 2];
    traceprof_context_values outer;
    int tenant = traceprof_context_tag_number("tenant"), route = traceprof_context_tag_text("route");
    CHECK(tenant == 0 && route == 1);
    CHECK(traceprof_context_tag_number("tenant") == tenant);
    CHECK(traceprof_context_tag_text("tenant") == -1);
    CHECK(traceprof_context_tag_text("") == -1 && traceprof_context_tag_text(NULL) == -1);
    traceprof_context_set(5, 6);
    traceprof_context_set_tag(tenant, 42);
    traceprof_context_set_text(route, "/checkout");
    CHECK(here->tags[tenant] == 42 && here->tags[route] == traceprof_context_text("/checkout"));
    CHECK(here->checksum == traceprof_context_checksum(5, 6));
    traceprof_context_set_tag(-1, 1);
    traceprof_context_set_tag(TRACEPROF_CONTEXT_TAGS, 1);
    traceprof_context_get(&outer);
    traceprof_context_set(7, 6);
    traceprof_context_set_tag(tenant, 43);
    traceprof_context_restore(&outer);
    CHECK(here->span == 5 && here->tags[tenant] == 42);
    traceprof_context_clear();
    traceprof_context_get(&outer);
    traceprof_context_set(7, 6);
    traceprof_context_restore(&outer);
    CHECK(here->checksum == 0 && here->span == 0);
    for (int at = 2; at < 11; at++) {
        snprintf(name, sizeof name, "tag %d", at);
        CHECK(traceprof_context_tag_number(name) == (at < 10 ? at : -1));
    }
    memset(longest, 'x', sizeof longest);
    longest[TRACEPROF_CONTEXT_TEXT_MAX + 1] = 0;
    longest[TRACEPROF_CONTEXT_TEXT_MAX] = '\xA4'; /* the second byte of a character */
    longest[TRACEPROF_CONTEXT_TEXT_MAX - 1] = '\xC3';
    CHECK(only_table()->texts[traceprof_context_text(longest) - 1] == TRACEPROF_CONTEXT_TEXT_MAX - 1);
}

/* Programs keep copies anywhere: beside other fields, in memory of malloc. */
static void copies_lie_anywhere(void) {
    for (int at = 0; at < 64; at += 8) {
        char *memory = (char *)malloc(64 + sizeof(traceprof_context_values));
        traceprof_context_values *copy;
        CHECK(memory);
        copy = (traceprof_context_values *)(void *)(memory + at);
        traceprof_context_set(5, 6);
        traceprof_context_set_tag(0, 42);
        traceprof_context_get(copy);
        traceprof_context_clear();
        traceprof_context_restore(copy);
        CHECK(copy->span == 5 && copy->root_span == 6 && copy->tags[0] == 42);
        CHECK(traceprof_context_here()->span == 5 && traceprof_context_here()->tags[0] == 42);
        traceprof_context_clear();
        free(memory);
    }
}

int main(void) {
    basic_read_write();
    sequential_write_read_cycles();
    tls_mechanism();
    tags_and_texts();
    copies_lie_anywhere();
    CHECK(traceprof_context_is_available());
    puts("well");
    return 0;
}
