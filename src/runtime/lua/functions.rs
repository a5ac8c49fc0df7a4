//! Names functions.
//!
//! A function has no name of its own: it is a value, and variables that have it have names. So it
//! is named by its place, as the interpreter does itself where it knows no variable.
//!
//! # Invariants
//! - A function is returned only if its prototype had the cookie of the capture before and after
//!   its source and its lines were read.

use traceprof_abi::runtime::lua::{
    CODE, FIRST_LINE, KIND, KIND_STRING, LINE_COUNT, LuaLayout, SOURCE, STRING_BYTES,
    STRING_LENGTH, cookie,
};

use super::lines::CodeLines;
use crate::runtime::function::{PositionKind, read_unchanged};
use crate::runtime::memory::{self, MemoryPiece, TargetMemory, TargetWords};
use crate::runtime::{Function, Gone};
use crate::text::printable;

/// What a file has outside of functions, as in the interpreter's own tracebacks.
const MAIN: &str = "main chunk";
/// The first line of functions that the interpreter has brought along.
const BUILT_IN: u32 = u32::MAX;
/// Maximum number of bytes of a source that are read: a path, or the beginning of a program.
const SOURCE_MAX: usize = 4096;
/// Maximum lengths of a path and of a program in a name, as in the interpreter's own tracebacks,
/// and what is shown of longer ones.
const PATH_MAX: usize = 59;
const PATH_SHOWN: usize = 56;
const TEXT_MAX: usize = 48;
const TEXT_SHOWN: usize = 45;

/// Reads the functions of one interpreter.
#[derive(Debug, Clone)]
pub(in crate::runtime) struct LuaReader {
    pub(super) layout: LuaLayout,
}

impl LuaReader {
    /// Reads the function of a prototype that had this cookie when it was captured.
    pub(in crate::runtime) fn function(
        &self,
        memory: &dyn TargetMemory,
        prototype: u64,
        captured: u32,
    ) -> Result<Function, Gone> {
        memory::word(memory, prototype).ok_or(Gone::Unreadable)?;
        let cookie = || Ok(cookie(&self.layout, prototype, &mut TargetWords(memory)));
        read_unchanged(captured, cookie, || function(memory, prototype))
    }
}

fn function(memory: &dyn TargetMemory, prototype: u64) -> Result<Function, Gone> {
    let bytes: [u8; CODE as usize] = memory::array(memory, prototype).ok_or(Gone::Unreadable)?;
    let head = MemoryPiece { avma: prototype, bytes: &bytes };
    let half = |at: u16| head.half(usize::from(at)).ok_or(Gone::Unreadable);
    let (line, count) = (half(FIRST_LINE)?, half(LINE_COUNT)?);
    let source = head.word(usize::from(SOURCE)).and_then(|avma| source(memory, avma));
    let source = source.ok_or(Gone::File)?;
    if line == BUILT_IN {
        let (name, file) = (format!("[builtin:{}]", source.text), String::new());
        let lines = PositionKind::Unknown;
        return Ok(Function { name, file, line: 0, is_pseudo: false, lines });
    }
    let lines = CodeLines::read(memory, &head).ok_or(Gone::LineTable)?;
    // A file has no first line, but lines.
    let is_main = line == 0 && count != 0;
    let name = match is_main {
        true => MAIN.to_owned(),
        false => format!("function <{}:{line}>", source.short()),
    };
    let lines = PositionKind::Code(lines);
    Ok(Function { name, file: source.file(), line, is_pseudo: false, lines })
}

/// Where the code of a function is from.
#[derive(Debug, PartialEq, Eq)]
struct Source {
    kind: SourceKind,
    /// A path, a name, or the beginning of a program.
    text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SourceKind {
    File,
    Named,
    Text,
}

impl Source {
    fn of(bytes: &[u8]) -> Self {
        let (kind, bytes) = match bytes {
            [b'@', path @ ..] => (SourceKind::File, path),
            [b'=', name @ ..] => (SourceKind::Named, name),
            text => (SourceKind::Text, text),
        };
        let shown = if kind == SourceKind::Text { first_line(bytes) } else { bytes };
        let mut text = printable(&String::from_utf8_lossy(shown));
        if shown.len() < bytes.len() {
            text.push_str("...");
        }
        Self { kind, text }
    }

    /// Returns the path, or what stands for it.
    fn file(&self) -> String {
        match self.kind {
            SourceKind::File | SourceKind::Named => self.text.clone(),
            SourceKind::Text => self.short(),
        }
    }

    /// Returns what names have of it.
    fn short(&self) -> String {
        match self.kind {
            SourceKind::File if self.text.len() > PATH_MAX => {
                format!("...{}", last(&self.text, PATH_SHOWN))
            }
            SourceKind::File | SourceKind::Named => self.text.clone(),
            SourceKind::Text => format!("[string \"{}\"]", self.text),
        }
    }
}

/// Returns the end of a text, of at most so many bytes.
fn last(text: &str, most: usize) -> &str {
    let from = text.len().saturating_sub(most);
    let at = (from..=text.len()).find(|at| text.is_char_boundary(*at));
    at.and_then(|at| text.get(at..)).unwrap_or(text)
}

/// Returns the beginning of a program as it is shown.
fn first_line(text: &[u8]) -> &[u8] {
    match text.iter().position(|byte| *byte < b' ') {
        None if text.len() <= TEXT_MAX => text,
        end => &text[..end.unwrap_or(text.len()).min(TEXT_SHOWN)],
    }
}

/// Reads the name of a source.
fn source(memory: &dyn TargetMemory, avma: u64) -> Option<Source> {
    let mut head = [0; STRING_BYTES as usize];
    if memory.read(avma, &mut head) != head.len() {
        return None;
    }
    let piece = MemoryPiece { avma, bytes: &head };
    if head[usize::from(KIND)] != KIND_STRING {
        return None;
    }
    let len = piece.half(usize::from(STRING_LENGTH))? as usize;
    let mut bytes = vec![0; len.min(SOURCE_MAX)];
    let got = memory.read(avma.checked_add(STRING_BYTES)?, &mut bytes);
    (got == bytes.len()).then(|| Source::of(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_files_names_or_texts() {
        let check = |bytes: &[u8], file: &str, short: &str| {
            let source = Source::of(bytes);
            assert_eq!((source.file().as_str(), source.short().as_str()), (file, short));
        };
        check(b"@/srv/a.lua", "/srv/a.lua", "/srv/a.lua");
        check(b"=stdin", "stdin", "stdin");
        let text = "[string \"return 1\"]";
        check(b"return 1", text, text);
        let cut = "[string \"return 1...\"]";
        check(b"return 1\nlocal x", cut, cut);
        let long = format!("@/srv/{}/b.lua", "x".repeat(80));
        let short = format!("...{}/b.lua", "x".repeat(PATH_SHOWN - 6));
        check(long.as_bytes(), &long[1..], &short);
        let text = format!("[string \"{}...\"]", "y".repeat(TEXT_SHOWN));
        check("y".repeat(100).as_bytes(), &text, &text);
        check(b"", "[string \"\"]", "[string \"\"]");
    }
}
