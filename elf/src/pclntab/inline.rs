//! The calls that Go's compiler inlined, as one tree for each function that has some.

use std::ops::Range;

use super::super::Elf;
use super::super::relocated_words::RelocatedWords;
use super::{GoFunction, GoLocation, Pclntab, PclntabVersion, u32_at};

/// The index of the tree among a function's tables.
const TREE: usize = 3;
/// The offset of the first function's address in a module description, from Go 1.18 on; `TEXT` is
/// that of the code's start.
const FIRST: u64 = 160;
const TEXT: u64 = 176;
/// The offsets at which the base of the trees may be: Go 1.20 and other versions put more fields
/// before it.
const TREES: Range<u64> = 296..400;
/// The number of functions whose trees are tried to find the base.
const TRIED: usize = 32;
/// The number of trees that must agree for a result.
const TRIED_MIN: usize = 2;
/// The deepest nesting of inlined calls that is accepted.
const DEPTH_MAX: usize = 64;
/// Most pointers to the table that are tried; a real program has two or three.
const POINTERS_MAX: usize = 64;

/// Returns the base of the functions' tree offsets. Only the runtime's module description contains
/// it, in a word that depends on the version. In that word, the first call of each tree has a name,
/// and a caller in its function.
pub(super) fn trees(elf: &Elf<'_>, table: &Pclntab<'_>, svma: u64, data: &[u8]) -> Option<u64> {
    if table.version == PclntabVersion::V116 {
        // The table contains pointers instead.
        return None;
    }
    let start = description(elf, table, svma, data)?;
    let has_tree = |function: &GoFunction<'_, '_>| tree_offset(function).is_some();
    let tried: Vec<_> = table.functions().filter(has_tree).take(TRIED).collect();
    let makes_sense = |trees: &u64| {
        let Some(bytes) = elf.data(*trees) else { return false };
        let call = |function| {
            let tree = bytes.get(tree_offset(function)?..)?;
            call(function, tree, 0).filter(|(name, _)| !name.is_empty())
        };
        tried.len() >= TRIED_MIN && tried.iter().all(|function| call(function).is_some())
    };
    let relocated = RelocatedWords::of(elf);
    let words = TREES.step_by(8).filter_map(|field| relocated.word(start.checked_add(field)?));
    words.filter(|word| *word != 0).find(makes_sense)
}

/// Returns the base of functions' offsets, from the module description.
pub(super) fn text_start(
    elf: &Elf<'_>,
    table: &Pclntab<'_>,
    svma: u64,
    data: &[u8],
) -> Option<u64> {
    let start = description(elf, table, svma, data)?;
    let words = RelocatedWords::of(elf);
    let text = words.word(start.checked_add(TEXT)?)?;
    // The two words disagree where later versions have other fields.
    let first = words.word(start.checked_add(FIRST)?)?;
    (text.checked_add(table.number(0)?)? == first).then_some(text)
}

/// Finds the runtime's module description.
fn description(elf: &Elf<'_>, table: &Pclntab<'_>, svma: u64, data: &[u8]) -> Option<u64> {
    let names = svma.checked_add((data.len() - table.names.len()) as u64)?;
    // The description starts with pointers to the table and to the names.
    let words = RelocatedWords::of(elf);
    let mut descriptions = words.pointers_to(svma).take(POINTERS_MAX);
    descriptions.find(|&at| words.word(at.wrapping_add(8)) == Some(names))
}

/// Returns the source locations at an address, outermost first.
pub(super) fn locations<'a>(function: &GoFunction<'_, 'a>, svma: u64) -> Vec<GoLocation<'a>> {
    let mut found = Vec::new();
    let mut at = svma;
    while found.len() < DEPTH_MAX
        && let Some((name, parent)) = inlined(function, at)
    {
        let (file, line) = function.file_and_line(at);
        found.push(GoLocation { name, file, line });
        at = parent;
    }
    let (file, line) = function.file_and_line(at);
    found.extend(function.name().map(|name| GoLocation { name, file, line }));
    found.reverse();
    found
}

/// Returns the name of the inlined function at an address, and an address at its call.
fn inlined<'a>(function: &GoFunction<'_, 'a>, svma: u64) -> Option<(&'a str, u64)> {
    let tree = function.table.trees?.get(tree_offset(function)?..)?;
    call(function, tree, function.inlined_call(svma)?)
}

/// Returns the call with this number in a function's tree.
fn call<'a>(function: &GoFunction<'_, 'a>, tree: &[u8], number: usize) -> Option<(&'a str, u64)> {
    let (len, name, parent) = match function.table.version {
        PclntabVersion::V116 | PclntabVersion::V118 => (20, 12, 16),
        PclntabVersion::V120 => (16, 4, 8),
    };
    let call = tree.get(number.checked_mul(len)?..)?;
    let parent = function.range.start.checked_add(u64::from(u32_at(call, parent)?))?;
    // A call with impossible values is not a call.
    let name = function.table.name(u32_at(call, name)?)?;
    function.range.contains(&parent).then_some((name, parent))
}

fn tree_offset(function: &GoFunction<'_, '_>) -> Option<usize> {
    let tail = function.tail();
    let tables = usize::from(*function.record.get(tail - 1)?);
    let behind_values = tail.checked_add((function.field(6)? as usize).checked_mul(4)?)?;
    let offset = u32_at(function.record, behind_values.checked_add(4 * TREE)?)?;
    (tables > TREE && offset != u32::MAX).then_some(offset as usize)
}
