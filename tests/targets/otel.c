/* Threads that publish the span that they work on in OpenTelemetry's format (OTEP 4947), and a
 * process that publishes its context (OTEP 4719). Each function is only called within its own span.
 * "worker" attaches a record for each span. "changer" changes its record. "later" has an attribute
 * whose name comes after some time. "sleeper" sleeps most of the time. "silent" has no record.
 * "invalid" has a record that is not valid. "garbage" has a variable that points to unreadable
 * memory. "baseless" has no thread pointer for a while, or one that leads nowhere. "raw" is made by
 * clone without its own thread block: it has the thread pointer of "maker", which has a record and
 * sleeps.
 *
 *     otel SECONDS [LIBRARY]
 *
 * SECONDS is the time before it begins. The variable is in the library, if there is one, or else
 * linked in. */
#include "target.h"

#include <dlfcn.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#ifdef OWN
#include "otel_variable.c"
#endif

#define WORK_NS 3000000u
/* The CPU time of the process until the last attribute gets its name. */
#define UNNAMED_NS 2000000000u
#define PAGE 4096
#define FENCE __atomic_signal_fence(__ATOMIC_SEQ_CST)

struct record {
    uint8_t trace[16], span[8];
    volatile uint8_t valid;
    uint8_t flags;
    uint16_t len;
    uint8_t attributes[612];
};

struct record **otel_variable(void);
static struct record **(*variable)(void);
static volatile uint64_t sink;
static volatile int is_named;

static void attach(struct record *record) {
    FENCE;
    *(struct record *volatile *)variable() = record;
    FENCE;
}

static void put(uint8_t *to, uint64_t id) {
    for (int byte = 0; byte < 8; byte++)
        to[byte] = (uint8_t)(id >> (56 - 8 * byte));
}

static void tell(struct record *record, uint64_t high, uint64_t low, uint64_t span) {
    put(record->trace, high);
    put(record->trace + 8, low);
    put(record->span, span);
    record->len = 0;
}

static void add(struct record *record, uint8_t key, const char *value) {
    size_t len = strlen(value);
    record->attributes[record->len] = key;
    record->attributes[record->len + 1] = (uint8_t)len;
    memcpy(record->attributes + record->len + 2, value, len);
    record->len = (uint16_t)(record->len + 2 + len);
}

APART static void burn(void) {
    uint64_t x = sink, until = clock_ns(CLOCK_THREAD_CPUTIME_ID) + WORK_NS;
    while (clock_ns(CLOCK_THREAD_CPUTIME_ID) < until)
        CHAIN(x, 20000);
    sink = x;
}

#define IN(name, number)                                                                           \
    APART static void name(void) {                                                                 \
        burn();                                                                                    \
        sink += number;                                                                            \
    }
IN(in_first, 1)
IN(in_second, 2)
IN(in_third, 3)
IN(in_later, 4)
IN(in_none, 5)
IN(in_invalid, 6)
IN(in_garbage, 7)

static void *work(void *unused) {
    static struct record first, second;
    (void)unused;
    prctl(PR_SET_NAME, "worker");
    tell(&first, 0x0102030405060708, 0x090a0b0c0d0e0f10, 0x1111);
    add(&first, 0, "/checkout");
    add(&first, 1, "7");
    tell(&second, 0, 0x42, 0x2222);
    first.valid = second.valid = 1;
    while (!stop) {
        attach(&first);
        in_first();
        attach(NULL);
        in_none();
        attach(&second);
        in_second();
    }
    return NULL;
}

static void *change(void *unused) {
    static struct record record;
    char name[20];
    (void)unused;
    prctl(PR_SET_NAME, "changer");
    attach(&record);
    for (unsigned turn = 0; !stop; turn++) {
        record.valid = 0;
        FENCE;
        tell(&record, 0x10 + turn % 3, 0x20 + turn % 3, 0x30 + turn % 3);
        snprintf(name, sizeof name, "/%u", turn % 3);
        add(&record, 1, "a value that another one follows");
        add(&record, 1, name);
        /* A truncated entry. */
        record.attributes[record.len++] = 0;
        FENCE;
        record.valid = 1;
        FENCE;
        in_third();
    }
    return NULL;
}

static void *be_later(void *unused) {
    static struct record records[2];
    (void)unused;
    prctl(PR_SET_NAME, "later");
    tell(&records[0], 1, 2, 0x4444);
    tell(&records[1], 1, 2, 0x4444);
    add(&records[1], 2, "yes");
    records[0].valid = records[1].valid = 1;
    while (!stop) {
        attach(&records[is_named]);
        in_later();
    }
    return NULL;
}

APART static void nap(void) {
    struct timespec time = {.tv_nsec = 50000000};
    nanosleep(&time, NULL);
    sink++;
}

static void *sleep_on(void *unused) {
    static struct record records[2];
    (void)unused;
    prctl(PR_SET_NAME, "sleeper");
    tell(&records[0], 5, 6, 0x5555);
    add(&records[0], 0, "/wait");
    tell(&records[1], 5, 6, 0x6666);
    records[0].valid = records[1].valid = 1;
    for (unsigned turn = 0; !stop; turn++) {
        attach(&records[turn % 2]);
        burn();
        nap();
    }
    return NULL;
}

static void *be_silent(void *unused) {
    (void)unused;
    prctl(PR_SET_NAME, "silent");
    while (!stop)
        in_none();
    return NULL;
}

static void *be_invalid(void *unused) {
    static struct record record;
    (void)unused;
    prctl(PR_SET_NAME, "invalid");
    tell(&record, 7, 8, 0x7777);
    record.valid = 2;
    attach(&record);
    while (!stop)
        in_invalid();
    return NULL;
}

static void *be_garbage(void *unused) {
    (void)unused;
    prctl(PR_SET_NAME, "garbage");
    uint8_t *pages =
        mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct record *at_edge = (struct record *)(pages + PAGE - 20);
    memset(at_edge, 1, 20);
    mprotect(pages + PAGE, PAGE, PROT_NONE);
    struct record *places[] = {at_edge, (struct record *)(pages + PAGE), (struct record *)8,
                               (struct record *)0xdeadbeefdeadbeef};
    for (unsigned turn = 0; !stop; turn++) {
        attach(places[turn % (sizeof places / sizeof *places)]);
        in_garbage();
    }
    attach(NULL);
    return NULL;
}

/* Without a stack protector or a call into a library: both need the thread pointer. */
__attribute__((no_stack_protector)) APART static void in_baseless(uint64_t base) {
    uint64_t own, x = sink, result;
    const uint64_t set = 0x1002, get = 0x1003;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(SYS_arch_prctl), "D"(get), "S"(&own)
                     : "rcx", "r11", "memory");
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(SYS_arch_prctl), "D"(set), "S"(base)
                     : "rcx", "r11", "memory");
    CHAIN(x, 3000000);
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(SYS_arch_prctl), "D"(set), "S"(own)
                     : "rcx", "r11", "memory");
    sink = x + result;
}

static void *be_baseless(void *unused) {
    (void)unused;
    prctl(PR_SET_NAME, "baseless");
    for (unsigned turn = 0; !stop; turn++)
        in_baseless(turn % 2 ? 0 : 0x10000);
    return NULL;
}

APART static void in_raw(void) {
    uint64_t x = sink;
    CHAIN(x, 3000000);
    sink = x;
}

__attribute__((no_stack_protector)) static int be_raw(void *unused) {
    (void)unused;
    prctl(PR_SET_NAME, "raw");
    while (!stop)
        in_raw();
    return 0;
}

static void *make_raw(void *unused) {
    static struct record record;
    static char stack[1 << 16] __attribute__((aligned(64)));
    struct timespec time = {.tv_nsec = 50000000};
    (void)unused;
    prctl(PR_SET_NAME, "maker");
    tell(&record, 9, 10, 0x8888);
    record.valid = 1;
    attach(&record);
    const int flags =
        CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;
    if (clone(be_raw, stack + sizeof stack, flags, NULL) < 0)
        abort();
    while (!stop)
        nanosleep(&time, NULL);
    return NULL;
}

/* Protocol buffers: a field of bytes with its length, which is below 128. */
static size_t field(uint8_t *to, uint8_t number, const void *bytes, size_t len) {
    to[0] = (uint8_t)(number << 3 | 2);
    to[1] = (uint8_t)len;
    memcpy(to + 2, bytes, len);
    return len + 2;
}

static size_t attribute(uint8_t *to, uint8_t number, const char *key, const uint8_t *value, size_t len) {
    uint8_t all[128];
    size_t end = field(all, 1, key, strlen(key));
    end += field(all + end, 2, value, len);
    return field(to, number, all, end);
}

static size_t text(uint8_t *to, const char *value) { return field(to, 1, value, strlen(value)); }

/* A process context with this many attribute names. */
static size_t payload(uint8_t *to, int names) {
    static const char *const all[] = {"http_route", "user", "late"};
    uint8_t value[128], list[128], resource[128];
    size_t end = text(value, "shop"), list_end = 0;
    end = attribute(resource, 1, "service.name", value, end);
    size_t len = field(to, 1, resource, end);
    end = text(value, "tlsdesc_v1_dev");
    len += attribute(to + len, 2, "threadlocal.schema_version", value, end);
    for (int name = 0; name < names; name++) {
        end = text(value, all[name]);
        list_end += field(list + list_end, 1, value, end);
    }
    end = field(value, 5, list, list_end);
    return len + attribute(to + len, 2, "threadlocal.attribute_key_map", value, end);
}

struct header {
    char signature[8];
    uint32_t version, payload_len;
    uint64_t published_at_ns;
    uint8_t *payload;
};

static void publish(int names) {
    static uint8_t payloads[2][1024];
    static struct header *header;
    if (!header) {
        int file = (int)syscall(SYS_memfd_create, "OTEL_CTX", 1u);
        if (file < 0 || ftruncate(file, PAGE))
            abort();
        header = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
        close(file);
        madvise(header, PAGE, MADV_DONTFORK);
    }
    header->published_at_ns = 0;
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    header->version = 2;
    header->payload = payloads[names % 2];
    header->payload_len = (uint32_t)payload(header->payload, names);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    header->published_at_ns = clock_ns(CLOCK_REALTIME);
    memcpy(header->signature, "OTEL_CTX", 8);
}

int main(int argc, char **argv) {
    target_ready();
    struct timespec wait = {.tv_sec = argc > 1 ? atoi(argv[1]) : 0};
    nanosleep(&wait, NULL);
#ifdef LINKED
    variable = otel_variable;
#else
    void *library = argc > 2 ? dlopen(argv[2], RTLD_NOW) : NULL;
    if (!library)
        return 1;
    *(void **)&variable = dlsym(library, "otel_variable");
#endif
    publish(2);
    void *(*const bodies[])(void *) = {work,      change,     be_later,   sleep_on,
                                       be_silent, be_invalid, be_garbage, be_baseless,
                                       make_raw};
    pthread_t threads[sizeof bodies / sizeof *bodies];
    for (size_t number = 0; number < sizeof bodies / sizeof *bodies; number++)
        if (pthread_create(&threads[number], NULL, bodies[number], NULL) != 0)
            return 1;
    /* CPU time, because a busy machine gives the threads little of it in any other time. */
    const struct timespec moment = {.tv_nsec = 10000000};
    while (!stop && clock_ns(CLOCK_PROCESS_CPUTIME_ID) < UNNAMED_NS)
        nanosleep(&moment, NULL);
    publish(3);
    is_named = 1;
    for (size_t number = 0; number < sizeof bodies / sizeof *bodies; number++)
        pthread_join(threads[number], NULL);
    return OWN_EXIT_CODE;
}
