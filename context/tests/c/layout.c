/* Prints the layout and the constants of the header, and checksums, one line "name value" each.
 * C and C++. */
#include <stdio.h>

#include "traceprof_context.h"

#define SAY(name, value) printf("%s %llu\n", name, (unsigned long long)(value))
#define OFFSET(type, field) SAY(#type "." #field, offsetof(traceprof_##type, field))

static void checksums(void) {
    const uint64_t ids[][2] = {{0, 0},
                               {1, 0},
                               {0, 1},
                               {1, 2},
                               {100, 200},
                               {0x1234567890ABCDEFu, 0xFEDCBA0987654321u},
                               {0x00F067AA0BA902B7u, 0xA3CE929D0E0E4736u},
                               {0x123456789ABCDEF0u, 0x9ABCDEF012345678u}};
    for (size_t at = 0; at < sizeof ids / sizeof ids[0]; at++) {
        char name[64];
        snprintf(name, sizeof name, "checksum.%016llx.%016llx", (unsigned long long)ids[at][0],
                 (unsigned long long)ids[at][1]);
        SAY(name, traceprof_context_checksum(ids[at][0], ids[at][1]));
    }
}

int main(void) {
    SAY("context.size", sizeof(traceprof_context));
    SAY("context.align", __alignof__(traceprof_context));
    OFFSET(context, span);
    OFFSET(context, root_span);
    OFFSET(context, checksum);
    OFFSET(context, tags);
    SAY("values.size", sizeof(traceprof_context_values));
    SAY("values.align", __alignof__(traceprof_context_values));
    OFFSET(context_values, span);
    OFFSET(context_values, root_span);
    OFFSET(context_values, checksum);
    OFFSET(context_values, tags);
    SAY("key.size", sizeof(traceprof_context_tag_key));
    OFFSET(context_tag_key, kind);
    OFFSET(context_tag_key, len);
    OFFSET(context_tag_key, name);
    OFFSET(context_header, magic);
    OFFSET(context_header, version);
    OFFSET(context_header, pid);
    OFFSET(context_header, refused);
    OFFSET(context_header, text_words);
    OFFSET(context_header, texts_refused);
    OFFSET(context_header, tags_used);
    OFFSET(context_header, tags);
    OFFSET(context_table, tids);
    OFFSET(context_table, contexts);
    OFFSET(context_table, text_index);
    OFFSET(context_table, texts);
    SAY("table.size", sizeof(traceprof_context_table));
    SAY("tags", TRACEPROF_CONTEXT_TAGS);
    SAY("name_max", TRACEPROF_CONTEXT_TAG_NAME_MAX);
    SAY("text_max", TRACEPROF_CONTEXT_TEXT_MAX);
    SAY("magic", TRACEPROF_CONTEXT_MAGIC);
    SAY("version", TRACEPROF_CONTEXT_VERSION);
    SAY("entries", TRACEPROF_CONTEXT_ENTRIES);
    SAY("line", TRACEPROF_CONTEXT_LINE);
    SAY("run", TRACEPROF_CONTEXT_RUN);
    SAY("text_index", TRACEPROF_CONTEXT_TEXT_INDEX_LEN);
    SAY("text_probes", TRACEPROF_CONTEXT_TEXT_PROBES);
    SAY("text_words", TRACEPROF_CONTEXT_TEXT_WORDS);
    SAY("kind.number", TRACEPROF_CONTEXT_KIND_NUMBER);
    SAY("kind.text", TRACEPROF_CONTEXT_KIND_TEXT);
    checksums();
    return 0;
}
