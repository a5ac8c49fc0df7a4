//! A descriptor of a process: signals to the process, and the wait for its exit.
//!
//! # Safety
//! Two system calls that no crate in use wraps; they take numbers.
#![allow(unsafe_code, reason = "opens and uses a descriptor with bare system calls")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;

/// Longest pause between two waits while the kernel has no memory for one.
const SHORTAGE_RETRY: Duration = Duration::from_millis(5);

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

/// Sends a signal to the process of a descriptor, and never to a later process with the same pid.
pub fn send_signal(pidfd: BorrowedFd<'_>, signal: Signal) -> io::Result<()> {
    let info = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: takes numbers; without an information, the kernel makes one.
    let outcome = unsafe {
        libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal as i32, info, 0)
    };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Continues the process of a descriptor, with this pid, if SIGSTOP has stopped it.
pub fn continue_stopped(pid: i32, pidfd: BorrowedFd<'_>) {
    if super::task_stat(pid, pid).is_ok_and(|stat| stat.state == 'T') {
        // An error means that the process has exited.
        let _ = send_signal(pidfd, Signal::SIGCONT);
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
            // The kernel has no memory for the wait, which says nothing about the descriptor.
            Err(nix::errno::Errno::ENOMEM) if !left.is_zero() => {
                std::thread::sleep(left.min(SHORTAGE_RETRY));
            }
            Err(errno) => return Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::process::Command;

    use super::*;

    #[test]
    fn pidfd_is_readable_once_the_process_has_ended() {
        let mut child = Command::new("sleep").arg("120").spawn().unwrap();
        let pidfd = open_pidfd(child.id() as i32).unwrap();
        let timeout = wait_readable(pidfd.as_fd(), Instant::now()).unwrap_err();
        assert_eq!(timeout.kind(), io::ErrorKind::TimedOut);
        send_signal(pidfd.as_fd(), Signal::SIGKILL).unwrap();
        wait_readable(pidfd.as_fd(), Instant::now() + Duration::from_secs(20)).unwrap();
        child.wait().unwrap();
        let unsent = send_signal(pidfd.as_fd(), Signal::SIGCONT).unwrap_err();
        assert_eq!(unsent.raw_os_error(), Some(libc::ESRCH));
        let gone = open_pidfd(child.id() as i32).unwrap_err();
        assert_eq!(gone.raw_os_error(), Some(libc::ESRCH));
    }
}
