//! The relocated words of a file, for a load bias of zero.

use object::elf::{DT_RELA, DT_RELASZ, R_X86_64_RELATIVE};

use super::Elf;
use super::dynamic::RELOCATION;

/// `R_X86_64_RELATIVE`: the word at `at` becomes the load bias plus `addend`.
struct Relative {
    at: u64,
    addend: u64,
}

impl Elf<'_> {
    /// The word at an address.
    pub fn word(&self, svma: u64) -> Option<u64> {
        let stored = self.stored(svma)?;
        if stored != 0 || !self.is_dynamic() {
            return Some(stored);
        }
        let relocated = self.relative().find(|relocation| relocation.at == svma);
        Some(relocated.map_or(0, |relocation| relocation.addend))
    }

    /// Addresses of words in writable segments that point to this address.
    pub fn pointers_to(&self, svma: u64) -> impl Iterator<Item = u64> {
        let relocated = self.relative().filter(move |relocation| relocation.addend == svma);
        let writable = self.loads.iter().filter(|load| load.write);
        let stored = writable.flat_map(move |load| {
            let data = self.data(load.svma).unwrap_or_default();
            let skip = (load.svma.wrapping_neg() % 8) as usize;
            let words = data.get(skip..).unwrap_or_default().chunks_exact(8).enumerate();
            let equal = words.filter(move |(_, word)| *word == svma.to_le_bytes());
            equal.filter_map(move |(i, _)| load.svma.checked_add((skip + i * 8) as u64))
        });
        relocated.map(|relocation| relocation.at).chain(stored)
    }

    fn stored(&self, svma: u64) -> Option<u64> {
        self.data(svma)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
    }

    /// The relocations that depend on the load bias alone.
    fn relative(&self) -> impl Iterator<Item = Relative> {
        let table = self.relocation_table(DT_RELA, DT_RELASZ).unwrap_or_default();
        table.chunks_exact(RELOCATION).filter_map(|entry| {
            let word =
                |at: usize| entry[at..].first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
            let relative = word(8)? == u64::from(R_X86_64_RELATIVE.0);
            relative.then_some(Relative { at: word(0)?, addend: word(16)? })
        })
    }
}
