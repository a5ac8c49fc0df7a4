//! Dumps of generated code that the target has mapped.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::Path;

/// The maximum number of dumps of one program. A runtime writes one, and each fork of it another.
pub(crate) const DUMPS_MAX: usize = 64;

/// A dump that the target announced by mapping it.
#[derive(Debug)]
pub(crate) struct DumpFile {
    /// The open file.
    pub(crate) descriptor: OwnedFd,
    /// Its device and inode.
    pub(crate) file: ((u32, u32), u64),
    /// The path as the target sees it.
    pub(crate) path: String,
}

/// Checks whether a mapping of this path announces a dump.
pub(crate) fn is_dump(path: &OsStr) -> bool {
    let name = Path::new(path).file_name().and_then(OsStr::to_str).unwrap_or_default();
    let number = name.strip_prefix("jit-").and_then(|name| name.strip_suffix(".dump"));
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|it| it.is_ascii_digit()))
}
