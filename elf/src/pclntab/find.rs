//! The search for the function table of a Go program.

use super::super::Elf;
use super::super::relocated_words::RelocatedWords;
use super::{Pclntab, PclntabVersion, inline};

/// The sections of the table, in an executable for a fixed address and in a position-independent
/// one.
pub(crate) const SECTIONS: [&str; 2] = [".gopclntab", ".data.rel.ro.gopclntab"];
/// The alignment of the table: 32 in new programs, but old linkers guarantee only this.
const ALIGN: usize = 8;
/// The prefix of the functions that programs start with.
const ENTRY: &str = "_rt0_";
/// Most candidates for the table's start that are tried; a real program has a few.
const SEARCHED_MAX: usize = 16;

/// Returns the SVMAs and bytes of candidates for the table, the likeliest first.
pub(super) fn tables<'e, 'a>(elf: &'e Elf<'a>) -> impl Iterator<Item = (u64, &'a [u8])> + 'e {
    let sections = SECTIONS.iter().filter_map(|name| elf.section(name));
    let named = sections.map(|section| (section.svma, section.data));
    // Other linkers put the table into a section with other data, and section headers may be
    // missing.
    let searched = elf.is_go().then(|| elf.loads().iter().filter(|load| !load.exec));
    let loads = searched.into_iter().flatten();
    let found = loads.flat_map(|load| {
        let data = elf.data(load.svma).unwrap_or_default();
        // Segments of a file start anywhere; their contents are aligned in memory.
        let skip = (load.svma.wrapping_neg() % ALIGN as u64) as usize;
        let words = data.get(skip..).unwrap_or_default().chunks_exact(ALIGN).enumerate();
        let starts = words.filter(|(_, word)| is_start(word)).map(move |(i, _)| skip + i * ALIGN);
        starts.filter_map(move |at| Some((load.svma.checked_add(at as u64)?, data.get(at..)?)))
    });
    named.chain(found.take(SEARCHED_MAX))
}

/// Whether a word is the table's first word: magic, two zeros, the granularity of x86_64 code, the
/// length of a pointer.
fn is_start(word: &[u8]) -> bool {
    word[4..] == [0, 0, 1, 8]
        && PclntabVersion::of(u32::from_le_bytes([word[0], word[1], word[2], word[3]])).is_some()
}

/// Returns the address that function offsets are relative to. The header contains it, except in
/// position-independent programs, where the loader fills it in, and in the newest versions. Then
/// the runtime's module description contains it.
pub(super) fn text_start(
    elf: &Elf<'_>,
    table: &Pclntab<'_>,
    svma: u64,
    data: &[u8],
) -> Option<u64> {
    let stated = RelocatedWords::of(elf).word(svma.checked_add(24)?).filter(|&start| start != 0);
    let described = || inline::text_start(elf, table, svma, data);
    stated.or_else(described).or_else(|| {
        let text = elf.section(".text")?.svma;
        starts_with_go(elf, table, text).then_some(text)
    })
}

/// Whether Go's functions come first. Other linkers put C's start files before them.
pub(super) fn starts_with_go(elf: &Elf<'_>, table: &Pclntab<'_>, text: u64) -> bool {
    let table = table.clone().with_text(elf, text);
    let entry = elf.entry();
    table.is_some_and(|table| {
        let first = table.find_function(entry).filter(|it| it.range.start == entry);
        first.is_some_and(|it| it.name().is_some_and(|name| name.starts_with(ENTRY)))
    })
}
