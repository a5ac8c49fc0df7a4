/* Alternately loads one of two plugins, computes in it and unloads it. Both have the same layout,
 * so each is mapped where the other was.
 *
 *     swap PLUGIN PLUGIN
 */
#include "target.h"
#include <dlfcn.h>

static volatile uint64_t sink;

APART static uint64_t run_alpha(uint64_t (*work)(uint64_t)) { return work(sink) + 1; }
APART static uint64_t run_beta(uint64_t (*work)(uint64_t)) { return work(sink) + 2; }

int main(int argc, char **argv) {
    void *first = NULL, *entry = NULL;
    unsigned other_places = 0;
    if (argc < 3)
        return 1;
    target_ready();
    for (int turn = 0; !stop; turn = !turn) {
        void *plugin = dlopen(argv[1 + turn], RTLD_NOW);
        if (!plugin || !(entry = dlsym(plugin, "plugin_entry"))) {
            fprintf(stderr, "%s\n", dlerror());
            return 1;
        }
        first = first ? first : entry;
        other_places += entry != first;
        uint64_t end = clock_ns(CLOCK_THREAD_CPUTIME_ID) + 60000000;
        while (!stop && clock_ns(CLOCK_THREAD_CPUTIME_ID) < end)
            sink = turn ? run_beta(entry) : run_alpha(entry);
        dlclose(plugin);
    }
    printf("other_places %u\n", other_places);
    return OWN_EXIT_CODE;
}
