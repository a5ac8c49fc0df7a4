//! The dynamic section of a file: numbers and addresses for the loader, by their tags.

use object::elf::{DT_FLAGS_1, DT_NULL, DynamicTag, ET_EXEC, PT_DYNAMIC};
use object::read::elf::{FileHeader, ProgramHeader};

use super::{Elf, LE};

/// The bit in [`DT_FLAGS_1`] of a position-independent executable.
const DF_1_PIE: u64 = 0x0800_0000;

/// The dynamic section; it has no entries if the file has none.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dynamic<'e, 'a> {
    elf: &'e Elf<'a>,
    /// Tag and value, 8 bytes each.
    entries: &'a [[u8; 16]],
}

impl<'e, 'a> Dynamic<'e, 'a> {
    /// Returns the dynamic section of this file.
    pub(super) fn of(elf: &'e Elf<'a>) -> Self {
        let segment = elf.segment(PT_DYNAMIC);
        let data = segment.and_then(|segment| elf.data(segment.p_vaddr(LE)));
        Self { elf, entries: data.unwrap_or_default().as_chunks().0 }
    }

    /// Returns the value of an entry.
    pub(super) fn value(&self, wanted: DynamicTag) -> Option<u64> {
        let entry = |entry: &[u8; 16]| {
            let (words, _) = entry.as_chunks::<8>();
            words
                .first()
                .zip(words.get(1))
                .map(|(tag, value)| (i64::from_le_bytes(*tag), u64::from_le_bytes(*value)))
        };
        let entries = self.entries.iter().filter_map(entry);
        let mut entries = entries.take_while(|(tag, _)| *tag != DT_NULL.0);
        entries.find(|(tag, _)| *tag == wanted.0).map(|(_, value)| value)
    }

    /// Returns the bytes from the address in an entry to the end of the segment's contents.
    pub(super) fn data(&self, start: DynamicTag) -> Option<&'a [u8]> {
        self.elf.data(self.value(start)?)
    }

    /// Returns the bytes of a table, from the entries for its start and length.
    pub(super) fn table(&self, start: DynamicTag, len: DynamicTag) -> Option<&'a [u8]> {
        let table = self.data(start)?;
        table.get(..table.len().min(usize::try_from(self.value(len)?).ok()?))
    }

    /// Whether the file is the main part of a program, not a library.
    pub(super) fn is_program(&self) -> bool {
        let is_pie = || self.value(DT_FLAGS_1).is_some_and(|flags| flags & DF_1_PIE != 0);
        self.elf.header.e_type(LE) == ET_EXEC || is_pie()
    }
}
