// Traces the process that its argument names until it is killed.
#include <stdlib.h>
#include <sys/ptrace.h>
#include <unistd.h>
int main(int argc, char **argv) {
    if (argc < 2 || ptrace(PTRACE_SEIZE, atoi(argv[1]), 0, 0)) return 1;
    write(1, "ready\n", 6);
    for (;;) pause();
}
