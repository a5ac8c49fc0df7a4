//! The symbols of a file.
//!
//! # Invariants
//! - Symbols for other modules are found with or without section headers.

use object::elf::{
    DT_HASH, DT_STRSZ, DT_STRTAB, DT_SYMTAB, SHT_DYNSYM, SHT_SYMTAB, STT_FUNC, STT_GNU_IFUNC,
    STT_OBJECT, SectionType,
};
use object::read::elf::SectionHeader;

use super::dynamic::Dynamic;
use super::gnu_hash::GnuHash;
use super::{Elf, LE};

/// The size of a symbol in bytes.
const SYMBOL: usize = 24;

/// A symbol of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Symbol<'a> {
    name: u32,
    strings: &'a [u8],
    /// `STT_*`.
    pub(super) kind: u8,
    /// Whether the file defines the symbol.
    pub(super) is_defined: bool,
    /// The address, or the offset in the block of thread-local variables.
    pub(super) value: u64,
    /// The length in bytes.
    pub(super) len: u64,
}

impl<'a> Symbol<'a> {
    /// Whether the symbol has this name.
    pub(super) fn is_named(&self, name: &str) -> bool {
        self.after(name).is_some_and(|rest| rest.first() == Some(&0))
    }

    /// Whether the symbol's name begins like this.
    pub(super) fn begins_with(&self, beginning: &str) -> bool {
        self.after(beginning).is_some()
    }

    /// Returns what follows this beginning of the symbol's name. `None` if it does not begin so.
    pub(super) fn name_after(&self, beginning: &str) -> Option<&'a str> {
        let rest = self.after(beginning)?;
        let end = rest.iter().position(|byte| *byte == 0)?;
        std::str::from_utf8(rest.get(..end)?).ok()
    }

    /// Whether the file defines a variable with the symbol.
    pub(super) fn is_variable(&self) -> bool {
        self.is_defined && self.kind == STT_OBJECT.0
    }

    /// Whether the file defines a function with the symbol.
    pub(super) fn is_function(&self) -> bool {
        self.is_defined && (self.kind == STT_FUNC.0 || self.kind == STT_GNU_IFUNC.0)
    }

    /// Returns the strings after this beginning of the name.
    fn after(&self, beginning: &str) -> Option<&'a [u8]> {
        let text = usize::try_from(self.name).ok().and_then(|at| self.strings.get(at..));
        text?.strip_prefix(beginning.as_bytes())
    }
}

/// A table of symbols with its strings.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Symbols<'a> {
    entries: &'a [u8],
    strings: &'a [u8],
}

impl<'a> Symbols<'a> {
    /// Returns the symbols that other modules may use.
    pub(super) fn exported(elf: &Elf<'a>) -> Self {
        let loaded = || Self::loaded(&Dynamic::of(elf));
        Self::of_section(elf, SHT_DYNSYM).or_else(loaded).unwrap_or_default()
    }

    /// Returns all symbols of a file; none if it is stripped.
    pub(super) fn all(elf: &Elf<'a>) -> Self {
        Self::of_section(elf, SHT_SYMTAB).unwrap_or_default()
    }

    fn of_section(elf: &Elf<'a>, kind: SectionType) -> Option<Self> {
        let sections = elf.sections.as_ref()?;
        let table = sections.iter().find(|section| section.sh_type(LE) == kind)?;
        let strings = sections.section(table.link(LE)).ok()?;
        let data = |section: &'a object::elf::SectionHeader64<object::LittleEndian>| {
            section.data(LE, elf.bytes).ok()
        };
        Some(Self { entries: data(table)?, strings: data(strings)? })
    }

    /// Finds the symbols as the loader does, without sections.
    fn loaded(dynamic: &Dynamic<'_, 'a>) -> Option<Self> {
        let count = count(dynamic)?;
        let entries = dynamic.data(DT_SYMTAB)?;
        let strings = dynamic.data(DT_STRTAB)?;
        let strings_len = usize::try_from(dynamic.value(DT_STRSZ)?).ok()?;
        let entries_len = count.checked_mul(SYMBOL)?.min(entries.len());
        Some(Self {
            entries: entries.get(..entries_len)?,
            strings: strings.get(..strings_len.min(strings.len()))?,
        })
    }

    /// Iterates over all symbols; the first is a placeholder.
    pub(super) fn iter(self) -> impl Iterator<Item = Symbol<'a>> {
        let (entries, _) = self.entries.as_chunks::<SYMBOL>();
        entries.iter().map(move |entry| self.symbol(entry))
    }

    /// Returns the symbol with this index.
    pub(super) fn get(self, index: usize) -> Option<Symbol<'a>> {
        let (entries, _) = self.entries.as_chunks::<SYMBOL>();
        entries.get(index).map(|entry| self.symbol(entry))
    }

    fn symbol(self, entry: &[u8; SYMBOL]) -> Symbol<'a> {
        let [n0, n1, n2, n3, info, _, s0, s1, words @ ..] = *entry;
        let [value, len] = [0, 8].map(|at| {
            let bytes = words.get(at..).and_then(<[u8]>::first_chunk);
            bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
        });
        Symbol {
            name: u32::from_le_bytes([n0, n1, n2, n3]),
            strings: self.strings,
            kind: info & 0xf,
            is_defined: u16::from_le_bytes([s0, s1]) != 0,
            value,
            len,
        }
    }
}

/// Returns the number of symbols, from the hash tables.
fn count(dynamic: &Dynamic<'_, '_>) -> Option<usize> {
    let Some(table) = dynamic.data(DT_HASH) else { return GnuHash::of(dynamic)?.count() };
    let bytes = table.get(4..)?.first_chunk()?;
    Some(u32::from_le_bytes(*bytes) as usize)
}
