//! Files of the target, mapped for reading.
//!
//! # Safety
//! A file that is truncated while it is mapped kills the reader with SIGBUS. Package managers
//! replace files and do not truncate them, and the reader drops a mapping as soon as it has read
//! it. If the recorder dies all the same, its guardian restores the target.
#![allow(unsafe_code, reason = "the only access to memory mapped files")]

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use memmap2::Mmap;

/// Maps a complete file for reading.
pub fn map_file(descriptor: impl AsFd) -> io::Result<Mmap> {
    let file = File::from(descriptor.as_fd().try_clone_to_owned()?);
    // SAFETY: see the module's text.
    unsafe { Mmap::map(&file) }
}
