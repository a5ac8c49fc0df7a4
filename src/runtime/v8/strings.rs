//! V8's strings: flat ones in the heap or outside, and those that consist of others.

use traceprof_abi::runtime::v8::object_of;

use super::heap::{HeapReader, small};
use crate::text::{LENGTH_MAX, printable};

/// Instance types below this one are strings.
const STRINGS_END: u16 = 128;
/// Bits of instance types of strings: the shape, one byte for each character, and characters
/// outside of the heap whose address only a function tells.
const SHAPE: u16 = 7;
const ONE_BYTE: u16 = 8;
const UNCACHED: u16 = 16;
/// Shapes.
const FLAT: u16 = 0;
const CONS: u16 = 1;
const EXTERNAL: u16 = 2;
const SLICED: u16 = 3;
const THIN: u16 = 5;
/// Offsets.
const LENGTH: u64 = 12;
const CHARACTERS: u64 = 16;
const FIRST: u64 = 16;
const SECOND: u64 = 24;
const EXTERNAL_DATA: u64 = 24;
/// Maximum number of strings that one consists of.
const PARTS_MAX: usize = 256;
/// Maximum number of strings on the way to a flat one.
const STEPS_MAX: usize = 16;

/// Characters in one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FlatText {
    /// The address of the first one (AVMA).
    pub(super) avma: u64,
    /// Number of characters.
    pub(super) len: u32,
    /// Number of bytes of each: 1 or 2.
    pub(super) width: usize,
}

/// A string, or a part of one: its address, and the characters from `start` to `end`.
#[derive(Debug, Clone, Copy)]
struct TextPart {
    string: u64,
    start: u32,
    end: u32,
}

/// What a part consists of.
enum Pieces {
    Flat(FlatText),
    Other(TextPart),
    Two(TextPart, TextPart),
}

/// Returns whether a word refers to a string.
pub(super) fn is_text(heap: &HeapReader<'_>, word: u64) -> bool {
    object_of(word).and_then(|it| heap.kind(it)).is_some_and(|kind| kind < STRINGS_END)
}

/// Returns the number of characters of the string that a word refers to.
pub(super) fn text_len(heap: &HeapReader<'_>, word: u64) -> Option<u32> {
    whole(heap, word).map(|whole| whole.end)
}

/// Returns the text of the string that a word refers to, as it can be printed.
pub(super) fn text(heap: &HeapReader<'_>, word: u64) -> Option<String> {
    let whole = whole(heap, word)?;
    // A longer text is cut when it is printed.
    let mut open = vec![TextPart { end: whole.end.min(LENGTH_MAX as u32), ..whole }];
    let mut units: Vec<u16> = Vec::new();
    for _ in 0..PARTS_MAX {
        let Some(part) = open.pop() else {
            return Some(printable(&String::from_utf16_lossy(&units)));
        };
        match pieces(heap, part)? {
            Pieces::Flat(flat) => {
                let bytes = heap.pages.bytes(flat.avma, flat.len as usize * flat.width)?;
                units.extend(code_units(&bytes, flat.width));
            }
            Pieces::Other(part) => open.push(part),
            Pieces::Two(first, second) => open.extend([second, first]),
        }
    }
    None
}

/// Returns where the characters of a string are. `None` if it consists of several.
pub(super) fn flat_text(heap: &HeapReader<'_>, word: u64) -> Option<FlatText> {
    let mut part = whole(heap, word)?;
    for _ in 0..STEPS_MAX {
        part = match pieces(heap, part)? {
            Pieces::Flat(flat) => return Some(flat),
            Pieces::Other(part) => part,
            Pieces::Two(..) => return None,
        };
    }
    None
}

fn whole(heap: &HeapReader<'_>, word: u64) -> Option<TextPart> {
    let string = object_of(word)?;
    let len = heap.half(string, LENGTH).filter(|_| is_text(heap, word))?;
    Some(TextPart { string, start: 0, end: len })
}

fn pieces(heap: &HeapReader<'_>, TextPart { string, start, end }: TextPart) -> Option<Pieces> {
    let kind = heap.kind(string).filter(|kind| *kind < STRINGS_END)?;
    let is_inside = start <= end && end <= heap.half(string, LENGTH)?;
    let width = if kind & ONE_BYTE != 0 { 1 } else { 2 };
    let flat = |data: u64| {
        let avma = data.checked_add(u64::from(start) * width as u64)?;
        Some(Pieces::Flat(FlatText { avma, len: end - start, width }))
    };
    match kind & SHAPE {
        _ if !is_inside => None,
        FLAT => flat(string.checked_add(CHARACTERS)?),
        EXTERNAL if kind & UNCACHED == 0 => flat(heap.word(string, EXTERNAL_DATA)?),
        SLICED => {
            let skipped = small(heap.word(string, SECOND)?)?;
            Some(Pieces::Other(TextPart {
                string: heap.object(string, FIRST)?,
                start: start.checked_add(skipped)?,
                end: end.checked_add(skipped)?,
            }))
        }
        THIN => Some(Pieces::Other(TextPart { string: heap.object(string, FIRST)?, start, end })),
        CONS => {
            let (first, second) = (heap.object(string, FIRST)?, heap.object(string, SECOND)?);
            let middle = heap.half(first, LENGTH)?;
            let before = TextPart { string: first, start, end: end.min(middle) };
            let behind = || TextPart {
                string: second,
                start: start.saturating_sub(middle),
                end: end - middle,
            };
            Some(match (start < middle, end > middle) {
                (_, false) => Pieces::Other(before),
                (false, true) => Pieces::Other(behind()),
                (true, true) => Pieces::Two(before, behind()),
            })
        }
        _ => None,
    }
}

/// Returns the characters in bytes.
pub(super) fn code_units(bytes: &[u8], width: usize) -> impl Iterator<Item = u16> + '_ {
    bytes.chunks_exact(width).map(|unit| match *unit {
        [low, high] => u16::from_le_bytes([low, high]),
        [byte] => u16::from(byte),
        _ => 0,
    })
}
