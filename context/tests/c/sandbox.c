/* A program that may not create memory files: its table is anonymous, and errno is kept. */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>

#include "check.h"

int main(void) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, TRACEPROF_CONTEXT_MEMFD_CREATE_, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof code / sizeof code[0], code};
    const traceprof_context_table *table;
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0);
    errno = EDOM;
    traceprof_context_set(5, 6);
    CHECK(errno == EDOM);
    CHECK(traceprof_context_is_available());
    CHECK(tables(NULL, 0) == 0);
    table = (const traceprof_context_table *)(uintptr_t)traceprof_context_table_v1;
    CHECK(table && table->header.magic == TRACEPROF_CONTEXT_MAGIC);
    CHECK(traceprof_context_here() >= table->contexts);
    CHECK(traceprof_context_here() < table->contexts + TRACEPROF_CONTEXT_ENTRIES);
    puts("well");
    return 0;
}
