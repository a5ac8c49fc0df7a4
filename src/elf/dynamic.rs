//! The dynamic section of a file: its symbols for other modules, and its relocations.
//!
//! # Invariants
//! - Symbols are found with section headers or without them.

use object::elf::{
    DT_FLAGS_1, DT_GNU_HASH, DT_HASH, DT_JMPREL, DT_NULL, DT_PLTRELSZ, DT_RELA, DT_RELASZ,
    DT_STRSZ, DT_STRTAB, DT_SYMTAB, DynamicTag, ET_EXEC, PT_DYNAMIC, PT_INTERP, SHT_DYNSYM,
    SHT_SYMTAB, SectionType,
};
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader};

use super::{Elf, LE};

/// Bytes of a symbol.
const SYMBOL: usize = 24;
/// Bytes of a relocation with an addend.
pub(super) const RELOCATION: usize = 24;
/// In [`DT_FLAGS_1`]: an executable for any address.
const DF_1_PIE: u64 = 0x0800_0000;

/// A symbol of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Symbol<'a> {
    name: u32,
    strings: &'a [u8],
    /// `STT_*`.
    pub(super) kind: u8,
    /// Whether the file defines it.
    pub(super) is_defined: bool,
    /// Address, or offset in the block of thread-local variables.
    pub(super) value: u64,
    /// Length in bytes.
    pub(super) len: u64,
}

impl<'a> Symbol<'a> {
    /// Whether it has this name.
    pub(super) fn is_named(&self, name: &str) -> bool {
        let text = usize::try_from(self.name).ok().and_then(|at| self.strings.get(at..));
        text.and_then(|text| text.strip_prefix(name.as_bytes()))
            .is_some_and(|rest| rest.first() == Some(&0))
    }
}

/// A table of symbols with its strings.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Symbols<'a> {
    entries: &'a [u8],
    strings: &'a [u8],
}

impl<'a> Symbols<'a> {
    /// All symbols; the first is a placeholder.
    pub(super) fn iter(self) -> impl Iterator<Item = Symbol<'a>> {
        let (entries, _) = self.entries.as_chunks::<SYMBOL>();
        entries.iter().map(move |entry| self.symbol(entry))
    }

    /// The symbol with this number.
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

/// A relocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Relocation {
    /// The address that it changes (SVMA).
    pub(super) at: u64,
    /// `R_*`.
    pub(super) kind: u32,
    /// The number of its symbol in the dynamic symbol table; 0 for none.
    pub(super) symbol: u32,
    /// The number that is added.
    pub(super) addend: u64,
}

impl<'a> Elf<'a> {
    /// The value of an entry of the dynamic section.
    pub(super) fn dynamic(&self, wanted: DynamicTag) -> Option<u64> {
        let dynamic = self.program.iter().find(|segment| segment.p_type(LE) == PT_DYNAMIC)?;
        let (entries, _) = self.data(dynamic.p_vaddr(LE))?.as_chunks::<16>();
        let entry = |entry: &[u8; 16]| {
            let (words, _) = entry.as_chunks::<8>();
            words
                .first()
                .zip(words.get(1))
                .map(|(tag, value)| (i64::from_le_bytes(*tag), u64::from_le_bytes(*value)))
        };
        let mut entries = entries.iter().filter_map(entry).take_while(|(tag, _)| *tag != DT_NULL.0);
        entries.find(|(tag, _)| *tag == wanted.0).map(|(_, value)| value)
    }

    /// Whether it is the main part of a program, not a library.
    pub fn is_program(&self) -> bool {
        let is_pie = || self.dynamic(DT_FLAGS_1).is_some_and(|flags| flags & DF_1_PIE != 0);
        self.header.e_type(LE) == ET_EXEC || is_pie()
    }

    /// The path of the loader that it asks for.
    pub fn interpreter(&self) -> Option<&'a str> {
        let segment = self.program.iter().find(|segment| segment.p_type(LE) == PT_INTERP)?;
        let path = self.data(segment.p_vaddr(LE))?;
        let path = path.get(..path.len().min(usize::try_from(segment.p_filesz(LE)).ok()?))?;
        std::str::from_utf8(path.split(|byte| *byte == 0).next()?).ok()
    }

    /// The symbols that other modules may use.
    pub(super) fn dynamic_symbols(&self) -> Symbols<'a> {
        self.symbols_of(SHT_DYNSYM).or_else(|| self.loaded_symbols()).unwrap_or_default()
    }

    /// All symbols of a file that has them.
    pub(super) fn all_symbols(&self) -> Symbols<'a> {
        self.symbols_of(SHT_SYMTAB).unwrap_or_default()
    }

    fn symbols_of(&self, kind: SectionType) -> Option<Symbols<'a>> {
        let sections = self.sections.as_ref()?;
        let table = sections.iter().find(|section| section.sh_type(LE) == kind)?;
        let strings = sections.section(table.link(LE)).ok()?;
        let data = |section: &'a object::elf::SectionHeader64<object::LittleEndian>| {
            section.data(LE, self.bytes).ok()
        };
        Some(Symbols { entries: data(table)?, strings: data(strings)? })
    }

    /// Finds the symbols as the loader does, without sections.
    fn loaded_symbols(&self) -> Option<Symbols<'a>> {
        let count = self.symbol_count()?;
        let entries = self.data(self.dynamic(DT_SYMTAB)?)?;
        let strings = self.data(self.dynamic(DT_STRTAB)?)?;
        let strings_len = usize::try_from(self.dynamic(DT_STRSZ)?).ok()?;
        let entries_len = count.checked_mul(SYMBOL)?.min(entries.len());
        Some(Symbols {
            entries: entries.get(..entries_len)?,
            strings: strings.get(..strings_len.min(strings.len()))?,
        })
    }

    /// The number of symbols, from the hash tables.
    fn symbol_count(&self) -> Option<usize> {
        let number = |data: &[u8], at: usize| {
            let bytes = data.get(at.checked_mul(4)?..)?.first_chunk()?;
            Some(u32::from_le_bytes(*bytes) as usize)
        };
        if let Some(table) = self.dynamic(DT_HASH).and_then(|svma| self.data(svma)) {
            return number(table, 1);
        }
        // Header of four words, Bloom filter, buckets, chains: the last chain ends with the last
        // symbol.
        let table = self.data(self.dynamic(DT_GNU_HASH)?)?;
        let [buckets, first, filter] = [0, 1, 2].map(|at| number(table, at));
        let (buckets, first) = (buckets?, first?);
        let buckets_at = filter?.checked_mul(2)?.checked_add(4)?;
        let chains_at = buckets_at.checked_add(buckets)?;
        let heads = (buckets_at..chains_at).map_while(|at| number(table, at));
        let mut last = heads.max().unwrap_or(0);
        if last < first {
            return Some(first);
        }
        let chain = |symbol: usize| number(table, chains_at.checked_add(symbol - first)?);
        while chain(last)? & 1 == 0 {
            last += 1;
        }
        Some(last + 1)
    }

    /// All relocations with addends.
    pub(super) fn all_relocations(&self) -> impl Iterator<Item = Relocation> {
        let tables = [(DT_RELA, DT_RELASZ), (DT_JMPREL, DT_PLTRELSZ)];
        let tables =
            tables.into_iter().filter_map(|(start, len)| self.relocation_table(start, len));
        tables.flat_map(|table| {
            let (entries, _) = table.as_chunks::<RELOCATION>();
            entries.iter().map(|entry| {
                let (words, _) = entry.as_chunks::<8>();
                let word = |at: usize| words.get(at).map_or(0, |word| u64::from_le_bytes(*word));
                let [at, info, addend] = [0, 1, 2].map(word);
                Relocation { at, kind: info as u32, symbol: (info >> 32) as u32, addend }
            })
        })
    }

    /// The bytes of a relocation table, from the entries for its start and length.
    pub(super) fn relocation_table(&self, start: DynamicTag, len: DynamicTag) -> Option<&'a [u8]> {
        let table = self.data(self.dynamic(start)?)?;
        table.get(..table.len().min(usize::try_from(self.dynamic(len)?).ok()?))
    }
}
