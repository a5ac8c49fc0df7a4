//! Names code objects.
//!
//! # Invariants
//! - A function is returned only if the object had the type and the cookie of the capture before
//!   and after its strings were read, and a plausible number of references.

use std::ops::Range;

use traceprof_abi::runtime::WordReader;
use traceprof_abi::runtime::python::{PythonLayout, cookie};

use super::lines::{LineFormat, LineTable};
use super::offsets::{CodeOffsets, ReferenceCount};
use super::text::Texts;
use crate::runtime::function::PositionKind;
use crate::runtime::memory::{MemoryPiece, TargetMemory, word};
use crate::runtime::{Function, Gone};

/// Offset of an object's type.
const TYPE: usize = 8;
/// Offsets of the length and the first byte of a `bytes` object.
const BYTES_LENGTH: usize = 16;
const BYTES_START: usize = 32;
/// Number of bytes of the first read of a line table. Most tables end in it.
const FIRST: usize = 512;
/// Maximum length of a line table in bytes: that of a function with 200,000 instructions.
const TABLE_MAX: u64 = 1 << 20;
/// Number of bytes of a code object that are read. All versions have fewer without instructions.
const CODE_MAX: usize = 256;
/// The name, and the file, of the function that the interpreter inserts below `__init__` methods.
const PSEUDO: &str = "__init__";

/// Reads the code objects of one interpreter.
#[derive(Debug, Clone)]
pub(in crate::runtime) struct CodeReader {
    pub(super) layout: PythonLayout,
    pub(super) offsets: CodeOffsets,
    pub(super) texts: Texts,
    pub(super) references: ReferenceCount,
    pub(super) format: LineFormat,
    /// The address of the type of `bytes`, or 0 if it is unknown.
    pub(super) bytes_type: u64,
    /// The addresses of the interpreter's static data.
    pub(super) own_data: Range<u64>,
}

/// What a code object refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CodeFields {
    cookie: u32,
    name: u64,
    file: u64,
    lines: u64,
    first_line: u32,
}

/// An object that was read, and the memory that it refers to.
struct Referenced<'a> {
    piece: &'a MemoryPiece<'a>,
    memory: &'a dyn TargetMemory,
}

impl WordReader for Referenced<'_> {
    fn load(&mut self, avma: u64) -> Option<u64> {
        let own = avma.checked_sub(self.piece.avma).and_then(|at| usize::try_from(at).ok());
        own.and_then(|at| self.piece.word(at)).or_else(|| word(self.memory, avma))
    }
}

impl CodeReader {
    /// Reads the function of a code object that had this cookie when it was captured.
    pub(in crate::runtime) fn function(
        &self,
        memory: &dyn TargetMemory,
        object: u64,
        captured: u32,
    ) -> Result<Function, Gone> {
        let code = self.code(memory, object)?;
        if code.cookie != captured {
            return Err(Gone::OtherCode);
        }
        let name = self.texts.read(memory, code.name).ok_or(Gone::Name);
        let file = self.texts.read(memory, code.file).ok_or(Gone::File);
        let table = self.table(memory, code.lines).ok_or(Gone::LineTable);
        // The object kept the strings and the table in use all the time if it is still the same.
        if self.code(memory, object)? != code {
            return Err(Gone::Changing);
        }
        let (name, file) = (name?, file?);
        let is_pseudo = name == PSEUDO && file == PSEUDO && self.own_data.contains(&object);
        let line = if (code.first_line as i32) < 0 { 0 } else { code.first_line };
        let lines = PositionKind::Table(LineTable { format: self.format, bytes: table? });
        Ok(Function { name, file, line, is_pseudo, lines })
    }

    fn code(&self, memory: &dyn TargetMemory, object: u64) -> Result<CodeFields, Gone> {
        if object == 0 || !object.is_multiple_of(8) {
            return Err(Gone::Unreadable);
        }
        let mut bytes = [0; CODE_MAX];
        let bytes = bytes.get_mut(..self.offsets.len).ok_or(Gone::Unreadable)?;
        if memory.read(object, bytes) != bytes.len() {
            return Err(Gone::Unreadable);
        }
        let piece = MemoryPiece { avma: object, bytes };
        let cookie = cookie(&self.layout, object, &mut Referenced { piece: &piece, memory });
        let cookie = cookie.ok_or(Gone::OtherType)?;
        let word = |at: usize| piece.word(at).ok_or(Gone::Unreadable);
        if !self.references.is_positive(word(0)?) {
            return Err(Gone::Freed);
        }
        let CodeOffsets { name, file, first_line, lines, .. } = self.offsets;
        Ok(CodeFields {
            cookie,
            name: word(name)?,
            file: word(file)?,
            lines: word(lines)?,
            first_line: piece.half(first_line).ok_or(Gone::Unreadable)?,
        })
    }

    /// Reads the contents of a `bytes` object.
    fn table(&self, memory: &dyn TargetMemory, avma: u64) -> Option<Box<[u8]>> {
        if avma == 0 || !avma.is_multiple_of(8) {
            return None;
        }
        let mut head = [0; FIRST];
        let got = memory.read(avma, &mut head);
        let head = MemoryPiece { avma, bytes: head.get(..got)? };
        let is_bytes = self.bytes_type == 0 || head.word(TYPE)? == self.bytes_type;
        let len = head.word(BYTES_LENGTH)?;
        if !is_bytes || !self.references.is_positive(head.word(0)?) || len > TABLE_MAX {
            return None;
        }
        let len = len as usize;
        if let Some(bytes) = head.bytes.get(BYTES_START..BYTES_START + len) {
            return Some(bytes.into());
        }
        let mut bytes = vec![0; len];
        let got = memory.read(avma.checked_add(BYTES_START as u64)?, &mut bytes);
        (got == len).then(|| bytes.into_boxed_slice())
    }
}
