//! What `/proc` tells of the target: the only user of the procfs crate.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;

/// One line of `/proc/PID/maps`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    /// First address (AVMA).
    pub start: u64,
    /// One past the last address.
    pub end: u64,
    /// Readable.
    pub read: bool,
    /// Writable.
    pub write: bool,
    /// Executable.
    pub exec: bool,
    /// Shared (`s`), not private (`p`).
    pub shared: bool,
    /// Offset in the file in bytes.
    pub file_offset: u64,
    /// Major and minor device number.
    pub device: (u32, u32),
    /// Inode number, 0 for anonymous memory.
    pub inode: u64,
    /// Path as the kernel prints it, without ` (deleted)`; `[stack]`, `[vdso]` ...; empty if none.
    pub path: OsString,
    /// The kernel marked the path ` (deleted)`.
    pub deleted: bool,
}

/// The mappings of a process, sorted by address. Of a zombie leader with live threads: those of a
/// live thread.
pub fn mappings(_pid: i32) -> io::Result<Vec<Mapping>> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Kernel thread ids of a process, ascending.
pub fn tasks(_pid: i32) -> io::Result<Vec<i32>> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Opens the ELF file behind a mapping: through `map_files` where permitted, else through the
/// target's root with device and inode compared.
pub fn open_mapping(_pid: i32, _mapping: &Mapping) -> io::Result<OwnedFd> {
    Err(io::ErrorKind::Unsupported.into())
}
