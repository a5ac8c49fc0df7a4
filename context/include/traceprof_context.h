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
 * Headers only: this one and the two beside it. They need C11 or C++11 or later, gcc or clang, and
 * 64-bit little-endian Linux with glibc or musl. Link with -pthread. Weak symbols let all files of
 * a program share one state. Shared libraries share it, too, if the dynamic linker resolves the
 * symbols across them. Otherwise each library has a table of its own, and profilers read several.
 * Without a profiler, an update is a few stores.
 *
 * For other languages, build a static or a shared library of the same functions:
 *
 *     cc -O2 -fPIC -Iinclude -c c/traceprof_context.c -o traceprof_context.o
 *     ar rcs libtraceprof_context.a traceprof_context.o
 *
 *     cc -O2 -fPIC -Iinclude -shared -pthread c/traceprof_context.c -o libtraceprof_context.so
 *
 * Rules: a context belongs to an operating system thread. Signal handlers must not call these
 * functions. A child of fork begins without contexts, and with the tags and texts of its parent.
 * Pointers to a context are valid until the thread exits, and not in a child of fork.
 *
 * The layout and the order of the stores are those of the Rust crate traceprof-abi
 * (abi/src/context), and a test compares them. They do not change within version 1.
 */
#ifndef TRACEPROF_CONTEXT_H
#define TRACEPROF_CONTEXT_H

#include "traceprof_context_table.h"
#include "traceprof_context_texts.h"

/* How the functions are declared. The libraries redefine it to export them. */
#ifndef TRACEPROF_CONTEXT_API
#define TRACEPROF_CONTEXT_API static inline
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Returns the checksum of a span id and a root span id; never 0. (1, 2) gives
 * 0x60a381937f4a7c15. */
TRACEPROF_CONTEXT_API uint64_t traceprof_context_checksum(uint64_t span, uint64_t root) {
    return traceprof_context_checksum_(span, root);
}

/* Returns the calling thread's context; never null. A runtime may write the 64 bytes itself, in
 * the same order: checksum 0, the fields, and the checksum by a store with a full barrier. */
TRACEPROF_CONTEXT_API traceprof_context *traceprof_context_here(void) {
    traceprof_context *here = traceprof_context_thread_v1;
    return __builtin_expect(here != NULL, 1) ? here : traceprof_context_register_v1();
}

/* Whether a profiler can read what the calling thread sets. It cannot if there was no memory for
 * a table or no entry for the thread, or while the thread exits. */
TRACEPROF_CONTEXT_API int traceprof_context_is_available(void) {
    return traceprof_context_here() != &traceprof_context_unread_v1;
}

/* Sets the span on which the calling thread works from now on. The tags stay as they are. */
TRACEPROF_CONTEXT_API void traceprof_context_set(uint64_t span, uint64_t root) {
    traceprof_context *here = traceprof_context_here();
    traceprof_context_begin_(here);
    traceprof_context_put_ids_(here, span, root);
    traceprof_context_finish_(here, span, root);
}

/* Sets the span and all ten tags, 0 for none. */
TRACEPROF_CONTEXT_API void traceprof_context_set_all(uint64_t span, uint64_t root, const uint32_t *tags) {
    traceprof_context *here = traceprof_context_here();
    traceprof_context_begin_(here);
    traceprof_context_put_ids_(here, span, root);
    traceprof_context_put_tags_(here, tags);
    traceprof_context_finish_(here, span, root);
}

/* Sets the tag with this index; -1 does nothing. A value of 0 means no value. */
TRACEPROF_CONTEXT_API void traceprof_context_set_tag(int tag, uint32_t value) {
    traceprof_context *here = traceprof_context_here();
    if (tag < 0 || tag >= TRACEPROF_CONTEXT_TAGS) {
        return;
    }
    /* These loads come before the mark: the compiler may not move them after it. */
    uint64_t span = __atomic_load_n(&here->span, __ATOMIC_RELAXED);
    uint64_t root = __atomic_load_n(&here->root_span, __ATOMIC_RELAXED);
    traceprof_context_begin_(here);
    __atomic_store_n(&here->tags[tag], value, __ATOMIC_RELEASE);
    traceprof_context_finish_(here, span, root);
}

/* Clears the span and all tags of the calling thread. */
TRACEPROF_CONTEXT_API void traceprof_context_clear(void) {
    traceprof_context_wipe_(traceprof_context_here());
}

/* Copies the calling thread's context. The copy's checksum is 0 if there is no context. */
TRACEPROF_CONTEXT_API void traceprof_context_get(traceprof_context_values *to) {
    traceprof_context *here = traceprof_context_here();
    to->span = __atomic_load_n(&here->span, __ATOMIC_RELAXED);
    to->root_span = __atomic_load_n(&here->root_span, __ATOMIC_RELAXED);
    to->checksum = __atomic_load_n(&here->checksum, __ATOMIC_RELAXED);
    for (int at = 0; at < TRACEPROF_CONTEXT_TAGS; at++) {
        to->tags[at] = __atomic_load_n(&here->tags[at], __ATOMIC_RELAXED);
    }
}

/* Restores a copy from traceprof_context_get, for nested spans. */
TRACEPROF_CONTEXT_API void traceprof_context_restore(const traceprof_context_values *from) {
    if (from->checksum == 0) {
        traceprof_context_clear();
    } else {
        traceprof_context_set_all(from->span, from->root_span, from->tags);
    }
}

/* Returns the index of the tag with this name, whose values are numbers, for
 * traceprof_context_set_tag. Returns -1 if the name is empty or longer than 56 bytes, if its
 * values are texts, or if ten other names are registered. */
TRACEPROF_CONTEXT_API int traceprof_context_tag_number(const char *name) {
    return traceprof_context_tag_v1(name, TRACEPROF_CONTEXT_KIND_NUMBER);
}

/* Like traceprof_context_tag_number, for a tag whose values are texts. */
TRACEPROF_CONTEXT_API int traceprof_context_tag_text(const char *name) {
    return traceprof_context_tag_v1(name, TRACEPROF_CONTEXT_KIND_TEXT);
}

/* Returns a text's id as the value of a tag, and keeps the text once for the life of the
 * process. A text of more than 255 bytes is truncated at a character boundary. Returns 0 if
 * there is no room. */
TRACEPROF_CONTEXT_API uint32_t traceprof_context_text(const char *text) {
    traceprof_context_table *table = traceprof_context_table_();
    size_t len = 0;
    while (text && len <= TRACEPROF_CONTEXT_TEXT_MAX && text[len] != 0) {
        len++;
    }
    if (len > TRACEPROF_CONTEXT_TEXT_MAX) {
        len = TRACEPROF_CONTEXT_TEXT_MAX;
        /* Truncate at a character boundary of UTF-8. */
        while (len > 0 && ((uint8_t)text[len] & 0xC0) == 0x80) {
            len--;
        }
    }
    return table && text ? traceprof_context_intern_v1(table, text, len) : 0;
}

/* Sets a tag to a text, and finds the text's id at each call. */
TRACEPROF_CONTEXT_API void traceprof_context_set_text(int tag, const char *text) {
    traceprof_context_set_tag(tag, traceprof_context_text(text));
}

#ifdef __cplusplus
}

namespace traceprof {

/* Sets a span on the calling thread while this object lives, and restores the previous context
 * afterwards. */
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
