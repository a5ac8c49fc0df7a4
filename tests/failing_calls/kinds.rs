//! The kinds of system calls that fail, and how.

/// Calls that fail for the same reason.
#[derive(Debug)]
pub(super) struct Kind {
    pub(super) name: &'static str,
    pub(super) calls: &'static [libc::c_long],
    pub(super) errno: i32,
}

const fn kind(name: &'static str, errno: i32, calls: &'static [libc::c_long]) -> Kind {
    Kind { name, calls, errno }
}

/// Every kind of call that a recorder or guardian makes and that may fail while nothing is wrong
/// with the target.
pub(super) static KINDS: [Kind; 20] = [
    kind("open", libc::EMFILE, &[libc::SYS_open, libc::SYS_openat, libc::SYS_openat2]),
    kind(
        "memory",
        libc::ENOMEM,
        // No brk: it returns no error, but the end of the heap as it was.
        &[libc::SYS_mmap, libc::SYS_mremap, libc::SYS_mprotect, libc::SYS_madvise],
    ),
    kind("clone", libc::EAGAIN, &[libc::SYS_clone, libc::SYS_clone3, libc::SYS_fork]),
    kind(
        "write",
        libc::ENOSPC,
        &[libc::SYS_write, libc::SYS_pwrite64, libc::SYS_writev, libc::SYS_ftruncate],
    ),
    kind("sync", libc::EIO, &[libc::SYS_fsync, libc::SYS_fdatasync]),
    kind("ptrace", libc::EIO, &[libc::SYS_ptrace]),
    kind("perf_event_open", libc::ENOMEM, &[libc::SYS_perf_event_open]),
    kind("segment", libc::ENOSPC, &[libc::SYS_shmget, libc::SYS_shmat]),
    kind(
        "memory of the target",
        libc::ENOMEM,
        &[libc::SYS_process_vm_readv, libc::SYS_process_vm_writev],
    ),
    kind("read", libc::EIO, &[libc::SYS_read, libc::SYS_pread64]),
    kind("directory", libc::ENOMEM, &[libc::SYS_getdents64]),
    kind(
        "status of a file",
        libc::ENOMEM,
        &[libc::SYS_statx, libc::SYS_newfstatat, libc::SYS_fstat],
    ),
    kind("link", libc::ENOMEM, &[libc::SYS_readlink, libc::SYS_readlinkat]),
    kind(
        "name",
        libc::EIO,
        &[libc::SYS_rename, libc::SYS_unlink, libc::SYS_fchmod, libc::SYS_link],
    ),
    kind("space", libc::ENOSPC, &[libc::SYS_fallocate, libc::SYS_statfs, libc::SYS_lseek]),
    kind("lock", libc::ENOLCK, &[libc::SYS_flock]),
    kind(
        "socket",
        libc::ENOBUFS,
        &[libc::SYS_socket, libc::SYS_socketpair, libc::SYS_bind, libc::SYS_setsockopt],
    ),
    kind("message", libc::ENOBUFS, &[libc::SYS_sendto, libc::SYS_recvfrom, libc::SYS_recvmsg]),
    kind("poll", libc::ENOMEM, &[libc::SYS_poll, libc::SYS_ppoll]),
    kind(
        "descriptor",
        libc::EMFILE,
        &[
            libc::SYS_pidfd_open,
            libc::SYS_fcntl,
            libc::SYS_memfd_create,
            libc::SYS_inotify_init1,
            libc::SYS_inotify_add_watch,
            libc::SYS_ioctl,
        ],
    ),
];
