//! A segment that the loader maps.

use object::LittleEndian;
use object::elf::{PF_R, PF_W, PF_X, ProgramHeader64};
use object::read::elf::ProgramHeader;

/// The page size, to which the loader rounds mappings.
const PAGE: u64 = 4096;

/// A `PT_LOAD` segment. Its numbers come from the file and may be nonsense.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadSegment {
    /// The first address.
    pub svma: u64,
    /// The length in memory in bytes.
    pub mem_len: u64,
    /// The offset of the contents in the file.
    pub file_offset: u64,
    /// The length of the contents in the file in bytes.
    pub file_len: u64,
    /// Whether the segment is readable.
    pub read: bool,
    /// Whether the segment is writable.
    pub write: bool,
    /// Whether the segment is executable.
    pub exec: bool,
}

impl LoadSegment {
    pub(super) fn new(header: &ProgramHeader64<LittleEndian>) -> Self {
        let le = LittleEndian;
        let flags = header.p_flags(le).0;
        Self {
            svma: header.p_vaddr(le),
            mem_len: header.p_memsz(le),
            file_offset: header.p_offset(le),
            file_len: header.p_filesz(le),
            read: flags & PF_R.0 != 0,
            write: flags & PF_W.0 != 0,
            exec: flags & PF_X.0 != 0,
        }
    }

    /// Whether a mapping that starts at this file offset can belong to the segment.
    pub(super) fn maps(&self, file_offset: u64) -> bool {
        let start = self.file_offset - self.file_offset % PAGE;
        let end = self.file_offset.saturating_add(self.file_len);
        start <= file_offset && file_offset < end
    }

    /// Returns the file offset of an address, if the segment loads that address from the file.
    pub fn file_offset_of(&self, svma: u64) -> Option<u64> {
        let distance = svma.checked_sub(self.svma)?;
        (distance < self.file_len).then(|| self.file_offset.checked_add(distance))?
    }

    /// Returns the address of a file offset.
    pub fn svma_of(&self, file_offset: u64) -> Option<u64> {
        let distance = file_offset.checked_sub(self.file_offset)?;
        (distance < self.file_len).then(|| self.svma.checked_add(distance))?
    }
}
