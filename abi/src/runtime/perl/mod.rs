//! The frames of a thread that runs Perl 5.36 with threads.
//!
//! An interpreter keeps contexts in arrays: of subs, of files and strings that it runs, of loops
//! and blocks. Each array belongs to a stack; a call from native code may begin a new stack. A
//! thread has its interpreter in a variable.
//!
//! A frame of a sub has the address of the sub. A frame of a sub without a name has that of its
//! first statement, and frames of other code that of the statement that runs, each with a
//! [`CodeKind`] in the lowest bits. The position of a frame is a line.
//!
//! # Invariants
//! - At most [`FRAMES_MAX`](super::FRAMES_MAX) frames, and a bounded number of contexts.
//! - A line is stored only if its statement belongs to the code of the frame.

mod cookie;
mod sub;
mod text;
mod walk;

pub use cookie::{CodeKind, PerlObject, cookie};
pub use sub::{SubName, sub_name};

use super::frames::FrameWriter;
use super::reader::{self, Lost};
use super::word::SectionEnd;
use super::{Captured, CapturedThread, WordReader};
use crate::context::TlsLocation;
use crate::sync::AtomicU64;
use walk::PerlWalk;

/// The largest length of a name or path in bytes.
pub const TEXT_MAX: u64 = 1024;
/// Offsets in a statement: of its line, which has 32 bits, and its path.
pub const STATEMENT_LINE: u16 = 36;
/// See [`STATEMENT_LINE`].
pub const STATEMENT_FILE: u16 = 48;
/// Offset of the bytes in a name. Their number is in the upper half of the word before.
pub const NAME_BYTES: u64 = 8;

/// The addresses (AVMAs) of an interpreter's variables, and offsets in its structures, in bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PerlLayout {
    /// [`RecordKind`](crate::context::RecordKind) of the variable with the thread's interpreter.
    pub context_kind: u64,
    /// Offset of that variable: see [`TlsLocation`].
    pub context_offset: u64,
    /// Module of that variable: see [`TlsLocation`].
    pub context_module: u64,
    /// From an interpreter to the operation that runs, or 0 there if none does.
    pub operation: u16,
    /// From an interpreter to the statement that runs.
    pub statement: u16,
    /// From an interpreter to the innermost stack.
    pub stack: u16,
    /// From an interpreter to the first operation of the program.
    pub program: u16,
    /// From an interpreter to the root of the innermost code of a file or string.
    pub evaluated: u16,
    /// The type of operations that begin a statement. The next one is that of the debugger.
    pub statement_type: u16,
    /// The type of the operation that runs a string.
    pub string_type: u16,
    /// From an interpreter to the statement that stands for those of code that is compiled.
    pub compiling: u16,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<PerlLayout>() == 3 * 8 + 8 * 2);

/// The reads of one interpreter's structures.
type Reader<'a, M> = reader::Reader<'a, PerlLayout, M>;

impl PerlLayout {
    /// Returns the location of the variable with a thread's interpreter.
    pub fn context(&self) -> Option<TlsLocation> {
        TlsLocation::of(self.context_kind, self.context_offset, self.context_module)
    }
}

/// Writes the section of a thread's frames: see [`super::capture`].
pub(super) fn capture(
    index: usize,
    layout: &PerlLayout,
    thread: CapturedThread,
    memory: &mut impl WordReader,
    words: &[AtomicU64],
) -> Captured {
    let mut reader = Reader { layout, memory };
    let interpreter = match interpreter_of(&mut reader, thread) {
        Ok(0) => return Captured::Nothing,
        Ok(interpreter) => interpreter,
        Err(Lost) => return Captured::Unreadable,
    };
    let Some(frames) = FrameWriter::into(words) else { return Captured::Refused };
    let Ok(mut walk) = PerlWalk::into(frames, &mut reader, interpreter) else {
        return Captured::Unreadable;
    };
    let end = walk.run(&mut reader);
    if walk.frames.count == 0 && end == SectionEnd::Root {
        return Captured::Nothing;
    }
    walk.frames.finish(index, end)
}

/// Returns the interpreter of a thread, or 0 if it has none.
fn interpreter_of(
    reader: &mut Reader<'_, impl WordReader>,
    thread: CapturedThread,
) -> Result<u64, Lost> {
    let Some(way) = reader.layout.context() else { return Ok(0) };
    let variable = way.variable(thread.pointer, |avma| reader.memory.load(avma))?;
    variable.map_or(Ok(0), |variable| reader.word(variable))
}
