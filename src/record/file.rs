//! Files in memory, for what has none on a disk.
//!
//! # Safety
//! System calls alone, whose results are checked.
#![allow(unsafe_code, reason = "the door to memory files")]

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{FromRawFd, OwnedFd};

/// A file in memory with this content, for images that have no file (the vDSO).
pub(super) fn in_memory(name: &std::ffi::CStr, content: &[u8]) -> io::Result<OwnedFd> {
    // SAFETY: the name is a C string.
    let descriptor = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just returned it to us alone.
    let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
    File::from(descriptor.try_clone()?).write_all(content)?;
    Ok(descriptor)
}
