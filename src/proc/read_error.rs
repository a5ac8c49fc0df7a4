//! The meaning of errors: whether a process is gone, or this process lacks something itself.

use std::io;

/// Whether an error of reading `/proc` means that the process or the thread no longer exists. Any
/// other error may be the reader's own, such as a shortage of descriptors, and says nothing about
/// the process.
pub fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

/// Whether an error is a shortage of the caller's own: of descriptors, memory or threads.
pub fn is_shortage(error: &io::Error) -> bool {
    error.raw_os_error().and_then(shortage_advice).is_some()
}

/// Returns the remedy for a shortage by its errno; `None` if the errno means anything else.
pub fn shortage_advice(errno: i32) -> Option<&'static str> {
    match errno {
        libc::EMFILE => Some("raise the limit of open files (`ulimit -n`)"),
        libc::ENFILE => Some("raise the machine's limit of open files (sysctl fs.file-max)"),
        libc::ENOMEM | libc::ENOBUFS => {
            Some("free memory, or raise the memory limit of the control group")
        }
        libc::EAGAIN => Some(
            "if the limit of processes is reached, raise it (`ulimit -u`, or pids.max of the \
             control group)",
        ),
        _ => None,
    }
}

/// Returns the remedy for an error of reading `/proc`, or of a step that needs a resource.
pub fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "run as root, or as the user of the process",
        _ => error.raw_os_error().and_then(shortage_advice).unwrap_or("try again"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_shortage_is_no_sign_that_a_process_is_gone() {
        for errno in [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::ENOBUFS, libc::EAGAIN] {
            let error = io::Error::from_raw_os_error(errno);
            assert!(is_shortage(&error) && !is_gone(&error), "{error}");
        }
        for errno in [libc::ENOENT, libc::ESRCH] {
            let error = io::Error::from_raw_os_error(errno);
            assert!(!is_shortage(&error) && is_gone(&error), "{error}");
        }
        assert!(!is_gone(&io::Error::from_raw_os_error(libc::EIO)));
    }
}
