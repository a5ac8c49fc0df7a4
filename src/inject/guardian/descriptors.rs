//! The descriptors of a forked process, independent of its parent.
//!
//! # Safety
//! The calling process has one thread, and nothing else uses the descriptors.
#![allow(unsafe_code, reason = "closes the descriptors that it inherited")]

use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use crate::proc;

/// Closes every descriptor but these two, and opens /dev/null as the standard descriptors.
pub(super) fn keep_only(socket: RawFd, recorder: RawFd) -> io::Result<(OwnedFd, OwnedFd)> {
    // The copies are above the standard descriptors and above both originals, so that none
    // overwrites another. Each copy takes the lowest free number, so the second is above the first.
    let floor = socket.max(recorder).max(2) + 1;
    let (low, high) = (duplicate(socket, floor)?, duplicate(recorder, floor)?);
    for range in [(0, low - 1), (low + 1, high - 1), (high + 1, i32::MAX)] {
        if range.0 <= range.1 {
            close_all(range.0..=range.1)?;
        }
    }
    for _ in 0..3 {
        // SAFETY: reads a constant string; the lowest free numbers are 0, 1 and 2.
        unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) };
    }
    // SAFETY: duplicated above, and owned by nobody else.
    let low = unsafe { OwnedFd::from_raw_fd(low) };
    // SAFETY: as above.
    let high = unsafe { OwnedFd::from_raw_fd(high) };
    Ok((low, high))
}

/// Closes descriptors that this process no longer uses.
fn close_all(range: RangeInclusive<RawFd>) -> io::Result<()> {
    if proc::close_range(*range.start() as u32, *range.end() as u32).is_ok() {
        return Ok(());
    }
    // Linux has this call since 5.9; a seccomp filter may refuse it.
    for (fd, _) in proc::descriptors(std::process::id() as i32)? {
        if range.contains(&fd) {
            // SAFETY: this process no longer uses it. The descriptor that listed the others is
            // closed already.
            unsafe { libc::close(fd) };
        }
    }
    Ok(())
}

fn duplicate(fd: RawFd, floor: RawFd) -> io::Result<RawFd> {
    // SAFETY: takes numbers, gives a new descriptor.
    match unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, floor) } {
        -1 => Err(io::Error::last_os_error()),
        copy => Ok(copy),
    }
}
