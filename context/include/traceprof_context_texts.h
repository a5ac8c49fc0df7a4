/*
 * Texts and the names of tags, each kept once. Part of traceprof_context.h. It does the same as
 * abi/src/context/texts.rs and tags.rs, which explain why no thread waits here.
 */
#ifndef TRACEPROF_CONTEXT_TEXTS_H
#define TRACEPROF_CONTEXT_TEXTS_H

#include "traceprof_context_table.h"

#ifdef __cplusplus
extern "C" {
#endif

static inline size_t traceprof_context_words_(size_t len) { return 1 + (len + 3) / 4; }

/* Whether the text with this id is `text`. */
static inline int traceprof_context_is_text_(traceprof_context_table *table, uint32_t id,
                                             const char *text, size_t len) {
    if (id == 0 || id - 1 + traceprof_context_words_(len) > TRACEPROF_CONTEXT_TEXT_WORDS) {
        return 0;
    }
    for (size_t at = 0; at < traceprof_context_words_(len); at++) {
        uint32_t word = (uint32_t)len;
        if (at > 0) {
            size_t from = (at - 1) * 4;
            word = 0;
            memcpy(&word, text + from, len - from < 4 ? len - from : 4);
        }
        if (__atomic_load_n(&table->texts[id - 1 + at], __ATOMIC_RELAXED) != word) {
            return 0;
        }
    }
    return 1;
}

/* Writes a text that the index does not name yet. Returns its id, or 0 if there is no room. */
static inline uint32_t traceprof_context_add_text_(traceprof_context_table *table,
                                                   const char *text, size_t len) {
    const uint32_t need = (uint32_t)traceprof_context_words_(len);
    const uint32_t last = TRACEPROF_CONTEXT_TEXT_WORDS - need;
    uint32_t *used = &table->header.text_words;
    uint32_t at, from;
    /* The check comes first so that endless texts do not overflow the number. */
    if (__atomic_load_n(used, __ATOMIC_RELAXED) > last) {
        return 0;
    }
    from = __atomic_fetch_add(used, need, __ATOMIC_RELAXED);
    if (from > last) {
        return 0;
    }
    __atomic_store_n(&table->texts[from], (uint32_t)len, __ATOMIC_RELAXED);
    for (at = 1; at < need; at++) {
        size_t begin = (size_t)(at - 1) * 4;
        uint32_t word = 0;
        memcpy(&word, text + begin, len - begin < 4 ? len - begin : 4);
        __atomic_store_n(&table->texts[from + at], word, __ATOMIC_RELAXED);
    }
    return from + 1;
}

/* Returns the id of a text, and adds a new one. If there is no room, returns 0 and counts the
 * refusal. */
uint32_t traceprof_context_intern_v1(traceprof_context_table *table, const char *text, size_t len);
TRACEPROF_CONTEXT_SHARED uint32_t traceprof_context_intern_v1(traceprof_context_table *table,
                                                              const char *text, size_t len) {
    uint32_t hash = 0x811C9DC5u, own = 0;
    for (size_t at = 0; at < len; at++) {
        hash = (hash ^ (uint8_t)text[at]) * 0x01000193u;
    }
    for (uint32_t step = 0; step < TRACEPROF_CONTEXT_TEXT_PROBES; step++) {
        uint32_t *index = &table->text_index[(hash + step) % TRACEPROF_CONTEXT_TEXT_INDEX_LEN];
        /* Acquire: pairs with the exchange below; the complete text that it names is visible. */
        uint32_t id = __atomic_load_n(index, __ATOMIC_ACQUIRE);
        if (id == 0) {
            own = own ? own : traceprof_context_add_text_(table, text, len);
            if (own == 0) {
                break;
            }
            if (__atomic_compare_exchange_n(index, &id, own, 0, __ATOMIC_ACQ_REL,
                                            __ATOMIC_ACQUIRE)) {
                return own;
            }
        }
        if (traceprof_context_is_text_(table, id, text, len)) {
            return id;
        }
    }
    (void)__atomic_fetch_add(&table->header.texts_refused, 1, __ATOMIC_RELAXED);
    return 0;
}

/* Writes the name of a claimed tag, whichever thread claimed it. A claim is bit 31, bit 30 for
 * texts, and the id of the text that is the name. All threads write the same bytes. */
static inline void traceprof_context_finish_tag_(traceprof_context_table *table,
                                                 traceprof_context_tag_key *key) {
    uint32_t claim = __atomic_load_n(&key->kind, __ATOMIC_ACQUIRE);
    uint32_t first = (claim & 0x3FFFFFFFu) - 1, len, at;
    if (claim >> 31 == 0 || first >= TRACEPROF_CONTEXT_TEXT_WORDS) {
        return;
    }
    len = __atomic_load_n(&table->texts[first], __ATOMIC_RELAXED);
    for (at = 0; at < TRACEPROF_CONTEXT_TAG_NAME_MAX / 4; at += 2) {
        uint64_t word = 0;
        if (at * 4 < len) {
            word = __atomic_load_n(&table->texts[first + 1 + at], __ATOMIC_RELAXED);
        }
        if (at * 4 + 4 < len) {
            word |= (uint64_t)__atomic_load_n(&table->texts[first + 2 + at], __ATOMIC_RELAXED) << 32;
        }
        __atomic_store_n(&key->name[at / 2], word, __ATOMIC_RELAXED);
    }
    __atomic_store_n(&key->len, len, __ATOMIC_RELAXED);
    /* Release: pairs with the Acquire in traceprof_context_tag_v1; a reader that sees the kind
     * sees the name. */
    (void)__atomic_compare_exchange_n(&key->kind, &claim,
                                      claim >> 30 & 1 ? TRACEPROF_CONTEXT_KIND_TEXT
                                                      : TRACEPROF_CONTEXT_KIND_NUMBER,
                                      0, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
}

static inline int traceprof_context_has_name_(traceprof_context_tag_key *key, const char *name,
                                              size_t len) {
    for (size_t at = 0; at < TRACEPROF_CONTEXT_TAG_NAME_MAX; at += 8) {
        uint64_t word = 0;
        if (at < len) {
            memcpy(&word, name + at, len - at < 8 ? len - at : 8);
        }
        if (__atomic_load_n(&key->name[at / 8], __ATOMIC_RELAXED) != word) {
            return 0;
        }
    }
    return __atomic_load_n(&key->len, __ATOMIC_RELAXED) == len;
}

int traceprof_context_tag_v1(const char *name, uint32_t kind);
TRACEPROF_CONTEXT_SHARED int traceprof_context_tag_v1(const char *name, uint32_t kind) {
    traceprof_context_table *table = traceprof_context_table_();
    size_t len = name ? strlen(name) : 0;
    uint32_t claim = 0;
    if (!table || len == 0 || len > TRACEPROF_CONTEXT_TAG_NAME_MAX) {
        return -1;
    }
    for (int index = 0; index < TRACEPROF_CONTEXT_TAGS; index++) {
        traceprof_context_tag_key *key = &table->header.tags[index];
        uint32_t state = __atomic_load_n(&key->kind, __ATOMIC_ACQUIRE);
        if (state == 0) {
            if (claim == 0) {
                claim = traceprof_context_intern_v1(table, name, len);
                if (claim == 0) {
                    return -1;
                }
                claim |= 1u << 31 | (kind == TRACEPROF_CONTEXT_KIND_TEXT ? 1u << 30 : 0);
            }
            if (__atomic_compare_exchange_n(&key->kind, &state, claim, 0, __ATOMIC_ACQ_REL,
                                            __ATOMIC_RELAXED)) {
                (void)__atomic_fetch_add(&table->header.tags_used, 1, __ATOMIC_RELAXED);
            }
        }
        traceprof_context_finish_tag_(table, key);
        /* Acquire: pairs with the Release in traceprof_context_finish_tag_; the complete name is
         * visible. */
        state = __atomic_load_n(&key->kind, __ATOMIC_ACQUIRE);
        if (state >> 31 == 0 && traceprof_context_has_name_(key, name, len)) {
            return state == kind ? index : -1;
        }
    }
    return -1;
}

#ifdef __cplusplus
}
#endif

#endif
