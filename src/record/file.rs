//! ELF files of the target, mapped for reading.
//!
//! # Safety
//! A file that is truncated while it is mapped kills the reader with SIGBUS. The recorder's own
//! death is a case that the guardian cures; package managers replace files, they do not truncate
//! them, and the mapping is dropped as soon as the module is compiled.
#![allow(unsafe_code, reason = "the door to memory mapped files")]

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};

use memmap2::Mmap;

/// Maps a whole file for reading.
pub(super) fn map(descriptor: impl AsFd) -> io::Result<Mmap> {
    let file = File::from(descriptor.as_fd().try_clone_to_owned()?);
    // SAFETY: see the module's text.
    unsafe { Mmap::map(&file) }
}

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
