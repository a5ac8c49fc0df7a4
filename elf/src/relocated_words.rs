//! The relocated words of a file, for a load bias of zero.

use super::Elf;
use super::relocation::Relocations;

/// The words that a running program finds in its memory, by their addresses (SVMA).
#[derive(Debug, Clone, Copy)]
pub(super) struct RelocatedWords<'e, 'a> {
    elf: &'e Elf<'a>,
    relocations: Relocations<'a>,
}

impl<'e, 'a> RelocatedWords<'e, 'a> {
    /// Returns the words of this file.
    pub(super) fn of(elf: &'e Elf<'a>) -> Self {
        Self { elf, relocations: Relocations::of(elf) }
    }

    /// Returns the word at an address.
    pub(super) fn word(&self, svma: u64) -> Option<u64> {
        let stored = self.stored(svma)?;
        if stored != 0 || !self.elf.is_dynamic() {
            return Some(stored);
        }
        let relocated = self.relocations.relative().find(|relocation| relocation.at == svma);
        Some(relocated.map_or(0, |relocation| relocation.addend))
    }

    /// Returns the addresses of words in writable segments that point to this address.
    pub(super) fn pointers_to(&self, svma: u64) -> impl Iterator<Item = u64> {
        let relative = self.relocations.relative();
        let relocated = relative.filter(move |relocation| relocation.addend == svma);
        let writable = self.elf.loads.iter().filter(|load| load.write);
        let stored = writable.flat_map(move |load| {
            let data = self.elf.data(load.svma).unwrap_or_default();
            let skip = (load.svma.wrapping_neg() % 8) as usize;
            let words = data.get(skip..).unwrap_or_default().chunks_exact(8).enumerate();
            let equal = words.filter(move |(_, word)| *word == svma.to_le_bytes());
            equal.filter_map(move |(i, _)| load.svma.checked_add((skip + i * 8) as u64))
        });
        relocated.map(|relocation| relocation.at).chain(stored)
    }

    fn stored(&self, svma: u64) -> Option<u64> {
        self.elf.data(svma)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
    }
}
