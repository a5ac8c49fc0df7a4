/*
 * The table of contexts, which profilers find, and how a thread gets its entry. Part of
 * traceprof_context.h. It does the same as abi/src/context/table.rs, which has the reasons.
 */
#ifndef TRACEPROF_CONTEXT_TABLE_H
#define TRACEPROF_CONTEXT_TABLE_H

#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if !defined(__linux__) || !defined(__LP64__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "traceprof_context.h is for 64-bit little-endian Linux"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* One state for all files of a program, and for all libraries across which the dynamic linker
 * resolves the symbol. */
#define TRACEPROF_CONTEXT_SHARED __attribute__((weak, visibility("default")))

#define TRACEPROF_CONTEXT_TAGS 10
#define TRACEPROF_CONTEXT_TAG_NAME_MAX 56
#define TRACEPROF_CONTEXT_TEXT_MAX 255
#define TRACEPROF_CONTEXT_MAGIC 0x7470637478746162u /* "tpctxtab" */
#define TRACEPROF_CONTEXT_VERSION 1u
#define TRACEPROF_CONTEXT_MAPPING "traceprof_context_v1"
#define TRACEPROF_CONTEXT_ENTRIES 16384u
#define TRACEPROF_CONTEXT_LINE 16u
#define TRACEPROF_CONTEXT_RUN 32u
#define TRACEPROF_CONTEXT_TEXT_INDEX_LEN 32768u
#define TRACEPROF_CONTEXT_TEXT_PROBES 64u
#define TRACEPROF_CONTEXT_TEXT_WORDS 262144u
#define TRACEPROF_CONTEXT_KIND_NUMBER 1u
#define TRACEPROF_CONTEXT_KIND_TEXT 2u

/* The context of one thread: a cache line. While a field changes, the checksum is 0. */
typedef struct __attribute__((aligned(64))) traceprof_context {
    uint64_t span;
    uint64_t root_span;
    uint64_t checksum; /* traceprof_context_checksum of both, or 0: none, or changing */
    uint32_t tags[TRACEPROF_CONTEXT_TAGS]; /* 0 for none */
} traceprof_context;

/* A copy of a context in the program's own memory, at any address that a uint64_t may have. */
typedef struct traceprof_context_values {
    uint64_t span;
    uint64_t root_span;
    uint64_t checksum; /* 0: none */
    uint32_t tags[TRACEPROF_CONTEXT_TAGS];
} traceprof_context_values;

typedef struct traceprof_context_tag_key {
    uint32_t kind; /* KIND_* once the name is complete; else free or being written */
    uint32_t len;
    uint64_t name[TRACEPROF_CONTEXT_TAG_NAME_MAX / 8];
} traceprof_context_tag_key;

typedef struct traceprof_context_header {
    uint64_t magic; /* stored last */
    uint32_t version;
    uint32_t pid;
    uint32_t refused; /* threads that found no entry */
    uint32_t text_words;
    uint32_t texts_refused;
    uint32_t tags_used;
    uint32_t reserved[8];
    traceprof_context_tag_key tags[TRACEPROF_CONTEXT_TAGS];
    uint8_t rest[0x1000 - 64 - 64 * TRACEPROF_CONTEXT_TAGS];
} traceprof_context_header;

/* The mapping that profilers search for. */
typedef struct traceprof_context_table {
    traceprof_context_header header;
    uint32_t tids[TRACEPROF_CONTEXT_ENTRIES]; /* 0 is free */
    traceprof_context contexts[TRACEPROF_CONTEXT_ENTRIES];
    uint32_t text_index[TRACEPROF_CONTEXT_TEXT_INDEX_LEN]; /* first word of a text, plus 1 */
    uint32_t texts[TRACEPROF_CONTEXT_TEXT_WORDS]; /* length in bytes, then the bytes */
} traceprof_context_table;

/* The address of the table, or 0, for profilers that find no mapping with its name. */
TRACEPROF_CONTEXT_SHARED uint64_t traceprof_context_table_v1 = 0;

/* No header declares all of these functions under -std=c11. They are symbols of the C library
 * under other names. */
extern void *traceprof_context_mmap_(void *, size_t, int, int, int, long) __asm__("mmap");
extern int traceprof_context_ftruncate_(int, long) __asm__("ftruncate");
extern int traceprof_context_close_(int) __asm__("close");
extern int traceprof_context_getpid_(void) __asm__("getpid");
extern long traceprof_context_syscall_(long, ...) __asm__("syscall");
#if defined(__PIC__) && !defined(__PIE__)
/* Only a library can be unloaded. Some systems have these functions in a separate library, which
 * the program that loaded this library has loaded, too. */
#define TRACEPROF_CONTEXT_IN_LIBRARY_
extern int traceprof_context_dladdr_(const void *, void *) __asm__("dladdr") __attribute__((weak));
extern void *traceprof_context_dlopen_(const char *, int) __asm__("dlopen") __attribute__((weak));
#endif

#if defined(__x86_64__)
#define TRACEPROF_CONTEXT_GETTID_ 186L
#define TRACEPROF_CONTEXT_MEMFD_CREATE_ 319L
#elif defined(__aarch64__)
#define TRACEPROF_CONTEXT_GETTID_ 178L
#define TRACEPROF_CONTEXT_MEMFD_CREATE_ 279L
#else
#error "traceprof_context.h supports x86_64 and aarch64"
#endif

typedef struct traceprof_context_state {
    traceprof_context_table *table;
    pthread_once_t once;
    pthread_key_t key;
    int has_key;
} traceprof_context_state;

TRACEPROF_CONTEXT_SHARED traceprof_context_state traceprof_context_state_v1 = {
    NULL, PTHREAD_ONCE_INIT, 0, 0};
/* Null until the thread's first use. */
TRACEPROF_CONTEXT_SHARED __thread traceprof_context *traceprof_context_thread_v1 = NULL;
/* The context that a thread without an entry writes. Nobody reads it. */
TRACEPROF_CONTEXT_SHARED __thread traceprof_context traceprof_context_unread_v1 = {0, 0, 0, {0}};

static inline uint32_t traceprof_context_tid_(void) {
    return (uint32_t)traceprof_context_syscall_(TRACEPROF_CONTEXT_GETTID_);
}

/* Marks the context as changing. Release, on the stores here and below: a reader that sees a
 * field sees the mark that was set before it. For a handler on the same thread a compiler fence
 * would do. */
static inline void traceprof_context_begin_(traceprof_context *to) {
    __atomic_store_n(&to->checksum, 0, __ATOMIC_RELEASE);
}

static inline void traceprof_context_put_ids_(traceprof_context *to, uint64_t span, uint64_t root) {
    __atomic_store_n(&to->span, span, __ATOMIC_RELEASE);
    __atomic_store_n(&to->root_span, root, __ATOMIC_RELEASE);
}

static inline void traceprof_context_put_tags_(traceprof_context *to, const uint32_t *tags) {
    for (int at = 0; at < TRACEPROF_CONTEXT_TAGS; at++) {
        __atomic_store_n(&to->tags[at], tags ? tags[at] : 0, __ATOMIC_RELEASE);
    }
}

static inline uint64_t traceprof_context_checksum_(uint64_t span, uint64_t root) {
    const uint64_t knuth = 0x9E3779B97F4A7C15u;
    uint64_t sum = span * knuth ^ (root << 32 | root >> 32) * knuth;
    return sum == 0 ? UINT64_MAX : sum;
}

/* An exchange: the checksum is visible before anything that the thread does next, at half the
 * cost of a store and a fence. */
static inline void traceprof_context_finish_(traceprof_context *to, uint64_t span, uint64_t root) {
    uint64_t sum = traceprof_context_checksum_(span, root);
    (void)__atomic_exchange_n(&to->checksum, sum, __ATOMIC_SEQ_CST);
}

static inline void traceprof_context_wipe_(traceprof_context *to) {
    traceprof_context_begin_(to);
    traceprof_context_put_ids_(to, 0, 0);
    traceprof_context_put_tags_(to, NULL);
}

/* Returns the entry with the thread id `wanted`. For 0, claims a free entry for `tid`. */
static inline traceprof_context *traceprof_context_entry_(traceprof_context_table *table,
                                                          uint32_t wanted, uint32_t tid) {
    uint32_t line = (uint32_t)(tid * 0x9E3779B9u) >> 22;
    for (uint32_t step = 0; step < TRACEPROF_CONTEXT_RUN; step++) {
        uint32_t at = (line * TRACEPROF_CONTEXT_LINE + step) & (TRACEPROF_CONTEXT_ENTRIES - 1);
        uint32_t found = __atomic_load_n(&table->tids[at], __ATOMIC_ACQUIRE);
        if (found != wanted) {
            continue;
        }
        /* Acquire: pairs with the Release of the thread that released it; the context is clear. */
        if (wanted != 0 || __atomic_compare_exchange_n(&table->tids[at], &found, tid, 0,
                                                       __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
            return &table->contexts[at];
        }
    }
    return NULL;
}

static inline traceprof_context_table *traceprof_context_loaded_(void) {
    return __atomic_load_n(&traceprof_context_state_v1.table, __ATOMIC_ACQUIRE);
}

/* Releases the thread's entry: the destructor of the key. */
void traceprof_context_end_v1(void *key);
TRACEPROF_CONTEXT_SHARED void traceprof_context_end_v1(void *key) {
    traceprof_context_table *table = traceprof_context_loaded_();
    uint32_t tid = traceprof_context_tid_();
    traceprof_context *own = table ? traceprof_context_entry_(table, tid, tid) : NULL;
    (void)key;
    /* This comes first: what later destructors set must not go into an entry that another thread
     * may have. */
    traceprof_context_thread_v1 = &traceprof_context_unread_v1;
    if (own) {
        traceprof_context_wipe_(own);
        __atomic_store_n(&table->tids[own - table->contexts], 0, __ATOMIC_RELEASE);
    }
}

/* Adopts the table in a child of fork, which has none of its parent's threads. */
void traceprof_context_adopt_v1(void);
TRACEPROF_CONTEXT_SHARED void traceprof_context_adopt_v1(void) {
    traceprof_context_table *table = traceprof_context_loaded_();
    for (uint32_t at = 0; table && at < TRACEPROF_CONTEXT_ENTRIES; at++) {
        if (__atomic_load_n(&table->tids[at], __ATOMIC_RELAXED) != 0) {
            traceprof_context_wipe_(&table->contexts[at]);
            __atomic_store_n(&table->tids[at], 0, __ATOMIC_RELEASE);
        }
    }
    if (table) {
        __atomic_store_n(&table->header.refused, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&table->header.pid, (uint32_t)traceprof_context_getpid_(), __ATOMIC_RELAXED);
    }
    if (traceprof_context_thread_v1 != &traceprof_context_unread_v1) {
        traceprof_context_thread_v1 = NULL;
    }
}

/* Keeps the library with this code loaded, because threads that exit call into it. */
static inline void traceprof_context_pin_(void) {
#ifdef TRACEPROF_CONTEXT_IN_LIBRARY_
    struct {
        const char *file;
        void *base;
        const char *symbol;
        void *address;
    } found = {NULL, NULL, NULL, NULL};
    void *own = (void *)&traceprof_context_state_v1;
    if (!traceprof_context_dladdr_ || !traceprof_context_dlopen_) {
        return;
    }
    if (traceprof_context_dladdr_(own, &found) != 0 && found.file) {
        /* RTLD_LAZY, RTLD_NOLOAD and RTLD_NODELETE. For the program itself the call fails, which
         * is harmless. */
        (void)traceprof_context_dlopen_(found.file, 1 | 4 | 0x1000);
    }
#endif
}

static inline void *traceprof_context_map_(size_t len) {
    const char *name = TRACEPROF_CONTEXT_MAPPING;
    /* Closed on exec, and never executed. Kernels before 6.3 do not know the second flag. */
    long file = traceprof_context_syscall_(TRACEPROF_CONTEXT_MEMFD_CREATE_, name, 1 | 8);
    void *base = (void *)-1;
    if (file < 0) {
        file = traceprof_context_syscall_(TRACEPROF_CONTEXT_MEMFD_CREATE_, name, 1);
    }
    if (file >= 0) {
        if (traceprof_context_ftruncate_((int)file, (long)len) == 0) {
            base = traceprof_context_mmap_(NULL, len, 3, 2, (int)file, 0);
        }
        (void)traceprof_context_close_((int)file);
    }
    /* Anonymous, where the file cannot be created. */
    return base != (void *)-1 ? base : traceprof_context_mmap_(NULL, len, 3, 2 | 0x20, -1, 0);
}

/* Creates the table, once in a process. */
void traceprof_context_make_v1(void);
TRACEPROF_CONTEXT_SHARED void traceprof_context_make_v1(void) {
    void *base = traceprof_context_map_(sizeof(traceprof_context_table));
    traceprof_context_table *table = (traceprof_context_table *)base;
    if (base == (void *)-1) {
        return;
    }
    traceprof_context_pin_();
    traceprof_context_state_v1.has_key =
        pthread_key_create(&traceprof_context_state_v1.key, traceprof_context_end_v1) == 0;
    (void)pthread_atfork(NULL, NULL, traceprof_context_adopt_v1);
    __atomic_store_n(&table->header.version, TRACEPROF_CONTEXT_VERSION, __ATOMIC_RELAXED);
    __atomic_store_n(&table->header.pid, (uint32_t)traceprof_context_getpid_(), __ATOMIC_RELAXED);
    __atomic_store_n(&table->header.magic, TRACEPROF_CONTEXT_MAGIC, __ATOMIC_RELEASE);
    __atomic_store_n(&traceprof_context_state_v1.table, table, __ATOMIC_RELEASE);
    __atomic_store_n(&traceprof_context_table_v1, (uint64_t)(uintptr_t)table, __ATOMIC_RELEASE);
}

static inline traceprof_context_table *traceprof_context_table_(void) {
    traceprof_context_table *table = traceprof_context_loaded_();
    if (!table) {
        (void)pthread_once(&traceprof_context_state_v1.once, traceprof_context_make_v1);
        table = traceprof_context_loaded_();
    }
    return table;
}

/* Gives the thread its entry, at its first use and in a child of fork. */
traceprof_context *traceprof_context_register_v1(void);
TRACEPROF_CONTEXT_SHARED traceprof_context *traceprof_context_register_v1(void) {
    const int before = errno;
    traceprof_context_table *table = traceprof_context_table_();
    traceprof_context *own = NULL;
    /* A thread that could not release its entry gets none. */
    if (table && traceprof_context_state_v1.has_key &&
        pthread_setspecific(traceprof_context_state_v1.key, table) == 0) {
        uint32_t tid = traceprof_context_tid_();
        own = traceprof_context_entry_(table, tid, tid);
        if (own) {
            /* The entry belongs to an earlier thread with this id that was killed. */
            traceprof_context_wipe_(own);
        } else {
            own = traceprof_context_entry_(table, 0, tid);
        }
        if (!own) {
            (void)__atomic_fetch_add(&table->header.refused, 1, __ATOMIC_RELAXED);
        }
    }
    traceprof_context_thread_v1 = own ? own : &traceprof_context_unread_v1;
    /* The caller may still need the number of an earlier error. */
    errno = before;
    return traceprof_context_thread_v1;
}

#ifdef __cplusplus
}
#endif

#endif
