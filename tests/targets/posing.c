/* Looks like a Java virtual machine, with a library and a thread of the right names, of which the
 * thread handles SIGQUIT. It executes another program just before the recorder asks it to open its
 * socket.
 *
 *     posing LIBRARY
 */
#include "target.h"
#include <dlfcn.h>
#include <sys/stat.h>

static void on_sigquit(int signal) { (void)signal; }

static void *operate(void *unused) {
    prctl(PR_SET_NAME, "VM Thread", 0, 0, 0);
    for (;;)
        pause();
    return unused;
}

int main(int argc, char **argv) {
    char path[64];
    struct stat found;
    pthread_t thread;
    if (argc < 2) {
        /* The next program: SIGQUIT would end it. */
        puts("executed 1");
        fflush(stdout);
        target_ready();
        while (!stop)
            pause();
        return OWN_EXIT_CODE;
    }
    struct sigaction action = {.sa_handler = on_sigquit, .sa_flags = SA_RESTART};
    sigaction(SIGQUIT, &action, NULL);
    if (!dlopen(argv[1], RTLD_NOW) || pthread_create(&thread, NULL, operate, NULL))
        return 1;
    snprintf(path, sizeof path, "/tmp/.attach_pid%d", getpid());
    target_ready();
    while (stat(path, &found))
        ;
    execl("/proc/self/exe", argv[0], NULL);
    return 1;
}
