//! The memory mappings of a process.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;

use super::{descriptor_path, malformed, read_file, tasks};

/// One line of `/proc/PID/maps`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Mapping {
    /// The first address (AVMA).
    pub start: u64,
    /// The address after the last one.
    pub end: u64,
    /// Whether the mapping is readable.
    pub read: bool,
    /// Whether the mapping is writable.
    pub write: bool,
    /// Whether the mapping is executable.
    pub exec: bool,
    /// Whether the mapping is shared (`s`), not private (`p`).
    pub shared: bool,
    /// The offset in the file in bytes.
    pub file_offset: u64,
    /// The major and minor device number.
    pub device: (u32, u32),
    /// The inode number, 0 for anonymous memory.
    pub inode: u64,
    /// The path as the kernel prints it, without ` (deleted)`; or `[stack]`, `[vdso]` and the like;
    /// empty if there is none.
    pub path: OsString,
    /// Whether the kernel marked the path with ` (deleted)`.
    pub deleted: bool,
}

impl Mapping {
    /// Whether this is a mapping of an open file: by the same inode, or by the kernel's name for
    /// the file. Overlays may show another inode to `stat` than to `maps`.
    pub fn is_of(&self, file: &File) -> bool {
        self.has_inode_of(file) || self.has_name_of(file)
    }

    /// Whether this is a System V segment, by the kernel's name for it.
    pub fn is_segment(&self) -> bool {
        self.path.to_string_lossy().starts_with("/SYSV")
    }

    /// Whether this is a System V segment that is marked for removal, as the agent's segments are.
    pub fn is_system_v_segment(&self) -> bool {
        self.shared && self.deleted && self.is_segment()
    }

    /// Returns whether it is memory without a file that a process shares with its children.
    pub fn is_shared_memory(&self) -> bool {
        self.shared && self.deleted && self.path == "/dev/zero"
    }

    /// Whether the mapping and the file have the same inode of the same device.
    pub(super) fn has_inode_of(&self, file: &File) -> bool {
        let Ok(found) = file.metadata() else { return false };
        let device = (libc::major(found.dev()), libc::minor(found.dev()));
        // Btrfs and overlayfs show another anonymous device (major 0) to stat than to maps.
        let same_device = device == self.device || (device.0 == 0 && self.device.0 == 0);
        found.ino() == self.inode && same_device
    }

    fn has_name_of(&self, file: &File) -> bool {
        let mut name = self.path.clone();
        if self.deleted {
            name.push(" (deleted)");
        }
        std::fs::read_link(descriptor_path(file)).is_ok_and(|found| found.as_os_str() == name)
    }
}

/// Returns the mappings of a process, sorted by address. For a zombie leader with live threads,
/// these are the mappings of a live thread.
pub fn mappings(pid: i32) -> io::Result<Vec<Mapping>> {
    let whole = read_file(format!("/proc/{pid}/maps"))?;
    if !whole.is_empty() {
        return parse_maps(&whole);
    }
    for tid in tasks(pid)?.into_iter().filter(|&tid| tid != pid) {
        match read_file(format!("/proc/{pid}/task/{tid}/maps")) {
            Ok(bytes) if !bytes.is_empty() => return parse_maps(&bytes),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Vec::new())
}

pub(super) fn parse_maps(bytes: &[u8]) -> io::Result<Vec<Mapping>> {
    bytes
        .split(|&byte| byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| parse_mapping(line).ok_or_else(|| malformed("maps", line)))
        .collect()
}

pub(super) fn parse_mapping(line: &[u8]) -> Option<Mapping> {
    let mut fields = line.splitn(6, |&byte| byte == b' ');
    let mut text = || std::str::from_utf8(fields.next()?).ok();
    let (start, end) = text()?.split_once('-')?;
    let permissions = text()?.as_bytes();
    let file_offset = text()?;
    let (major, minor) = text()?.split_once(':')?;
    let inode = text()?;
    let path = fields.next().unwrap_or_default().trim_ascii_start();
    let (path, deleted) = match path.strip_suffix(b" (deleted)") {
        Some(path) => (path, true),
        None => (path, false),
    };
    let flag = |index: usize, letter: u8| permissions.get(index) == Some(&letter);
    Some(Mapping {
        start: u64::from_str_radix(start, 16).ok()?,
        end: u64::from_str_radix(end, 16).ok()?,
        read: flag(0, b'r'),
        write: flag(1, b'w'),
        exec: flag(2, b'x'),
        shared: flag(3, b's'),
        file_offset: u64::from_str_radix(file_offset, 16).ok()?,
        device: (u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?),
        inode: inode.parse().ok()?,
        path: unescape(path),
        deleted,
    })
}

/// Undoes the kernel's escape: it writes a newline in a path as `\012` and nothing else
/// differently.
fn unescape(path: &[u8]) -> OsString {
    let mut out = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((&first, tail)) = rest.split_first() {
        if let Some(after) = rest.strip_prefix(b"\\012") {
            out.push(b'\n');
            rest = after;
        } else {
            out.push(first);
            rest = tail;
        }
    }
    OsString::from_vec(out)
}
