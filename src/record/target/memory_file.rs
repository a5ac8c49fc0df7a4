//! Files in memory, for images without a file on disk.
//!
//! # Safety
//! Only system calls, whose results are checked.
#![allow(unsafe_code, reason = "the door to memory files")]

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{FromRawFd, OwnedFd};

/// Creates a file in memory with this content, such as the image of the vDSO.
pub(crate) fn in_memory(name: &std::ffi::CStr, content: &[u8]) -> io::Result<OwnedFd> {
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
