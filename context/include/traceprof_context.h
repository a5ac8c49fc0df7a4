/*
 * Publishes the span of each thread to the traceprof profiler, in a few stores.
 *
 *     #include <traceprof_context.h>
 *
 *     static int route;                                     // at start
 *     route = traceprof_context_tag_text("route");
 *
 *     traceprof_context_set(span_id, root_span_id);         // when the thread starts a span
 *     traceprof_context_set_text(route, "/checkout");
 *     traceprof_context_clear();                            // when it ends it
 *
 * Headers only, this one and the two beside it: C11 or C++11 and later, gcc or clang, 64-bit
 * little-endian Linux with glibc or musl; link with -pthread. All files of a program that
 * include it share one state, by weak symbols, and so do shared libraries as far as the dynamic
 * linker lets them see each other; those that it keeps apart have a table each, which profilers
 * bear. Where no profiler is attached, an update is a few stores.
 *
 * For other languages there is a static and a shared library of the same functions:
 *
 *     cc -O2 -fPIC -Iinclude -c c/traceprof_context.c -o traceprof_context.o
 *     ar rcs libtraceprof_context.a traceprof_context.o
 *
 *     cc -O2 -fPIC -Iinclude -shared -pthread c/traceprof_context.c -o libtraceprof_context.so
 *
 * Rules: a context belongs to an operating system thread. None of this may be called from a
 * signal handler. A child of fork begins without contexts, and with the tags and texts of its
 * parent. Pointers to a context are good until the thread ends or is in a child of fork.
 *
 * The layout and the order of writing are those of the Rust crate traceprof-abi
 * (abi/src/context), and a test compares them. None of it changes within version 1.
 */
#ifndef TRACEPROF_CONTEXT_H
#define TRACEPROF_CONTEXT_H

#include "traceprof_context_table.h"
#include "traceprof_context_texts.h"

/* How the functions are declared: the libraries export them. */
#ifndef TRACEPROF_CONTEXT_API
#define TRACEPROF_CONTEXT_API static inline
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The checksum of a span id and a root span id; never 0. (1, 2) has 0x60a381937f4a7c15. */
TRACEPROF_CONTEXT_API uint64_t traceprof_context_checksum(uint64_t span, uint64_t root) {
    return traceprof_context_checksum_(span, root);
}

/* The calling thread's context; never null. For runtimes that write the 64 bytes themselves, in
 * the same order: checksum 0, the fields, and the checksum by a store with a full barrier. */
TRACEPROF_CONTEXT_API traceprof_context *traceprof_context_here(void) {
    traceprof_context *here = traceprof_context_thread_v1;
    return __builtin_expect(here != NULL, 1) ? here : traceprof_context_register_v1();
}

/* Whether a profiler can see what the calling thread sets: not so if there was no memory for a
 * table or no entry for the thread, nor while it ends. */
TRACEPROF_CONTEXT_API int traceprof_context_is_available(void) {
    return traceprof_context_here() != &traceprof_context_unread_v1;
}

/* The calling thread works on this span from now on. The tags stay as they are. */
TRACEPROF_CONTEXT_API void traceprof_context_set(uint64_t span, uint64_t root) {
    traceprof_context *here = traceprof_context_here();
    traceprof_context_begin_(here);
    traceprof_context_put_ids_(here, span, root);
    traceprof_context_finish_(here, span, root);
}

/* The same with all ten tags, 0 for none. */
TRACEPROF_CONTEXT_API void traceprof_context_set_all(uint64_t span, uint64_t root, const uint32_t *tags) {
    traceprof_context *here = traceprof_context_here();
    traceprof_context_begin_(here);
    traceprof_context_put_ids_(here, span, root);
    traceprof_context_put_tags_(here, tags);
    traceprof_context_finish_(here, span, root);
}

/* One tag by the place that its name has; -1 for none does nothing. A value of 0 is as good as
 * none. */
TRACEPROF_CONTEXT_API void traceprof_context_set_tag(int tag, uint32_t value) {
    traceprof_context *here = traceprof_context_here();
    if (tag < 0 || tag >= TRACEPROF_CONTEXT_TAGS) {
        return;
    }
    /* Read before the mark: the compiler may not move them behind it. */
    uint64_t span = __atomic_load_n(&here->span, __ATOMIC_RELAXED);
    uint64_t root = __atomic_load_n(&here->root_span, __ATOMIC_RELAXED);
    traceprof_context_begin_(here);
    __atomic_store_n(&here->tags[tag], value, __ATOMIC_RELEASE);
    traceprof_context_finish_(here, span, root);
}

/* The calling thread works on no span, and has no tags. */
TRACEPROF_CONTEXT_API void traceprof_context_clear(void) {
    traceprof_context_wipe_(traceprof_context_here());
}

/* A copy of the calling thread's context; its checksum is 0 if there is none. */
TRACEPROF_CONTEXT_API void traceprof_context_get(traceprof_context_values *to) {
    traceprof_context *here = traceprof_context_here();
    to->span = __atomic_load_n(&here->span, __ATOMIC_RELAXED);
    to->root_span = __atomic_load_n(&here->root_span, __ATOMIC_RELAXED);
    to->checksum = __atomic_load_n(&here->checksum, __ATOMIC_RELAXED);
    for (int at = 0; at < TRACEPROF_CONTEXT_TAGS; at++) {
        to->tags[at] = __atomic_load_n(&here->tags[at], __ATOMIC_RELAXED);
    }
}

/* Restores a copy of traceprof_context_get, for spans within spans. */
TRACEPROF_CONTEXT_API void traceprof_context_restore(const traceprof_context_values *from) {
    if (from->checksum == 0) {
        traceprof_context_clear();
    } else {
        traceprof_context_set_all(from->span, from->root_span, from->tags);
    }
}

/* The tag with this name, whose values are numbers: a place, for traceprof_context_set_tag. -1
 * if the name is empty or longer than 56 bytes, has texts as values, or ten others are there
 * already. */
TRACEPROF_CONTEXT_API int traceprof_context_tag_number(const char *name) {
    return traceprof_context_tag_v1(name, TRACEPROF_CONTEXT_KIND_NUMBER);
}

/* The same for a tag whose values are texts. */
TRACEPROF_CONTEXT_API int traceprof_context_tag_text(const char *name) {
    return traceprof_context_tag_v1(name, TRACEPROF_CONTEXT_KIND_TEXT);
}

/* A text as the value of a tag: kept for the life of the process, once. What is longer than 255
 * bytes is cut off, at the end of a character. 0 if there is no room. */
TRACEPROF_CONTEXT_API uint32_t traceprof_context_text(const char *text) {
    traceprof_context_table *table = traceprof_context_table_();
    size_t len = 0;
    while (text && len <= TRACEPROF_CONTEXT_TEXT_MAX && text[len] != 0) {
        len++;
    }
    if (len > TRACEPROF_CONTEXT_TEXT_MAX) {
        len = TRACEPROF_CONTEXT_TEXT_MAX;
        /* Not within a character of UTF-8. */
        while (len > 0 && ((uint8_t)text[len] & 0xC0) == 0x80) {
            len--;
        }
    }
    return table && text ? traceprof_context_intern_v1(table, text, len) : 0;
}

/* Sets a tag to a text, which is looked up each time. */
TRACEPROF_CONTEXT_API void traceprof_context_set_text(int tag, const char *text) {
    traceprof_context_set_tag(tag, traceprof_context_text(text));
}

#ifdef __cplusplus
}

namespace traceprof {

/* The calling thread works on a span for as long as this lives; then on what it worked on
 * before. */
class span {
public:
    span(uint64_t id, uint64_t root) {
        traceprof_context_get(&previous);
        traceprof_context_set(id, root);
    }
    ~span() { traceprof_context_restore(&previous); }
    span(const span &) = delete;
    span &operator=(const span &) = delete;

private:
    traceprof_context_values previous;
};

} // namespace traceprof
#endif

#endif
