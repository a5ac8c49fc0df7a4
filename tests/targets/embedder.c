// Loads a library of Python, and initialises it, runs a script and ends it when told so by lines of
// input: the first argument is the library, the second is the script.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

static void *library;

static void *function(const char *name)
{
    void *found = dlsym(library, name);
    if (!found) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    return found;
}

static void report(const char *state)
{
    puts(state);
    fflush(stdout);
    if (getchar() == EOF)
        exit(0);
}

int main(int argc, char **argv)
{
    if (argc != 3 || !(library = dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL))) {
        fprintf(stderr, "%s\n", argc == 3 ? dlerror() : "two arguments, please");
        return 1;
    }
    void (*initialize)(void) = function("Py_Initialize");
    int (*run)(const char *) = function("PyRun_SimpleString");
    int (*finalize)(void) = function("Py_FinalizeEx");
    report("loaded");
    initialize();
    report("initialised");
    if (run(argv[2]))
        return 1;
    finalize();
    report("ended");
    return 0;
}
