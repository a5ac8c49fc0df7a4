//! The frames of a thread that runs Ruby 3.1 or 3.3.
//!
//! The interpreter keeps the frames of a thread or fiber in an array, leaf first, from the context
//! in a variable of the thread. One native frame of its loop runs the frames up to one that native
//! code called. Methods that are written in C have frames in the array, too.
//!
//! A frame of a method has the address of the method's entry in the class, so that its class is
//! known. Other frames have the address of their code: blocks, files and class bodies.
//!
//! # Invariants
//! - At most [`FRAMES_MAX`](super::FRAMES_MAX) frames, each with a bounded number of loads.

mod compiled;
mod cookie;
#[cfg(all(test, not(loom)))]
mod tests;
mod text;
mod walk;

pub use cookie::{RubyObject, cookie};

use super::frames::FrameWriter;
use super::reader::{self, Lost};
use super::word::SectionEnd;
use super::{Captured, CapturedThread, WordReader};
use crate::context::TlsLocation;
use crate::sync::AtomicU64;
use walk::{FrameArray, RubyWalk};

/// The bit of the position of a thread's innermost frame. The frame has stored the position behind
/// the instruction that runs, or that of the instruction.
pub const INNERMOST: u32 = 1 << 31;
/// The position of a frame that is not known.
pub const NOWHERE: u32 = u32::MAX;
/// Offset in a sequence of instructions (an object of the collector) of its body.
pub const SEQUENCE_BODY: u16 = 16;
/// Offsets in a body: of its kind, its number of instruction words, and its instructions.
pub const BODY_KIND: u16 = 0;
/// See [`BODY_KIND`].
pub const BODY_LEN: u16 = 4;
/// See [`BODY_KIND`].
pub const BODY_CODE: u16 = 8;
/// Offsets in a method's entry: of its definition, and the class that has it.
pub const METHOD_DEFINITION: u16 = 16;
/// See [`METHOD_DEFINITION`].
pub const METHOD_CLASS: u16 = 32;
/// Offsets in a definition: of its sequence of instructions, its name, and its number.
pub const DEFINITION_SEQUENCE: u16 = 8;
/// See [`DEFINITION_SEQUENCE`].
pub const DEFINITION_NAME: u16 = 32;
/// See [`DEFINITION_SEQUENCE`].
pub const DEFINITION_NUMBER: u16 = 40;
/// The largest length of a name or path in bytes.
pub const TEXT_MAX: u64 = 1024;

/// Types of objects, in the lowest bits of their first word.
pub const TYPE_MASK: u64 = 0x1f;
/// The type of strings.
pub const STRING: u64 = 0x05;
/// The type of arrays.
pub const ARRAY: u64 = 0x07;
/// The flag of strings and arrays whose contents are elsewhere, or not: of strings that they are,
/// and of arrays that they are not.
pub const EMBEDDING: u64 = 1 << 13;
/// The type of classes.
pub const CLASS: u64 = 0x02;
/// The type of modules.
pub const MODULE: u64 = 0x03;
/// The flag of the class of one object.
pub const SINGLETON: u64 = 1 << 12;

/// The addresses (AVMAs) of an interpreter's variables, and offsets in its structures, in bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RubyLayout {
    /// [`RecordKind`](crate::context::RecordKind) of the variable with the thread's context.
    pub context_kind: u64,
    /// Offset of that variable: see [`TlsLocation`].
    pub context_offset: u64,
    /// Module of that variable: see [`TlsLocation`].
    pub context_module: u64,
    /// From a context to the end of its native stack, and to the length of that.
    pub context_stack: u16,
    /// See [`Self::context_stack`].
    pub context_stack_len: u16,
    /// Length of a frame.
    pub frame_len: u16,
    /// From a frame to the address to which its compiled code returns, which is 0 as long as it has
    /// run no such code. 0 if frames do not tell.
    pub frame_compiled: u16,
    /// From a body to its path: a string, or an array whose first element it is.
    pub body_path: u16,
    /// From a body to its name.
    pub body_name: u16,
    /// From a body to the words with its first line and its place in the source code.
    pub body_place: u16,
    /// The number of these words.
    pub body_place_words: u16,
    /// From a body to the number of its lines' entries, which has 32 bits.
    pub body_lines_len: u16,
    /// From a body to the address of the native code that it was compiled to, or a small number.
    pub body_compiled: u16,
    /// From a class to its number. 0 if classes have none, but their names in themselves.
    pub class_number: u16,
    /// From a class to its name, and from the class of one object to that object. 0 if classes have
    /// numbers.
    pub class_name: u16,
    /// See [`Self::class_name`].
    pub class_object: u16,
    /// From a string to its bytes, if it has them in itself. Where other strings have the number of
    /// their bytes at the same place, its flags have it.
    pub text_start: u16,
    /// Zero.
    pub reserved: [u16; 2],
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<RubyLayout>() == 3 * 8 + 16 * 2);

/// The reads of one interpreter's structures.
type Reader<'a, M> = reader::Reader<'a, RubyLayout, M>;

impl RubyLayout {
    /// Returns the location of the variable with a thread's context.
    pub fn context(&self) -> Option<TlsLocation> {
        TlsLocation::of(self.context_kind, self.context_offset, self.context_module)
    }
}

/// Writes the section of a thread's frames: see [`super::capture`].
pub(super) fn capture(
    index: usize,
    layout: &RubyLayout,
    thread: CapturedThread,
    memory: &mut impl WordReader,
    words: &[AtomicU64],
) -> Captured {
    let mut reader = Reader { layout, memory };
    let array = match FrameArray::of(&mut reader, thread) {
        Ok(Some(array)) => array,
        Ok(None) => return Captured::Nothing,
        Err(Lost) => return Captured::Unreadable,
    };
    let Some(frames) = FrameWriter::into(words) else { return Captured::Refused };
    let mut walk = RubyWalk::into(frames);
    let end = walk.run(&mut reader, &array);
    if walk.frames.count == 0 && end == SectionEnd::Root {
        return Captured::Nothing;
    }
    walk.frames.finish(index, end)
}
