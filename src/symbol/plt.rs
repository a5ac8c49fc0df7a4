//! Names of PLT stubs, such as `malloc@plt`.
//!
//! No symbol covers a stub, yet short calls spend a visible part of their time in one. The name of
//! a stub comes from the relocation of the slot that it jumps through.

use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::path::Path;

use object::{
    Architecture, Object, ObjectSection, ObjectSymbol, ObjectSymbolTable, ReadCache,
    RelocationTarget, SymbolIndex,
};

use super::name::readable;
use super::resolved::ResolvedFunction;

/// Sections that consist of stubs.
const SECTIONS: [&str; 3] = [".plt", ".plt.sec", ".plt.got"];
/// `jmp *offset(%rip)`, the one instruction that every x86_64 stub has.
const JUMP_THROUGH_SLOT: [u8; 2] = [0xff, 0x25];
const JUMP_LENGTH: usize = 6;
/// Lengths of stubs in bytes: 16, or 8 in `.plt.got` without branch protection.
const STUB_LENGTHS: [u64; 2] = [16, 8];

/// The stubs of one file, sorted by address.
#[derive(Debug, Default)]
pub(super) struct PltStubs {
    stubs: Vec<(Range<u64>, String)>,
}

/// Maximum bytes of names of stubs. A corrupt file may give any number of stubs the same long name.
const NAMES_MAX: usize = 64 << 20;

/// Returns whether a section with this name contains stubs.
pub(super) fn is_stub_section(name: &str) -> bool {
    SECTIONS.contains(&name)
}

impl PltStubs {
    /// Reads the stubs of a file. The result is empty if the file has none or is corrupt.
    pub(super) fn read(path: &Path) -> Self {
        Self::try_read(path).unwrap_or_default()
    }

    fn try_read(path: &Path) -> Option<Self> {
        let cache = ReadCache::new(File::open(path).ok()?);
        let elf = object::File::parse(&cache).ok()?;
        Self::of(&elf, &slots(&elf))
    }

    /// Returns the stubs of a parsed file, of which these are the slots.
    pub(super) fn of<'data>(
        elf: &impl Object<'data>,
        slots: &HashMap<u64, SymbolIndex>,
    ) -> Option<Self> {
        if elf.architecture() != Architecture::X86_64 {
            return None;
        }
        let table = elf.dynamic_symbol_table()?;
        let mut room = NAMES_MAX;
        let mut name = |index| {
            let name = table.symbol_by_index(index).ok()?.name().ok()?;
            room = room.checked_sub(name.len())?;
            (!name.is_empty()).then(|| name.to_owned())
        };
        let mut stubs = Vec::new();
        for section in elf.sections().filter(|section| section.name().is_ok_and(is_stub_section)) {
            let data = section.data().ok()?;
            let length = if section.name() == Ok(".plt.got") && section.align() < STUB_LENGTHS[0] {
                STUB_LENGTHS[1]
            } else {
                STUB_LENGTHS[0]
            };
            let found = stubs_of(section.address(), data, length, slots);
            stubs.extend(found.filter_map(|(range, index)| Some((range, name(index)?))));
        }
        stubs.sort_by_key(|(range, _)| range.start);
        Some(Self { stubs })
    }

    /// Returns the stub at an address, as a function.
    pub(super) fn find(&self, svma: u64) -> Option<ResolvedFunction> {
        let after = self.stubs.partition_point(|(range, _)| range.start <= svma);
        let (range, name) = self.stubs.get(after.checked_sub(1)?)?;
        let name = || format!("{}@plt", readable(name));
        range.contains(&svma).then(|| ResolvedFunction { name: name(), start_svma: range.start })
    }
}

/// Returns the symbol that each slot of the global offset table will point to.
pub(super) fn slots<'data>(elf: &impl Object<'data>) -> HashMap<u64, SymbolIndex> {
    let relocations = elf.dynamic_relocations().into_iter().flatten();
    let named = relocations.filter_map(|(slot, relocation)| {
        let RelocationTarget::Symbol(index) = relocation.target() else { return None };
        Some((slot, index))
    });
    named.collect()
}

fn stubs_of(
    section_start: u64,
    data: &[u8],
    length: u64,
    slots: &HashMap<u64, SymbolIndex>,
) -> impl Iterator<Item = (Range<u64>, SymbolIndex)> {
    let jumps = data.windows(JUMP_LENGTH).enumerate();
    let jumps = jumps.filter(|(_, bytes)| bytes.starts_with(&JUMP_THROUGH_SLOT));
    jumps.filter_map(move |(at, bytes)| {
        let offset = i32::from_le_bytes([bytes[2], bytes[3], bytes[4], bytes[5]]);
        let next = section_start.checked_add((at + JUMP_LENGTH) as u64)?;
        let symbol = slots.get(&next.checked_add_signed(offset.into())?)?;
        let start = section_start + at as u64 / length * length;
        Some((start..start.checked_add(length)?, *symbol))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stub_with_branch_protection_is_found_by_its_jump() {
        // endbr64; bnd jmp *0x2f75(%rip); nopl
        let stub =
            [0xf3, 0x0f, 0x1e, 0xfa, 0xf2, 0xff, 0x25, 0x75, 0x2f, 0, 0, 0x0f, 0x1f, 0x44, 0, 0];
        let slots = HashMap::from([(0x1050 + 11 + 0x2f75, SymbolIndex(7))]);
        let code = [[0x90; 16], stub].concat();
        let found: Vec<_> = stubs_of(0x1040, &code, 16, &slots).collect();
        assert_eq!(found, [(0x1050..0x1060, SymbolIndex(7))]);
    }

    #[test]
    fn jump_to_an_unknown_slot_is_no_stub() {
        let slots = HashMap::from([(0x9999, SymbolIndex(7))]);
        for start in [0x1000, u64::MAX - 2] {
            let code = [0xff, 0x25, 1, 0, 0, 0, 0, 0];
            assert_eq!(stubs_of(start, &code, 8, &slots).count(), 0);
        }
    }
}
