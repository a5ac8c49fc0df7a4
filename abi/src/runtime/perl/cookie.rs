//! What tells the objects of frames apart.
//!
//! Each name has a hash and a length in its first word. A sub has those of its name and package,
//! the digest of its path, and the line of its first statement. Other code has the digest of its
//! path, and the line of its statement.

use super::sub::{Sub, SubName};
use super::text::digest;
use super::{Lost, PerlLayout, Reader, STATEMENT_FILE, STATEMENT_LINE};
use crate::runtime::WordReader;
use crate::runtime::cookie::CookieParts;

/// Code that is not in a sub with a name. The number is in the lowest bits of the address of a
/// statement in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum CodeKind {
    /// The program.
    Program = 1,
    /// A file that the program runs: `require`, `use` and `do`.
    File = 2,
    /// A string that the program runs: `eval`.
    String = 3,
    /// A sub without a name. The statement is its first one, which all its closures share.
    Anonymous = 4,
}

/// The object of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PerlObject {
    /// The sub at this address.
    Sub(u64),
    /// Other code, with the address of a statement in it. 0 if the statement is not known.
    Code(CodeKind, u64),
}

impl PerlObject {
    /// Returns the object of a frame. `None` if it is none.
    pub fn of(object: u64) -> Option<Self> {
        let statement = object & !7;
        match object & 7 {
            0 if object != 0 => Some(Self::Sub(object)),
            1 => Some(Self::Code(CodeKind::Program, statement)),
            2 => Some(Self::Code(CodeKind::File, statement)),
            3 => Some(Self::Code(CodeKind::String, statement)),
            4 => Some(Self::Code(CodeKind::Anonymous, statement)),
            _ => None,
        }
    }

    /// Returns what a frame has for it.
    pub(super) fn word(self) -> u64 {
        match self {
            Self::Sub(avma) => avma,
            Self::Code(kind, statement) => statement | kind as u64,
        }
    }
}

/// Returns the cookie of a frame's object. `None` if it is none, or unreadable.
///
/// The recorder compares the cookie at the capture with that of the object that it reads later.
pub fn cookie(layout: &PerlLayout, object: u64, memory: &mut impl WordReader) -> Option<u32> {
    let mut reader = Reader { layout, memory };
    match PerlObject::of(object)? {
        PerlObject::Sub(avma) => {
            let sub = Sub::of(&mut reader, avma).ok()?;
            of_sub(&mut reader, &sub)
        }
        PerlObject::Code(_, statement) => of_code(&mut reader, statement),
    }
    .ok()
}

/// Returns the cookie of a sub.
pub(super) fn of_sub(reader: &mut Reader<'_, impl WordReader>, sub: &Sub) -> Result<u32, Lost> {
    let SubName { package, name, file, line } = sub.name.ok_or(Lost)?;
    let package = if package == 0 { 0 } else { reader.word(package)? };
    let parts = CookieParts::NONE.with(package).with(reader.word(name)?);
    Ok(parts.with(digest(reader, file)?).with(u64::from(line)).finish())
}

/// Returns the cookie of other code with this statement.
pub(super) fn of_code(
    reader: &mut Reader<'_, impl WordReader>,
    statement: u64,
) -> Result<u32, Lost> {
    if statement == 0 {
        return Ok(0);
    }
    let file = reader.field(statement, STATEMENT_FILE)?;
    let line = reader.half(statement, STATEMENT_LINE)?;
    Ok(CookieParts::NONE.with(digest(reader, file)?).with(u64::from(line)).finish())
}
