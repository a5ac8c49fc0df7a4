//! Calls that Go's compiler inlined: a tree for each function that has some.

use std::ops::Range;

use super::super::Elf;
use super::super::relocated_words::RelocatedWords;
use super::{GoFunction, GoPlace, Layout, Pclntab, u32_at};

/// Index of the tree among a function's tables.
const TREE: usize = 3;
/// Offsets of the first function's address and of its code's in a module description, from Go 1.18
/// on.
const FIRST: u64 = 160;
const TEXT: u64 = 176;
/// Offsets at which trees' base may be: Go 1.20 and others put more before it.
const TREES: Range<u64> = 296..400;
/// Functions whose trees are tried to find out.
const TRIED: usize = 32;
/// Trees that must agree for a result.
const TRIED_MIN: usize = 2;
/// Deepest nesting of inlined calls that is accepted.
const DEPTH_MAX: usize = 64;
/// Pointers to the table that are tried; a real program has two or three.
const POINTERS_MAX: usize = 64;

/// The base of the functions' tree offsets. Only the runtime's module description contains it, in a
/// word that depends on the version. It is the word for which the first call of each tree has a
/// name, and a caller in its function.
pub(super) fn trees(elf: &Elf<'_>, table: &Pclntab<'_>, svma: u64, data: &[u8]) -> Option<u64> {
    if table.layout == Layout::V116 {
        // It contains pointers instead.
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

/// The base of functions' offsets, from the module description.
pub(super) fn text_start(
    elf: &Elf<'_>,
    table: &Pclntab<'_>,
    svma: u64,
    data: &[u8],
) -> Option<u64> {
    let start = description(elf, table, svma, data)?;
    let words = RelocatedWords::of(elf);
    let text = words.word(start.checked_add(TEXT)?)?;
    // The two words disagree where later versions have something else.
    let first = words.word(start.checked_add(FIRST)?)?;
    (text.checked_add(table.number(0)?)? == first).then_some(text)
}

/// Finds the runtime's module description.
fn description(elf: &Elf<'_>, table: &Pclntab<'_>, svma: u64, data: &[u8]) -> Option<u64> {
    let names = svma.checked_add((data.len() - table.names.len()) as u64)?;
    // It starts with pointers to the table and to the names.
    let words = RelocatedWords::of(elf);
    let mut descriptions = words.pointers_to(svma).take(POINTERS_MAX);
    descriptions.find(|&at| words.word(at.wrapping_add(8)) == Some(names))
}

/// The source places at an address, outermost first.
pub(super) fn places<'a>(function: &GoFunction<'_, 'a>, svma: u64) -> Vec<GoPlace<'a>> {
    let mut found = Vec::new();
    let mut at = svma;
    while found.len() < DEPTH_MAX
        && let Some((name, parent)) = inlined(function, at)
    {
        let (file, line) = function.file_and_line(at);
        found.push(GoPlace { name, file, line });
        at = parent;
    }
    let (file, line) = function.file_and_line(at);
    found.extend(function.name().map(|name| GoPlace { name, file, line }));
    found.reverse();
    found
}

/// Name of the inlined function at an address, and an address at its call.
fn inlined<'a>(function: &GoFunction<'_, 'a>, svma: u64) -> Option<(&'a str, u64)> {
    let tree = function.table.trees?.get(tree_offset(function)?..)?;
    call(function, tree, function.inlined_call(svma)?)
}

/// The call with this number in a function's tree.
fn call<'a>(function: &GoFunction<'_, 'a>, tree: &[u8], number: usize) -> Option<(&'a str, u64)> {
    let (len, name, parent) = match function.table.layout {
        Layout::V116 | Layout::V118 => (20, 12, 16),
        Layout::V120 => (16, 4, 8),
    };
    let call = tree.get(number.checked_mul(len)?..)?;
    let parent = function.range.start.checked_add(u64::from(u32_at(call, parent)?))?;
    // A call with impossible values is none.
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
