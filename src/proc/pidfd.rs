//! A descriptor of a process, and the wait for the exit of the process.
//!
//! # Safety
//! One system call that no crate in use wraps; it takes numbers.
#![allow(unsafe_code, reason = "opens a descriptor with a bare system call")]

use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use std::time::Instant;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Opens a descriptor that becomes readable when the process has exited.
pub fn open_pidfd(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: takes numbers, returns a new descriptor.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if fd < 0 {
        return Err(explain(io::Error::last_os_error()));
    }
    // SAFETY: opened above, owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Names the kernel version in the error of a kernel that does not know the call, or of a seccomp
/// filter that refuses it.
fn explain(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::ENOSYS | libc::EPERM) => io::Error::new(
            io::ErrorKind::Unsupported,
            format!(
                "pidfd_open is refused ({error}): use Linux 5.3 or later, and a seccomp filter \
                 that permits this call"
            ),
        ),
        _ => error,
    }
}

/// Waits until a descriptor is readable or at its end. Returns `TimedOut` after the deadline.
pub fn wait_readable(fd: BorrowedFd<'_>, deadline: Instant) -> io::Result<()> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], timeout) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => return Ok(()),
            Err(nix::errno::Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::process::Command;
    use std::time::Duration;

    use super::*;

    #[test]
    fn pidfd_is_readable_once_the_process_has_ended() {
        let mut child = Command::new("sleep").arg("120").spawn().unwrap();
        let pidfd = open_pidfd(child.id() as i32).unwrap();
        let timeout = wait_readable(pidfd.as_fd(), Instant::now()).unwrap_err();
        assert_eq!(timeout.kind(), io::ErrorKind::TimedOut);
        child.kill().unwrap();
        wait_readable(pidfd.as_fd(), Instant::now() + Duration::from_secs(20)).unwrap();
        child.wait().unwrap();
        let gone = open_pidfd(child.id() as i32).unwrap_err();
        assert_eq!(gone.raw_os_error(), Some(libc::ESRCH));
    }
}
