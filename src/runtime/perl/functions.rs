//! Names subs and other code.
//!
//! # Invariants
//! - A sub is returned only if it had the cookie of the capture before and after its names were
//!   read.

use traceprof_abi::runtime::perl::{
    CodeKind, NAME_BYTES, PerlLayout, PerlObject, STATEMENT_FILE, STATEMENT_LINE, SubName,
    TEXT_MAX, cookie, sub_name,
};

use crate::runtime::function::{PositionKind, read_unchanged};
use crate::runtime::memory::{self, TargetMemory, TargetWords};
use crate::runtime::{Function, Gone};
use crate::text::printable;

/// The name of subs without one, and of packages without one.
const ANONYMOUS: &str = "__ANON__";

/// Reads the functions of one interpreter.
#[derive(Debug, Clone)]
pub(in crate::runtime) struct PerlReader {
    pub(super) layout: PerlLayout,
}

impl PerlReader {
    /// Reads a sub or other code that had this cookie when it was captured.
    pub(in crate::runtime) fn function(
        &self,
        memory: &dyn TargetMemory,
        object: u64,
        captured: u32,
    ) -> Result<Function, Gone> {
        let cookie = || Ok(cookie(&self.layout, object, &mut TargetWords(memory)));
        match PerlObject::of(object).ok_or(Gone::OtherType)? {
            PerlObject::Sub(sub) => {
                memory::word(memory, sub).ok_or(Gone::Unreadable)?;
                read_unchanged(captured, cookie, || self.sub(memory, sub))
            }
            PerlObject::Code(kind, 0) => Ok(code(kind, None)),
            PerlObject::Code(kind, statement) => {
                let read = || {
                    let at = |field: u16| statement.wrapping_add(u64::from(field));
                    let file = memory::word(memory, at(STATEMENT_FILE)).ok_or(Gone::Unreadable)?;
                    let line = memory::array(memory, at(STATEMENT_LINE)).map(u32::from_le_bytes);
                    let file = text(memory, file).ok_or(Gone::File)?;
                    Ok(code(kind, Some((file, line.ok_or(Gone::Unreadable)?))))
                };
                // The code of a string is gone when it has run. What it was is still known.
                read_unchanged(captured, cookie, read).or_else(|_| Ok(code(kind, None)))
            }
        }
    }

    fn sub(&self, memory: &dyn TargetMemory, sub: u64) -> Result<Function, Gone> {
        let found = sub_name(&self.layout, sub, &mut TargetWords(memory));
        let SubName { package, name, file, line } = found.ok_or(Gone::OtherType)?;
        let package = match package {
            0 => ANONYMOUS.to_owned(),
            package => self::name(memory, package).ok_or(Gone::Name)?,
        };
        let name = format!("{package}::{}", self::name(memory, name).ok_or(Gone::Name)?);
        let file = text(memory, file).ok_or(Gone::File)?;
        Ok(Function { name, file, line, is_pseudo: false, lines: PositionKind::Positions })
    }
}

/// Returns code that is not in a sub with a name. `place` is its file and the line of the statement
/// that stands for it.
fn code(kind: CodeKind, place: Option<(String, u32)>) -> Function {
    let name = match kind {
        CodeKind::Program => "<main>",
        CodeKind::File => "<required>",
        CodeKind::String => "(eval)",
        CodeKind::Anonymous => ANONYMOUS,
    };
    let lines = if place.is_some() { PositionKind::Positions } else { PositionKind::Unknown };
    let (file, first) = place.unwrap_or_default();
    let line = if kind == CodeKind::Anonymous { first } else { 0 };
    Function { name: name.to_owned(), file, line, is_pseudo: false, lines }
}

/// Reads a name, which has its length before its bytes.
fn name(memory: &dyn TargetMemory, avma: u64) -> Option<String> {
    let len = memory::word(memory, avma)? >> 32;
    let mut bytes = vec![0; usize::try_from(len).ok().filter(|_| len <= TEXT_MAX)?];
    let got = memory.read(avma.checked_add(NAME_BYTES)?, &mut bytes);
    (got == bytes.len()).then(|| shown(&bytes))
}

/// Reads a text that ends with a byte 0.
fn text(memory: &dyn TargetMemory, start: u64) -> Option<String> {
    let mut bytes = [0; TEXT_MAX as usize];
    let got = memory.read(start, &mut bytes);
    let end = bytes[..got].iter().position(|byte| *byte == 0)?;
    Some(shown(&bytes[..end]))
}

/// Returns a text as it can be printed: UTF-8, or what Perl stores of characters below 256.
fn shown(bytes: &[u8]) -> String {
    let text = std::str::from_utf8(bytes).map(str::to_owned);
    printable(&text.unwrap_or_else(|_| bytes.iter().map(|byte| char::from(*byte)).collect()))
}
