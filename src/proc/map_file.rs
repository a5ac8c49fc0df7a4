//! Files of the target, mapped for reading.
//!
//! # Safety
//! A file that is truncated while it is mapped kills the reader with SIGBUS. Package managers
//! replace files and do not truncate them, and a mapping is dropped as soon as it was read. If the
//! recorder dies all the same, its guardian restores the target.
#![allow(unsafe_code, reason = "the door to memory mapped files")]

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use memmap2::Mmap;

/// Maps a whole file for reading.
pub fn map_file(descriptor: impl AsFd) -> io::Result<Mmap> {
    let file = File::from(descriptor.as_fd().try_clone_to_owned()?);
    // SAFETY: see the module's text.
    unsafe { Mmap::map(&file) }
}
