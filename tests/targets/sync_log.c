// Preloaded into a command: logs in $SYNC_LOG which files it syncs and which it renames, in order.
// If $SYNC_DIRECTORY_ERRNO is set, no directory can be synced, for this reason.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static void note(const char *what, const char *path) {
    const char *log = getenv("SYNC_LOG");
    char line[8192];
    int bytes = snprintf(line, sizeof line, "%s %s\n", what, path);
    int fd = log ? open(log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600) : -1;
    if (fd >= 0) {
        if (write(fd, line, (size_t)bytes) != bytes) abort();
        close(fd);
    }
}

static void note_file(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t bytes = readlink(link, path, sizeof path - 1);
    path[bytes < 0 ? 0 : bytes] = 0;
    note("sync", path);
}

int fsync(int fd) {
    note_file(fd);
    const char *reason = getenv("SYNC_DIRECTORY_ERRNO");
    struct stat about;
    if (reason && fstat(fd, &about) == 0 && S_ISDIR(about.st_mode)) {
        errno = atoi(reason);
        return -1;
    }
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    return real(fd);
}

int fdatasync(int fd) {
    note_file(fd);
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    return real(fd);
}

int rename(const char *from, const char *to) {
    note("rename", to);
    int (*real)(const char *, const char *) =
        (int (*)(const char *, const char *))dlsym(RTLD_NEXT, "rename");
    return real(from, to);
}
