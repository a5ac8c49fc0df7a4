// Preloaded into an interpreter that was built to run one frozen program. Replaces its main function
// by that of the command python, so that it runs any script.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
#include <wchar.h>

#ifndef __GLIBC__
// Versions of musl before 1.2.5 lack these two. Newer programs are linked to them.
ssize_t preadv2(int fd, const struct iovec *parts, int count, off_t offset, int flags)
{
    return syscall(SYS_preadv2, fd, parts, count, offset, 0, flags);
}

ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t offset, int flags)
{
    return syscall(SYS_pwritev2, fd, parts, count, offset, 0, flags);
}

// Takes the place of a library that needs musl 1.2.4. It is not preloaded: it has that library's name.
const char *libintl_bindtextdomain(const char *domain, const char *directory)
{
    (void)domain;
    return directory;
}

const char *libintl_bind_textdomain_codeset(const char *domain, const char *codeset)
{
    (void)domain;
    return codeset;
}

const char *libintl_textdomain(const char *domain)
{
    return domain;
}

const char *libintl_gettext(const char *text)
{
    return text;
}

const char *libintl_dgettext(const char *domain, const char *text)
{
    (void)domain;
    return text;
}

const char *libintl_dcgettext(const char *domain, const char *text, int category)
{
    (void)domain;
    (void)category;
    return text;
}
#endif

typedef int (*entry)(int, char **, char **);
typedef int (*starter)(entry, int, char **, void (*)(void), void (*)(void), void (*)(void), void *);

static void *of_python(const char *name)
{
    return dlsym(RTLD_DEFAULT, name);
}

// Interpreters before 3.11 are linked without the command's main function. Runs a script or -c CODE.
static int run(int argc, char **argv, char **environment)
{
    (void)environment;
    // Options such as -E come first: multiprocessing repeats those of its own interpreter.
    int first = 1;
    while (first + 1 < argc && argv[first][0] == '-' && strcmp(argv[first], "-c"))
        first++;
    int is_code = first + 1 < argc && !strcmp(argv[first], "-c");
    static wchar_t texts[64][1024];
    static wchar_t *wide[64];
    int count = 0;
    for (int at = first; at < argc && count < 64; at++) {
        // Instead of the code, sys.argv has the option.
        if (is_code && at == first + 1)
            continue;
        swprintf(texts[count], 1024, L"%s", argv[at]);
        wide[count] = texts[count];
        count++;
    }
    static wchar_t program[1024];
    swprintf(program, 1024, L"%s", argv[0]);
    ((void (*)(const wchar_t *))of_python("Py_SetProgramName"))(program);
    ((void (*)(int))of_python("Py_InitializeEx"))(1);
    ((void (*)(int, wchar_t **, int))of_python("PySys_SetArgvEx"))(count, wide, 1);
    int failed;
    if (is_code) {
        failed = ((int (*)(const char *, void *))of_python("PyRun_SimpleStringFlags"))(argv[first + 1], 0);
    } else {
        FILE *script = first < argc ? fopen(argv[first], "r") : NULL;
        if (!script) {
            fprintf(stderr, "no script\n");
            return 2;
        }
        int (*run_file)(FILE *, const char *, int, void *) = of_python("PyRun_SimpleFileExFlags");
        failed = run_file(script, argv[first], 1, NULL);
    }
    int lost = ((int (*)(void))of_python("Py_FinalizeEx"))();
    return failed || lost ? 1 : 0;
}

int __libc_start_main(entry main, int argc, char **argv, void (*init)(void), void (*fini)(void),
                      void (*rtld_fini)(void), void *stack_end)
{
    entry command = (entry)of_python("Py_BytesMain");
    if (!command && of_python("Py_InitializeEx"))
        command = run;
    starter next = (starter)dlsym(RTLD_NEXT, "__libc_start_main");
    return next(command ? command : main, argc, argv, init, fini, rtld_fini, stack_end);
}
