//! The frames of a process that runs PHP 8.1 to 8.4.
//!
//! The interpreter keeps its frames in a list, leaf first, from a variable of the process. One
//! native frame of its loop runs the frames up to one that native code called. Functions that are
//! written in C have frames in the list, too.
//!
//! # Invariants
//! - At most [`FRAMES_MAX`](super::FRAMES_MAX) frames, each with a bounded number of loads.
//! - A line is stored only if it is that of the frame's position at this moment.

mod cookie;
mod line;
#[cfg(all(test, not(loom)))]
mod tests;
mod walk;

pub use cookie::{TextHash, cookie, cookie_in_class};

use super::frames::FrameWriter;
use super::reader::{self, Lost};
use super::word::SectionEnd;
use super::{Captured, CapturedThread, WordReader};
use crate::sync::AtomicU64;
use walk::PhpWalk;

/// Stands for a field that is not known in this version.
pub const ABSENT: u16 = u16::MAX;
/// The value of [`PhpLayout::has_registers`] in a process with compiled functions, whose code has
/// other registers: only in the loop itself does the interpreter have those.
pub const REGISTERS_IN_LOOP: u16 = 2;
/// Offsets in a function: of its kind and its flags, its name, and its class.
pub const FUNCTION_KIND: u64 = 0;
/// See [`FUNCTION_KIND`].
pub const FUNCTION_NAME: u16 = 8;
/// See [`FUNCTION_KIND`].
pub const FUNCTION_CLASS: u16 = 16;
/// Offset of the name of a class.
pub const CLASS_NAME: u16 = 8;
/// Offsets in a string: of its hash, its length, and its bytes.
pub const TEXT_HASH: u16 = 8;
/// See [`TEXT_HASH`].
pub const TEXT_LENGTH: u16 = 16;
/// See [`TEXT_HASH`].
pub const TEXT_START: u16 = 24;

/// The kind of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FunctionKind {
    /// It is written in C.
    Internal,
    /// It is written in PHP, or is what a file has outside of functions.
    User,
    /// It is the code of a string.
    Eval,
}

impl FunctionKind {
    /// Returns the kind that the first word of a function tells.
    pub fn of(word: u64) -> Option<Self> {
        match word as u8 {
            1 => Some(Self::Internal),
            2 => Some(Self::User),
            4 => Some(Self::Eval),
            _ => None,
        }
    }
}

/// The addresses (AVMAs) of an interpreter's variables, and offsets in its structures, in bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PhpLayout {
    /// The variable with the innermost frame.
    pub current: u64,
    /// The variable with an address on the stack of the thread that runs PHP code.
    pub bailout: u64,
    /// The variable with the position at which an exception was thrown, or 0 if it is unknown.
    pub thrown: u64,
    /// The positions that stand for [`Self::thrown`] while an exception is handled.
    pub handling: u64,
    /// The start of the loop that interprets functions.
    pub loop_start: u64,
    /// Its end.
    pub loop_end: u64,
    /// From a function to its instructions.
    pub code: u16,
    /// From a function to the number of its instructions, which has 32 bits.
    pub code_len: u16,
    /// From a function to the name of its file.
    pub file: u16,
    /// From a function to its first line and its last one, each of 32 bits.
    pub lines: u16,
    /// From a generator to its frame, or [`ABSENT`].
    pub generator_frame: u16,
    /// From a generator to the one to which it has delegated.
    pub generator_inner: u16,
    /// From a generator to the frame that stands for its own while it delegates.
    pub generator_placeholder: u16,
    /// 1 if the interpreter keeps its frame and its position in registers, or
    /// [`REGISTERS_IN_LOOP`].
    pub has_registers: u16,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<PhpLayout>() == 6 * 8 + 8 * 2);

/// The reads of one interpreter's structures.
type Reader<'a, M> = reader::Reader<'a, PhpLayout, M>;

/// Writes the section of a thread's frames: see [`super::capture`].
pub(super) fn capture(
    index: usize,
    layout: &PhpLayout,
    thread: CapturedThread,
    memory: &mut impl WordReader,
    words: &[AtomicU64],
) -> Captured {
    let mut reader = Reader { layout, memory };
    let Ok(leaf) = reader.word(layout.current) else { return Captured::Unreadable };
    if leaf == 0 {
        return Captured::Nothing;
    }
    let Some(frames) = FrameWriter::into(words) else { return Captured::Refused };
    let Ok(mut walk) = PhpWalk::into(frames, &mut reader, thread) else {
        return Captured::Unreadable;
    };
    let end = walk.run(&mut reader, leaf);
    if walk.frames.count == 0 && end == SectionEnd::Root {
        return Captured::Nothing;
    }
    walk.frames.finish(index, end)
}
