//! The frame description entries of a module.
//!
//! # Invariants
//! - An entry that cannot be parsed is skipped and counted, and the entries after it are still
//!   found. gimli's own iterator ends at the first error.

use std::collections::HashMap;

use gimli::{BaseAddresses, CommonInformationEntry, Error, UnwindOffset, UnwindSection};

use super::dwarf::{Bytes, Fde, Slice};
use super::error::CompileError;
use super::sections::{self, Sections};
use traceprof_elf::Elf;

/// Visits the frame description entries of a section and returns how many could not be parsed.
pub(super) fn for_each_fde<'a, S>(
    section: &S,
    data: &'a [u8],
    bases: &BaseAddresses,
    mut visit: impl FnMut(&Fde<'a>),
) -> usize
where
    S: UnwindSection<Slice<'a>>,
    S::Offset: UnwindOffset<usize>,
{
    let mut cies: HashMap<usize, CommonInformationEntry<Slice<'a>>> = HashMap::new();
    // Consecutive entries mostly share one.
    let mut last: Option<(usize, CommonInformationEntry<Slice<'a>>)> = None;
    let mut skipped = 0;
    for offset in (EntryOffsets { data, at: 0 }) {
        let entry = section.partial_fde_from_offset(bases, S::Offset::from(offset));
        let fde = entry.and_then(|partial| {
            partial.parse(|section, bases, offset| {
                let key = UnwindOffset::into(offset);
                if let Some((_, cie)) = last.as_ref().filter(|last| last.0 == key) {
                    return Ok(cie.clone());
                }
                let cie = match cies.get(&key) {
                    Some(cie) => cie.clone(),
                    None => section.cie_from_offset(bases, offset)?,
                };
                cies.insert(key, cie.clone());
                last = Some((key, cie.clone()));
                Ok(cie)
            })
        });
        match fde {
            Ok(fde) => visit(&fde),
            // This is a common information entry.
            Err(Error::NotCiePointer(_)) => {}
            Err(_) => skipped += 1,
        }
    }
    skipped
}

/// Iterator over the offsets of a section's entries. It reads only their lengths.
struct EntryOffsets<'a> {
    data: &'a [u8],
    at: usize,
}

impl Iterator for EntryOffsets<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let start = self.at;
        let short = self.data.get(start..)?.first_chunk::<4>()?;
        let (head, length) = match u32::from_le_bytes(*short) {
            0 => return None,
            u32::MAX => {
                let long = self.data.get(start + 4..)?.first_chunk::<8>()?;
                (12, usize::try_from(u64::from_le_bytes(*long)).ok()?)
            }
            length => (4, length as usize),
        };
        self.at = start.checked_add(head)?.checked_add(length)?;
        (self.at <= self.data.len()).then_some(start)
    }
}

/// Returns the functions of a module as (SVMA, length), sorted. A file without symbols still has
/// these bounds.
pub fn function_starts(elf: &[u8]) -> Result<Vec<(u64, u64)>, CompileError> {
    let elf = Elf::parse(elf)?;
    let debug_frame = sections::debug_frame(&elf);
    let sections = Sections::find(&elf, debug_frame.as_deref());
    let is_code = |svma: u64| {
        let mut loads = elf.loads().iter().filter(|load| load.exec);
        loads.any(|load| load.file_offset_of(svma).is_some())
    };
    let mut functions = Vec::new();
    let mut visit = |fde: &Fde<'_>| {
        if fde.len() != 0 && is_code(fde.initial_address()) {
            functions.push((fde.initial_address(), fde.len()));
        }
    };
    if let Some(frames) = &sections.eh_frame {
        for_each_fde(frames, frames.bytes(), &sections.bases, &mut visit);
    }
    if let Some(frames) = &sections.debug_frame {
        for_each_fde(frames, frames.bytes(), &sections.bases, &mut visit);
    }
    functions.sort_unstable();
    functions.dedup_by_key(|&mut (start, _)| start);
    Ok(functions)
}
