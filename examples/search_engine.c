/* The program that scripts/demo records: a small search engine that indexes pages on one thread and
 * answers queries on another.
 *
 *     search_engine SECONDS
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline))
#define WORDS 500
#define PAGES 300
#define BUCKETS 4096

struct entry { char word[16]; unsigned count; struct entry *next; };
struct page { unsigned score; char text[WORDS * 12]; };

static time_t end;

static unsigned roll(uint64_t *dice, unsigned sides) {
    *dice ^= *dice << 13;
    *dice ^= *dice >> 7;
    *dice ^= *dice << 17;
    return *dice % sides;
}

NOINLINE static char *append_word(char *to, uint64_t *dice) {
    static const char stems[6][7] = {"sample", "stacks", "frames", "thread", "signal", "kernel"};
    memcpy(to, stems[roll(dice, 6)], 6);
    to += 6;
    for (unsigned number = roll(dice, 900); number; number /= 10)
        *to++ = (char)('0' + number % 10);
    *to++ = ' ';
    return to;
}

NOINLINE static size_t write_page(char *text, uint64_t *dice) {
    char *to = text;
    for (int i = 0; i < WORDS; i++)
        to = append_word(to, dice);
    *to = 0;
    return (size_t)(to - text);
}

NOINLINE static uint32_t hash(const char *word, size_t length) {
    uint32_t sum = 2166136261u;
    for (int round = 0; round < 4; round++)
        for (size_t i = 0; i < length; i++)
            sum = (sum ^ (unsigned char)word[i]) * 16777619u;
    return sum;
}

NOINLINE static void count_word(struct entry **index, const char *word, size_t length) {
    struct entry **slot = &index[hash(word, length) % BUCKETS];
    while (*slot && (strncmp((*slot)->word, word, length) || (*slot)->word[length]))
        slot = &(*slot)->next;
    if (!*slot) {
        *slot = calloc(1, sizeof **slot);
        if (!*slot)
            abort();
        memcpy((*slot)->word, word, length);
    }
    (*slot)->count++;
}

NOINLINE static void count_words(struct entry **index, const char *text) {
    for (const char *space; (space = strchr(text, ' ')); text = space + 1)
        count_word(index, text, (size_t)(space - text));
}

/* Time in the kernel is attributed to this function, too. */
NOINLINE static void save_page(int file, const char *text, size_t length) {
    for (int copy = 0; copy < 10; copy++)
        if (pwrite(file, text, length, (off_t)length * copy) != (ssize_t)length)
            abort();
}

static void *indexer(void *unused) {
    static struct entry *index[BUCKETS];
    static char text[WORDS * 12];
    uint64_t dice = 88172645463325252u;
    FILE *file = tmpfile();
    if (!file)
        abort();
    while (time(NULL) < end) {
        size_t length = write_page(text, &dice);
        count_words(index, text);
        save_page(fileno(file), text, length);
    }
    return unused;
}

NOINLINE static unsigned score_page(const char *text, const char *word) {
    unsigned found = 0;
    while ((text = strstr(text, word))) {
        found++;
        text++;
    }
    return found;
}

/* Moves the best twenty pages to the front. */
NOINLINE static void rank_pages(struct page **pages) {
    for (int best = 0; best < 20; best++)
        for (int i = best + 1; i < PAGES; i++)
            if (pages[i]->score > pages[best]->score ||
                (pages[i]->score == pages[best]->score && pages[i] < pages[best])) {
                struct page *other = pages[best];
                pages[best] = pages[i];
                pages[i] = other;
            }
}

NOINLINE static void render(char *out, struct page **pages) {
    for (int i = 0; i < 20; i++)
        for (const char *c = pages[i]->text; *c; c++)
            *out++ = (char)(*c >= 'a' && *c <= 'z' ? *c - 32 : *c);
}

NOINLINE static void answer(char *out, struct page **pages, const char *word) {
    for (int i = 0; i < PAGES; i++)
        pages[i]->score = score_page(pages[i]->text, word);
    rank_pages(pages);
    render(out, pages);
}

static void *searcher(void *unused) {
    static struct page store[PAGES], *pages[PAGES];
    static char out[20 * WORDS * 12];
    uint64_t dice = 362436069;
    char word[16];
    for (int i = 0; i < PAGES; i++) {
        pages[i] = &store[i];
        write_page(store[i].text, &dice);
    }
    while (time(NULL) < end) {
        snprintf(word, sizeof word, "frames%u", roll(&dice, 900));
        answer(out, pages, word);
    }
    return unused;
}

int main(int argc, char **argv) {
    pthread_t threads[2];
    end = time(NULL) + (argc > 1 ? atoi(argv[1]) : 5);
    if (pthread_create(&threads[0], NULL, indexer, NULL) ||
        pthread_create(&threads[1], NULL, searcher, NULL))
        return 1;
    pthread_setname_np(threads[0], "indexer");
    pthread_setname_np(threads[1], "searcher");
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    return 0;
}
