//! Names of PLT stubs, as `malloc@plt`.
//!
//! No symbol covers a stub, yet short calls spend a visible part of their time in it. A stub's name
//! is that of the relocation whose slot it jumps through.

use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::path::Path;

use object::{
    Architecture, Object, ObjectSection, ObjectSymbol, ObjectSymbolTable, ReadCache,
    RelocationTarget,
};

use super::name::readable;
use super::resolved::Function;

/// Sections that consist of stubs.
const SECTIONS: [&str; 3] = [".plt", ".plt.sec", ".plt.got"];
/// `jmp *offset(%rip)`, the one instruction that every x86_64 stub has, whatever surrounds it.
const JUMP_THROUGH_SLOT: [u8; 2] = [0xff, 0x25];
const JUMP_LENGTH: usize = 6;
/// Stubs are 16 bytes, those of `.plt.got` without branch protection 8.
const STUB_LENGTHS: [u64; 2] = [16, 8];

/// The stubs of one file, sorted by address.
#[derive(Debug, Default)]
pub(super) struct Stubs {
    stubs: Vec<(Range<u64>, String)>,
}

/// Whether a section of this name holds stubs.
pub(super) fn is_stub_section(name: &str) -> bool {
    SECTIONS.contains(&name)
}

impl Stubs {
    /// Reads the stubs; none for a file that has none or is damaged.
    pub(super) fn read(path: &Path) -> Self {
        Self::try_read(path).unwrap_or_default()
    }

    fn try_read(path: &Path) -> Option<Self> {
        let cache = ReadCache::new(File::open(path).ok()?);
        let elf = object::File::parse(&cache).ok()?;
        if elf.architecture() != Architecture::X86_64 {
            return None;
        }
        let slots = slots(&elf);
        let mut stubs = Vec::new();
        for section in elf.sections().filter(|section| section.name().is_ok_and(is_stub_section)) {
            let data = section.data().ok()?;
            let length = if section.name() == Ok(".plt.got") && section.align() < STUB_LENGTHS[0] {
                STUB_LENGTHS[1]
            } else {
                STUB_LENGTHS[0]
            };
            stubs.extend(stubs_of(section.address(), data, length, &slots));
        }
        stubs.sort_by_key(|(range, _)| range.start);
        Some(Self { stubs })
    }

    /// The stub at an address.
    pub(super) fn find(&self, svma: u64) -> Option<Function> {
        let after = self.stubs.partition_point(|(range, _)| range.start <= svma);
        let (range, name) = self.stubs.get(after.checked_sub(1)?)?;
        let name = || format!("{}@plt", readable(name));
        range.contains(&svma).then(|| Function { name: name(), start_svma: range.start })
    }
}

/// Name of the function that each slot of the global offset table will point to.
fn slots<'data>(elf: &impl Object<'data>) -> HashMap<u64, String> {
    let (Some(relocations), Some(table)) = (elf.dynamic_relocations(), elf.dynamic_symbol_table())
    else {
        return HashMap::new();
    };
    let named = relocations.filter_map(|(slot, relocation)| {
        let RelocationTarget::Symbol(index) = relocation.target() else { return None };
        let symbol = table.symbol_by_index(index).ok()?;
        Some((slot, symbol.name().ok().filter(|name| !name.is_empty())?.to_owned()))
    });
    named.collect()
}

fn stubs_of(
    section_start: u64,
    data: &[u8],
    length: u64,
    slots: &HashMap<u64, String>,
) -> Vec<(Range<u64>, String)> {
    let jumps = data.windows(JUMP_LENGTH).enumerate();
    let jumps = jumps.filter(|(_, bytes)| bytes.starts_with(&JUMP_THROUGH_SLOT));
    let stubs = jumps.filter_map(|(at, bytes)| {
        let offset = i32::from_le_bytes([bytes[2], bytes[3], bytes[4], bytes[5]]);
        let next = section_start.checked_add((at + JUMP_LENGTH) as u64)?;
        let name = slots.get(&next.checked_add_signed(offset.into())?)?;
        let start = section_start + at as u64 / length * length;
        Some((start..start.checked_add(length)?, name.clone()))
    });
    stubs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stub_with_branch_protection_is_found_by_its_jump() {
        // endbr64; bnd jmp *0x2f75(%rip); nopl
        let stub =
            [0xf3, 0x0f, 0x1e, 0xfa, 0xf2, 0xff, 0x25, 0x75, 0x2f, 0, 0, 0x0f, 0x1f, 0x44, 0, 0];
        let slots = HashMap::from([(0x1050 + 11 + 0x2f75, "malloc".to_owned())]);
        let found = stubs_of(0x1040, &[[0x90; 16], stub].concat(), 16, &slots);
        assert_eq!(found, [(0x1050..0x1060, "malloc".to_owned())]);
    }

    #[test]
    fn jump_to_an_unknown_slot_is_no_stub() {
        let slots = HashMap::from([(0x9999, "malloc".to_owned())]);
        assert!(stubs_of(0x1000, &[0xff, 0x25, 1, 0, 0, 0, 0, 0], 8, &slots).is_empty());
        assert!(stubs_of(u64::MAX - 2, &[0xff, 0x25, 1, 0, 0, 0, 0, 0], 8, &slots).is_empty());
    }
}
