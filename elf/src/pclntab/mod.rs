//! Go's table of its functions: names, frame sizes, files and lines by pc.
//!
//! The runtime needs the table, so stripped programs and programs without call frame information
//! have it, too. Its section's name identifies it, or else its first bytes. This module reads the
//! layouts of Go 1.16, 1.18 and 1.20. Go 1.17 uses the layout of 1.16, and later versions use that
//! of 1.20.
//!
//! # Invariants
//! - No value in the table is trusted: every offset is checked, and every loop ends with the bytes.
//! - Functions are in the code of the file and do not overlap, so the code's length bounds their
//!   total.

mod find;
mod fuzz_entry;
mod inline;
#[cfg(test)]
mod tests;
mod value;

use std::ops::Range;

use super::Elf;
pub(super) use find::SECTIONS;
pub use fuzz_entry::pclntab;
pub use value::Values;

/// The longest name or path that is accepted, in bytes.
const TEXT_MAX: usize = 4096;
/// The index of the inlined call's number among a function's pc values.
const INLINE_INDEX: u32 = 2;

/// The version of a table's layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PclntabVersion {
    /// Go 1.16 and 1.17.
    V116,
    /// Go 1.18 and 1.19.
    V118,
    /// Go 1.20 and later.
    V120,
}

impl PclntabVersion {
    fn of(magic: u32) -> Option<Self> {
        match magic {
            0xffff_fffa => Some(Self::V116),
            0xffff_fff0 => Some(Self::V118),
            0xffff_fff1 => Some(Self::V120),
            _ => None,
        }
    }

    /// Returns the number of words in the header after its first eight bytes.
    fn header_words(self) -> usize {
        if self == Self::V116 { 7 } else { 8 }
    }

    /// Returns the size in bytes of a number in the list of functions, and of the first number in a
    /// function's record.
    fn number_len(self) -> usize {
        if self == Self::V116 { 8 } else { 4 }
    }

    /// Returns the offset of the kind in a function's record, before its flags and the count of its
    /// tables.
    fn kind(self) -> usize {
        match self {
            Self::V116 | Self::V120 => 40,
            Self::V118 => 36,
        }
    }
}

/// The function table of one program.
#[derive(Debug, Clone)]
pub struct Pclntab<'a> {
    version: PclntabVersion,
    /// The SVMA that the functions' offsets are relative to.
    text: u64,
    count: usize,
    names: &'a [u8],
    units: &'a [u8],
    files: &'a [u8],
    values: &'a [u8],
    functions: &'a [u8],
    /// The range in which functions are accepted (SVMAs).
    code: Range<u64>,
    /// The trees of inlined calls, if they were found.
    trees: Option<&'a [u8]>,
}

/// The location of the table in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PclntabLocation {
    svma: u64,
    /// The base of functions' offsets, which also takes a search.
    text: u64,
    /// The trees of inlined calls, which only a search finds.
    trees: Option<u64>,
}

impl PclntabLocation {
    /// Finds the table of a file, if it is a Go program.
    pub fn find(elf: &Elf<'_>) -> Option<Self> {
        find::tables(elf).find_map(|(svma, data)| {
            let table = Pclntab::parse(elf, svma, data)?;
            let trees = inline::trees(elf, &table, svma, data);
            Some(Self { svma, text: table.text, trees })
        })
    }
}

/// A function of the table.
#[derive(Debug, Clone)]
pub struct GoFunction<'t, 'a> {
    table: &'t Pclntab<'a>,
    record: &'a [u8],
    /// The range of the function's code (SVMAs).
    pub range: Range<u64>,
}

/// A source location of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GoLocation<'a> {
    /// The function, or the function that is inlined there.
    pub name: &'a str,
    /// The source file, if known.
    pub file: Option<&'a str>,
    /// The line in the file, 0 if unknown.
    pub line: u32,
}

impl<'a> Pclntab<'a> {
    /// Returns the table of a file without inlined calls, if the file is a Go program.
    pub fn find(elf: &Elf<'a>) -> Option<Self> {
        find::tables(elf).find_map(|(svma, data)| Self::parse(elf, svma, data))
    }

    /// Returns the table of a file at a location that was found before.
    pub fn at(elf: &Elf<'a>, location: PclntabLocation) -> Option<Self> {
        let mut table = Self::parts(elf.data(location.svma)?)?.with_text(elf, location.text)?;
        table.trees = location.trees.and_then(|trees| elf.data(trees));
        Some(table)
    }

    fn parse(elf: &Elf<'a>, svma: u64, data: &'a [u8]) -> Option<Self> {
        let table = Self::parts(data)?;
        let text = match table.version {
            PclntabVersion::V116 => 0,
            // This comes last, because it may require a search in the relocations.
            _ => find::text_start(elf, &table, svma, data)?,
        };
        table.with_text(elf, text)
    }

    fn with_text(mut self, elf: &Elf<'_>, text: u64) -> Option<Self> {
        self.text = text;
        // Up to Go 1.17, position-independent programs leave addresses to the loader.
        let first = self.start(0).filter(|&first| first != 0)?;
        let has_first = |code: &Range<u64>| code.contains(&first);
        self.code = elf.code().find(has_first)?;
        Some(self)
    }

    /// Finds the parts of a table, from the table alone.
    fn parts(data: &'a [u8]) -> Option<Self> {
        let version = PclntabVersion::of(u32_at(data, 0)?)?;
        let is_x86 = data.get(4..8)? == [0, 0, 1, 8];
        let word = |index: usize| usize::try_from(u64_at(data, 8 + 8 * index)?).ok();
        let words = version.header_words();
        // The last five words are offsets of the parts.
        let part = |number: usize| data.get(word(words - 5 + number)?..);
        let table = Self {
            version,
            text: 0,
            count: word(0)?,
            names: part(0)?,
            units: part(1)?,
            files: part(2)?,
            values: part(3)?,
            functions: part(4)?,
            code: 0..u64::MAX,
            trees: None,
        };
        // The list includes the end of the last function.
        let list = table.count.checked_mul(2)?.checked_add(1)?.checked_mul(version.number_len())?;
        let is_whole = is_x86 && table.count > 0 && list <= table.functions.len();
        is_whole.then_some(table)
    }

    /// Iterates over all functions, by address.
    pub fn functions(&self) -> impl Iterator<Item = GoFunction<'_, 'a>> {
        let mut behind = 0;
        let all = (0..self.count).filter_map(|index| self.function(index));
        // In a damaged table, functions may overlap any number of times.
        all.take_while(move |function| {
            let is_ascending = function.range.start >= behind;
            behind = function.range.end;
            is_ascending
        })
    }

    /// Returns the function at an address.
    pub fn find_function(&self, svma: u64) -> Option<GoFunction<'_, 'a>> {
        let (mut from, mut len) = (0, self.count);
        while len > 0 {
            let half = len / 2;
            if self.start(from + half)? <= svma {
                from += half + 1;
                len -= half + 1;
            } else {
                len = half;
            }
        }
        self.function(from.checked_sub(1)?).filter(|function| function.range.contains(&svma))
    }

    fn function(&self, index: usize) -> Option<GoFunction<'_, 'a>> {
        let range = self.start(index)?..self.start(index + 1)?;
        let offset = usize::try_from(self.number(2 * index + 1)?).ok()?;
        let record = self.functions.get(offset..)?;
        let is_code = self.code.start <= range.start && range.end <= self.code.end;
        (is_code && range.start < range.end).then_some(GoFunction { table: self, record, range })
    }

    fn start(&self, index: usize) -> Option<u64> {
        self.text.checked_add(self.number(2 * index)?)
    }

    fn number(&self, index: usize) -> Option<u64> {
        match self.version {
            PclntabVersion::V116 => u64_at(self.functions, index * 8),
            _ => u32_at(self.functions, index * 4).map(u64::from),
        }
    }

    fn name(&self, offset: u32) -> Option<&'a str> {
        text_at(self.names, offset)
    }
}

impl<'a> GoFunction<'_, 'a> {
    /// Returns the function's name, with the package's.
    pub fn name(&self) -> Option<&'a str> {
        self.table.name(self.field(0)?)
    }

    /// Whether the runtime marks the function as the outermost one of a stack.
    pub fn is_outermost(&self) -> bool {
        self.flags() & 1 != 0
    }

    /// Whether the function changes the stack pointer in ways that its frame sizes do not show.
    pub fn writes_sp(&self) -> bool {
        self.flags() & 2 != 0
    }

    /// Returns the number of stack bytes in use by pc, without the return address.
    pub fn frame_sizes(&self) -> Values<'a> {
        self.values(self.field(3))
    }

    /// Returns the source locations at an address, outermost first: the function itself, then
    /// inlined ones.
    pub fn locations(&self, svma: u64) -> Vec<GoLocation<'a>> {
        inline::locations(self, svma)
    }

    fn flags(&self) -> u8 {
        self.record.get(self.table.version.kind() + 1).copied().unwrap_or(0)
    }

    /// Returns the field with this number after the entry: name, arguments, deferreturn, frame
    /// sizes, files, lines, count of pc values, compilation unit.
    fn field(&self, number: usize) -> Option<u32> {
        u32_at(self.record, self.table.version.number_len() + 4 * number)
    }

    fn values(&self, offset: Option<u32>) -> Values<'a> {
        // Offset 0 means none.
        let bytes = offset.filter(|&offset| offset != 0);
        let bytes = bytes.and_then(|offset| self.table.values.get(offset as usize..));
        Values::new(bytes.unwrap_or_default(), self.range.clone())
    }

    fn value(&self, offset: Option<u32>, svma: u64) -> Option<i32> {
        let holds = |(range, _): &(Range<u64>, i32)| range.contains(&svma);
        self.values(offset).find(holds).map(|(_, value)| value)
    }

    fn file_and_line(&self, svma: u64) -> (Option<&'a str>, u32) {
        let line = self.value(self.field(5), svma).and_then(|line| u32::try_from(line).ok());
        let file = self.value(self.field(4), svma).and_then(|number| {
            let index = self.field(7)?.checked_add(u32::try_from(number).ok()?)?;
            let offset = u32_at(self.table.units, usize::try_from(index).ok()?.checked_mul(4)?)?;
            text_at(self.table.files, offset)
        });
        (file, line.unwrap_or(0))
    }

    /// Returns the number of the inlined call at an address.
    fn inlined_call(&self, svma: u64) -> Option<usize> {
        let pc_values = self.field(6)?;
        if pc_values <= INLINE_INDEX {
            return None;
        }
        let at = self.tail() + 4 * INLINE_INDEX as usize;
        usize::try_from(self.value(u32_at(self.record, at), svma)?).ok()
    }

    /// Returns the start of the offsets of the pc values.
    fn tail(&self) -> usize {
        self.table.version.kind() + 4
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

/// Returns the text at an offset, up to its zero byte.
fn text_at(bytes: &[u8], offset: u32) -> Option<&str> {
    let bytes = bytes.get(offset as usize..)?;
    let bytes = &bytes[..bytes.len().min(TEXT_MAX)];
    let end = bytes.iter().position(|&byte| byte == 0)?;
    std::str::from_utf8(&bytes[..end]).ok().filter(|text| !text.is_empty())
}
