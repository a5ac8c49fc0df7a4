//! What tells functions apart: the hashes of their names.
//!
//! The interpreter hashes most names with 64 bits. Other functions at the same address have other
//! names, and the same function that is compiled again has the same ones. The recorder reads a name
//! only if its bytes have this hash.

use super::{
    CLASS_NAME, FUNCTION_CLASS, FUNCTION_KIND, FUNCTION_NAME, FunctionKind, Lost, PhpLayout,
    Reader, TEXT_HASH, TEXT_LENGTH, TEXT_START,
};
use crate::runtime::WordReader;
use crate::runtime::cookie::CookieParts;

/// Maximum length of a name that the interpreter has not hashed.
const UNHASHED_MAX: u64 = 1024;

/// The hash with which the interpreter finds strings (DJBX33A).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextHash(u64);

impl TextHash {
    /// The hash of no bytes, before [`Self::finish`].
    pub const EMPTY: Self = Self(5381);

    /// Returns the hash of these bytes and another one behind them.
    #[must_use]
    pub fn with(self, byte: u8) -> Self {
        Self(self.0.wrapping_mul(33).wrapping_add(u64::from(byte)))
    }

    /// Returns the hash as a string has it.
    pub fn finish(self) -> u64 {
        // 0 stands for no hash.
        self.0 | 1 << 63
    }
}

/// Returns the cookie of a function. `None` if it is no function, or unreadable.
///
/// The recorder compares the cookie at the capture with that of the function that it reads later.
pub fn cookie(layout: &PhpLayout, function: u64, memory: &mut impl WordReader) -> Option<u32> {
    cookie_in_class(layout, (function, function), memory)
}

/// Returns the cookie that a function has in the class of another one, its owner. `None` if one of
/// them is no function, or unreadable.
pub fn cookie_in_class(
    layout: &PhpLayout,
    (function, owner): (u64, u64),
    memory: &mut impl WordReader,
) -> Option<u32> {
    let mut reader = Reader { layout, memory };
    let parts = parts(&mut reader, (function, owner)).ok().flatten()?;
    Some(parts.into_iter().fold(CookieParts::NONE, CookieParts::with).finish())
}

/// Returns what enters a cookie: the kind, and the hashes of the names of the function, its class
/// and its file, and its lines.
fn parts(
    reader: &mut Reader<'_, impl WordReader>,
    (function, owner): (u64, u64),
) -> Result<Option<[u64; 5]>, Lost> {
    let layout = reader.layout;
    let Some(kind) = FunctionKind::of(reader.word(function.wrapping_add(FUNCTION_KIND))?) else {
        return Ok(None);
    };
    let name = reader.field(function, FUNCTION_NAME)?;
    let class = match reader.field(owner, FUNCTION_CLASS)? {
        0 => 0,
        class => reader.field(class, CLASS_NAME)?,
    };
    let is_internal = kind == FunctionKind::Internal;
    let file = if is_internal { 0 } else { reader.field(function, layout.file)? };
    let lines = if is_internal { 0 } else { reader.field(function, layout.lines)? };
    // Code outside of functions has no name.
    if name == 0 && is_internal || file == 0 && !is_internal {
        return Ok(None);
    }
    let [name, class, file] = [hash(reader, name)?, hash(reader, class)?, hash(reader, file)?];
    Ok(Some([kind as u64, name, class, file, lines]))
}

/// Returns the hash of a string, or 0 for no string.
fn hash(reader: &mut Reader<'_, impl WordReader>, text: u64) -> Result<u64, Lost> {
    if text == 0 {
        return Ok(0);
    }
    let known = reader.field(text, TEXT_HASH)?;
    if known != 0 {
        return Ok(known);
    }
    let len = reader.field(text, TEXT_LENGTH)?;
    if len > UNHASHED_MAX {
        return Err(Lost);
    }
    let start = text.wrapping_add(u64::from(TEXT_START));
    let mut hash = TextHash::EMPTY;
    let mut left = len;
    while left > 0 {
        let word = reader.word(start.wrapping_add(len.wrapping_sub(left)))?;
        let bytes = word.to_le_bytes();
        let count = left.min(8);
        hash = bytes.iter().take(count as usize).fold(hash, |hash, byte| hash.with(*byte));
        left = left.wrapping_sub(count);
    }
    Ok(hash.finish())
}
