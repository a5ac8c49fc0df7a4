//! The relocations of a file.

use object::elf::{DT_JMPREL, DT_PLTRELSZ, DT_RELA, DT_RELASZ, R_X86_64_RELATIVE};

use super::Elf;
use super::dynamic::Dynamic;

/// The size of a relocation with an addend in bytes.
const RELOCATION: usize = 24;

/// A relocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Relocation {
    /// The address that the relocation changes (SVMA).
    pub(super) at: u64,
    /// The type (`R_*`).
    pub(super) kind: u32,
    /// The index of the symbol in the dynamic symbol table; 0 for none.
    pub(super) symbol: u32,
    /// The addend.
    pub(super) addend: u64,
}

impl Relocation {
    fn new(entry: &[u8; RELOCATION]) -> Self {
        let (words, _) = entry.as_chunks::<8>();
        let word = |at: usize| words.get(at).map_or(0, |word| u64::from_le_bytes(*word));
        let [at, info, addend] = [0, 1, 2].map(word);
        Self { at, kind: info as u32, symbol: (info >> 32) as u32, addend }
    }
}

/// The tables of relocations with addends.
#[derive(Debug, Clone, Copy)]
pub(super) struct Relocations<'a> {
    /// The relocations of data.
    data: &'a [[u8; RELOCATION]],
    /// The relocations of calls between modules.
    calls: &'a [[u8; RELOCATION]],
}

impl<'a> Relocations<'a> {
    /// Returns the relocations of this file.
    pub(super) fn of(elf: &Elf<'a>) -> Self {
        let dynamic = Dynamic::of(elf);
        let table = |start, len| dynamic.table(start, len).unwrap_or_default().as_chunks().0;
        Self { data: table(DT_RELA, DT_RELASZ), calls: table(DT_JMPREL, DT_PLTRELSZ) }
    }

    /// Iterates over all relocations.
    pub(super) fn iter(self) -> impl Iterator<Item = Relocation> + use<'a> {
        self.data.iter().chain(self.calls).map(Relocation::new)
    }

    /// Iterates over the relocations of data that depend on the load bias alone: the word becomes
    /// the bias plus the addend.
    pub(super) fn relative(self) -> impl Iterator<Item = Relocation> + use<'a> {
        let all = self.data.iter().map(Relocation::new);
        all.filter(|it| it.symbol == 0 && it.kind == R_X86_64_RELATIVE.0)
    }
}
