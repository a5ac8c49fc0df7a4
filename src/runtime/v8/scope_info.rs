//! What a scope says about itself: the name of its function, and where it is in the source.
//!
//! Its words are flags, numbers of variables, their names and properties, and then what the flags
//! say that there is.

use traceprof_abi::runtime::v8::object_of;

use super::heap::{HeapReader, small};
use super::strings::is_text;

/// Maximum number of variables of a function.
const LOCALS_MAX: u64 = 1 << 16;
/// With so many variables, the names are in a table of their own.
const LOCALS_OUTSIDE: u64 = 75;
/// Bits of the flags: the type of the scope, what class scopes have more, two bits that are not 0
/// if there is a name, and whether there is an inferred name.
const CLASS_VARIABLE: u32 = 1 << 10;
const NAME: u32 = 0b11 << 12;
const INFERRED_NAME: u32 = 1 << 14;

/// A function as its scope describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct ScopeFacts {
    /// The name, or 0.
    pub(super) name: u64,
    /// The name that the engine has made up from the source, or 0.
    pub(super) inferred: u64,
    /// The start and the end in the source, in characters.
    pub(super) source: Option<(u32, u32)>,
}

/// Reads what a scope says about itself.
pub(super) fn scope_facts(heap: &HeapReader<'_>, scope: u64) -> Option<ScopeFacts> {
    let indices = heap.layout.scope;
    let word = |index: u64| heap.word(scope, 8u64.checked_add(index.checked_mul(8)?)?);
    let flags = word(0)?;
    // A small integer, or the number itself, behind which nothing is.
    let flags = small(flags).unwrap_or(flags as u32);
    let locals = u64::from(small(word(indices.local_count)?)?);
    if locals > LOCALS_MAX {
        return None;
    }
    let names = if locals < LOCALS_OUTSIDE { locals } else { 1 };
    let mut next = indices.first_local + names + locals;
    next += u64::from(flags & CLASS_VARIABLE != 0);
    let mut facts = ScopeFacts::default();
    if flags & NAME != 0 {
        facts.name = name_or_none(heap, word(next)?);
        next += 2;
    }
    if flags & INFERRED_NAME != 0 {
        facts.inferred = name_or_none(heap, word(next)?);
        next += 1;
    }
    let start = indices.positions.unwrap_or(next);
    let bounds = small(word(start)?).zip(small(word(start + 1)?));
    facts.source = bounds.filter(|(start, end)| start <= end);
    Some(facts)
}

fn name_or_none(heap: &HeapReader<'_>, word: u64) -> u64 {
    if object_of(word).is_some() && is_text(heap, word) { word } else { 0 }
}
