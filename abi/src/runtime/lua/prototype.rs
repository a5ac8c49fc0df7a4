//! Prototypes: what all closures of a function share.

use super::{LuaLayout, Reader};
use crate::runtime::WordReader;
use crate::runtime::cookie::CookieParts;
use crate::runtime::reader::Lost;

/// Offset in an object of its kind, which has 8 bits.
pub const KIND: u16 = 9;
/// The kind of strings.
pub const KIND_STRING: u8 = 4;
/// The kind of prototypes.
pub(super) const KIND_PROTOTYPE: u8 = 7;

/// Offset in a prototype of the number of its instructions, which has 32 bits.
pub const INSTRUCTIONS: u16 = 12;
/// Offset in a prototype of its length with all that is behind it, which has 32 bits.
const LENGTH: u16 = 56;
/// Offset in a prototype of the name of its source, a string.
pub const SOURCE: u16 = 64;
/// Offset in a prototype of the first line of the function, which has 32 bits.
pub const FIRST_LINE: u16 = 72;
/// Offset in a prototype of the number of lines behind that one, which has 32 bits.
pub const LINE_COUNT: u16 = 76;
/// Offset in a prototype of the address of the lines of its instructions.
pub const LINES: u16 = 80;
/// Offset in a prototype of its instructions, of 32 bits each.
pub const CODE: u64 = 104;

/// Offset in a string of its length, which has 32 bits.
pub const STRING_LENGTH: u16 = 20;
/// Offset in a string of its bytes.
pub const STRING_BYTES: u64 = 24;
/// Number of words at the beginning of a string that enter the cookie, and of those at its end.
const DIGESTED: u64 = 8;

/// Returns the cookie of a prototype. `None` if it is none, or unreadable.
///
/// The recorder compares the cookie at the capture with that of the prototype that it reads later.
pub fn cookie(layout: &LuaLayout, prototype: u64, memory: &mut impl WordReader) -> Option<u32> {
    of_prototype(&mut Reader { layout, memory }, prototype).ok()
}

/// Returns a cookie of the name of the source, the lines and the lengths.
pub(super) fn of_prototype(
    reader: &mut Reader<'_, impl WordReader>,
    prototype: u64,
) -> Result<u32, Lost> {
    if reader.byte(prototype, KIND)? != KIND_PROTOTYPE {
        return Err(Lost);
    }
    let source = reader.field(prototype, SOURCE)?;
    if reader.byte(source, KIND)? != KIND_STRING {
        return Err(Lost);
    }
    let lengths = [INSTRUCTIONS, LENGTH].map(|at| reader.half(prototype, at));
    let [instructions, length] = lengths;
    let parts = CookieParts::NONE
        .with(reader.field(prototype, FIRST_LINE)?)
        .with(u64::from(instructions?) << 32 | u64::from(length?));
    Ok(with_source(reader, parts, source)?.finish())
}

/// Adds the length, and the beginning and the end of a string. Its hash does not count: the program
/// computes it anew in another way when many strings have the same one.
fn with_source(
    reader: &mut Reader<'_, impl WordReader>,
    parts: CookieParts,
    source: u64,
) -> Result<CookieParts, Lost> {
    let len = u64::from(reader.half(source, STRING_LENGTH)?);
    let (bytes, words) = (source.wrapping_add(STRING_BYTES), len.div_ceil(8));
    let end = words.saturating_sub(DIGESTED).max(DIGESTED);
    let mut parts = parts.with(len);
    for number in (0..words.min(DIGESTED)).chain(end..words) {
        let at = number.wrapping_mul(8);
        let word = reader.word(bytes.wrapping_add(at))?;
        // What is behind the end is not a part of the string.
        let used = len.wrapping_sub(at).min(8);
        let unused = 8u64.wrapping_sub(used).wrapping_mul(8) as u32;
        parts = parts.with(word.wrapping_shl(unused));
    }
    Ok(parts)
}
