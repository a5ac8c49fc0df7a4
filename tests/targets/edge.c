/* Computes where a signal handler finds little more stack than an empty handler needs.
 *
 *     edge stack ROOM        two threads near the end of their stacks
 *     edge alternate ROOM    two threads with small alternate stacks, for handlers that use them
 *
 * What an empty handler needs depends on the processor, so it is measured: "minimum N". Each thread
 * has ROOM bytes more, or less if ROOM is negative.
 */
#include "target.h"
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define PAGE 4096
#define MOST (64 << 10)
#define STEP 64
#define THREADS 2

static long room;
static int is_alternate;
static unsigned up;

static void empty(int signal) {
    (void)signal;
}

/* Returns the lowest address of a stack, below which there is no memory. */
static char *new_stack(void) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    char *area = mmap(NULL, PAGE + MOST, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (area == MAP_FAILED || mprotect(area, PAGE, PROT_NONE))
        abort();
    return area + PAGE;
}

static int set_alternate(char *stack, size_t size) {
    stack_t alternate = {.ss_sp = stack, .ss_size = size};
    return sigaltstack(&alternate, NULL);
}

/* Sends this thread a signal while its stack pointer is `sp`. */
APART void hit(char *sp) {
    long number = SYS_tgkill, pid = getpid(), tid = syscall(SYS_gettid);
    __asm__ volatile("mov %%rsp, %%rbx\n\tmov %4, %%rsp\n\tsyscall\n\tmov %%rbx, %%rsp"
                     : "+a"(number)
                     : "D"(pid), "S"(tid), "d"(SIGURG), "r"(sp)
                     : "rbx", "rcx", "r11", "memory");
}

/* Computes with this stack pointer until SIGTERM. */
APART void compute(char *sp) {
    __asm__ volatile("mov %%rsp, %%rbx\n\tmov %0, %%rsp\n"
                     "1:\tcmpl $0, (%1)\n\tje 1b\n\tmov %%rbx, %%rsp"
                     :
                     : "r"(sp), "r"(&stop)
                     : "rbx", "cc", "memory");
}

/* Whether an empty handler ends well with this much stack. */
static int lives(size_t size) {
    int status;
    pid_t child = fork();
    if (child == 0) {
        struct sigaction action = {.sa_handler = empty, .sa_flags = is_alternate ? SA_ONSTACK : 0};
        char *stack = new_stack();
        prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
        sigaction(SIGURG, &action, NULL);
        if (is_alternate && set_alternate(stack, size))
            _exit(1);
        hit(is_alternate ? new_stack() + MOST : stack + size);
        _exit(0);
    }
    if (child < 0 || waitpid(child, &status, 0) != child)
        abort();
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void *work(void *size) {
    char *stack = new_stack();
    if (is_alternate && set_alternate(stack, (size_t)size))
        abort();
    __atomic_add_fetch(&up, 1, __ATOMIC_SEQ_CST);
    compute(is_alternate ? new_stack() + MOST : stack + (size_t)size);
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t threads[THREADS];
    sigset_t term, before;
    size_t minimum = STEP;
    if (argc != 3)
        return 2;
    is_alternate = !strcmp(argv[1], "alternate");
    room = strtol(argv[2], NULL, 10);
    while (!lives(minimum) && minimum < MOST)
        minimum += STEP;
    printf("minimum %zu\n", minimum);
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &term, &before);
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, work, (void *)((long)minimum + room)))
            return 1;
    while (__atomic_load_n(&up, __ATOMIC_SEQ_CST) < THREADS)
        usleep(1000);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    target_ready();
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    return OWN_EXIT_CODE;
}
