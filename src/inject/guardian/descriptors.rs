//! The descriptors of a forked process, independent of its parent.
//!
//! # Safety
//! The calling process has one thread, and nothing else uses the descriptors.
#![allow(unsafe_code, reason = "closes the descriptors that it inherited")]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// Closes every descriptor but these two, and opens /dev/null as the standard descriptors.
pub(super) fn keep_only(socket: RawFd, recorder: RawFd) -> io::Result<(OwnedFd, OwnedFd)> {
    // The copies are above the standard descriptors and above both originals, so that none
    // overwrites another. Each copy takes the lowest free number, so the second is above the first.
    let floor = socket.max(recorder).max(2) + 1;
    let (low, high) = (duplicate(socket, floor)?, duplicate(recorder, floor)?);
    for range in [(0, low - 1), (low + 1, high - 1), (high + 1, i32::MAX)] {
        if range.0 <= range.1 {
            // SAFETY: closes descriptors that this process no longer uses.
            unsafe { libc::close_range(range.0 as u32, range.1 as u32, 0) };
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

fn duplicate(fd: RawFd, floor: RawFd) -> io::Result<RawFd> {
    // SAFETY: takes numbers, gives a new descriptor.
    match unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, floor) } {
        -1 => Err(io::Error::last_os_error()),
        copy => Ok(copy),
    }
}
