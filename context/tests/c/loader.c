/* Loads a library that sets spans, and unloads it while a thread that used it still runs. loader
 * LIBRARY TABLES */
#include <dlfcn.h>

#include "check.h"

typedef void (*set_function)(uint64_t);

static void *uses(void *path) {
    traceprof_context_table *found[4] = {NULL, NULL, NULL, NULL};
    uint32_t tid = traceprof_context_tid_();
    void *library = dlopen((const char *)path, RTLD_NOW | RTLD_LOCAL);
    set_function set;
    void *symbol;
    int count, spans = 0;
    CHECK(library);
    symbol = dlsym(library, "plugin_set");
    memcpy(&set, &symbol, sizeof set);
    traceprof_context_set(1, 2);
    set(50);
    count = tables(found, 4);
    CHECK(count >= 1 && count <= 4);
    for (int at = 0; at < count; at++) {
        traceprof_context *own = find(found[at], tid);
        CHECK(own);
        spans += own->span == 50;
    }
    CHECK(spans == 1);
    CHECK(dlclose(library) == 0);
    /* The thread exits, and the library's destructor runs. */
    return (void *)(uintptr_t)count;
}

int main(int count, char **arguments) {
    traceprof_context_table *found[4] = {NULL, NULL, NULL, NULL};
    pthread_t thread;
    void *result;
    CHECK(count == 3);
    for (int turn = 0; turn < 3; turn++) {
        CHECK(pthread_create(&thread, NULL, uses, arguments[1]) == 0);
        CHECK(pthread_join(thread, &result) == 0);
        CHECK(result == (void *)(uintptr_t)atoi(arguments[2]));
    }
    for (int at = 0; at < tables(found, 4); at++) {
        for (size_t entry = 0; entry < TRACEPROF_CONTEXT_ENTRIES; entry++) {
            CHECK(found[at]->tids[entry] == 0);
            CHECK(found[at]->contexts[entry].checksum == 0);
        }
    }
    puts("well");
    return 0;
}
