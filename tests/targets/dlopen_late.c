/* Computes in its own code until SIGUSR1, then loads a plugin and computes in it.
 *
 *     dlopen_late PLUGIN
 */
#include "target.h"
#include <dlfcn.h>

static volatile sig_atomic_t load;
static volatile uint64_t sink;

static void on_sigusr1(int signal) {
    (void)signal;
    load = 1;
}

APART uint64_t own_work(uint64_t x) { CHAIN(x, 2000000); return x; }

int main(int argc, char **argv) {
    uint64_t (*work)(uint64_t) = own_work;
    struct sigaction action = {.sa_handler = on_sigusr1, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    target_ready();
    while (!stop) {
        if (load && work == own_work) {
            void *plugin = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;
            if (!plugin || !(work = (uint64_t(*)(uint64_t))dlsym(plugin, "plugin_entry"))) {
                fprintf(stderr, "%s\n", dlerror());
                return 1;
            }
        }
        sink = work(sink) + 1;
    }
    return OWN_EXIT_CODE;
}
