//! What makes a forked process independent of the one that it comes from: its descriptors, and its
//! turns of the processor.
//!
//! # Safety
//! What is called here runs in a process with one thread, on descriptors that nothing else uses.
#![allow(unsafe_code, reason = "closes what it inherited, and opens descriptors of processes")]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// A tracer that loses its processor keeps its tracee stopped: each thread that it lets go may take
/// it away (several milliseconds on a busy machine, measured). Real time where that is permitted;
/// the guardian sleeps but for the moments of an attach and a cure. It concerns the calling thread.
pub(super) fn hurry() {
    let lowest = libc::sched_param { sched_priority: 1 };
    // SAFETY: reads the parameter.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &lowest) } != 0 {
        // SAFETY: takes numbers. Without permission it stays as it is.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) };
    }
}

/// Closes every descriptor but these two, and opens /dev/null as the standard ones.
pub(super) fn keep_only(socket: RawFd, recorder: RawFd) -> io::Result<(OwnedFd, OwnedFd)> {
    // Copies above the standard ones and above both originals, so that none overwrites another.
    // Each takes the lowest free number, so the second is above the first.
    let floor = socket.max(recorder).max(2) + 1;
    let (low, high) = (duplicate(socket, floor)?, duplicate(recorder, floor)?);
    for range in [(0, low - 1), (low + 1, high - 1), (high + 1, i32::MAX)] {
        if range.0 <= range.1 {
            // SAFETY: closes descriptors that nothing in this process uses any more.
            unsafe { libc::close_range(range.0 as u32, range.1 as u32, 0) };
        }
    }
    for _ in 0..3 {
        // SAFETY: reads a string of the program's; the lowest free numbers are 0, 1 and 2.
        unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) };
    }
    // SAFETY: opened above and owned by nobody else.
    let low = unsafe { OwnedFd::from_raw_fd(low) };
    // SAFETY: as above.
    let high = unsafe { OwnedFd::from_raw_fd(high) };
    Ok((low, high))
}

fn duplicate(fd: RawFd, floor: RawFd) -> io::Result<RawFd> {
    // SAFETY: takes numbers, gives a new descriptor.
    match unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, floor) } {
        -1 => Err(io::Error::last_os_error()),
        copy => Ok(copy),
    }
}

/// Readable when a process has ended.
pub(super) fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: takes numbers, gives a new descriptor.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: opened above, owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}
