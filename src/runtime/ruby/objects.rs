//! The interpreter's strings and arrays.

use traceprof_abi::runtime::ruby::{ARRAY, EMBEDDING, STRING, TEXT_MAX, TYPE_MASK};

use crate::runtime::memory::{TargetMemory, word};
use crate::text::printable;

/// Offsets in a string or array whose contents are elsewhere: of their number, and the addresses
/// of those of a string and of an array.
const LENGTH: u64 = 16;
const BYTES: u64 = 24;
const ELEMENTS: u64 = 32;
/// Offset of the contents that are in the object.
const EMBEDDED: u64 = 16;
/// The places in the flags of the number of bytes and of elements in the object.
const BYTES_SHIFT: u32 = 14;
const BYTES_MASK: u64 = 0x1f;
const ELEMENTS_SHIFT: u32 = 15;
const ELEMENTS_MASK: u64 = 0x3;

/// Reads a string as it can be printed. `None` if there is none.
pub(super) fn text(memory: &dyn TargetMemory, string: u64) -> Option<String> {
    let field = |at: u64| word(memory, string.wrapping_add(at));
    let flags = field(0).filter(|flags| flags & TYPE_MASK == STRING && string != 0)?;
    let (start, len) = match flags & EMBEDDING {
        0 => (string.checked_add(EMBEDDED)?, flags >> BYTES_SHIFT & BYTES_MASK),
        _ => (field(BYTES)?, field(LENGTH)?),
    };
    if len > TEXT_MAX {
        return None;
    }
    let mut bytes = vec![0; len as usize];
    let got = memory.read(start, &mut bytes);
    (got == bytes.len()).then(|| printable(&String::from_utf8_lossy(&bytes)))
}

/// Reads an element of an array. `None` if there is none.
pub(super) fn element(memory: &dyn TargetMemory, array: u64, index: u64) -> Option<u64> {
    let field = |at: u64| word(memory, array.wrapping_add(at));
    let flags = field(0).filter(|flags| flags & TYPE_MASK == ARRAY && array != 0)?;
    let (start, len) = match flags & EMBEDDING {
        0 => (field(ELEMENTS)?, field(LENGTH)?),
        _ => (array.checked_add(EMBEDDED)?, flags >> ELEMENTS_SHIFT & ELEMENTS_MASK),
    };
    if index >= len {
        return None;
    }
    word(memory, start.checked_add(index.checked_mul(8)?)?)
}

/// Reads a string, or the first element of an array, which is one.
pub(super) fn path(memory: &dyn TargetMemory, object: u64) -> Option<String> {
    text(memory, object).or_else(|| text(memory, element(memory, object, 0)?))
}
