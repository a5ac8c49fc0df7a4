//! The frames of a thread that runs CPython 3.8 to 3.14.
//!
//! The interpreter keeps a thread's frames in a list, leaf first, from the thread's state. The
//! offsets differ between versions; [`PythonLayout`] has those of one interpreter.
//!
//! # Invariants
//! - At most [`FRAMES_MAX`] frames and [`SKIPPED_MAX`] skipped ones, each with a bounded number of
//!   loads.

mod lists;
mod lock;
mod task;
#[cfg(all(test, not(loom)))]
mod tests;
mod walk;

pub use lock::holds_lock;

use super::cookie::CookieParts;
use super::frames::FrameWriter;
use super::reader::{self, Lost};
use super::word::{ENTRY, FOREIGN, ManagedFrame, SectionEnd};
use super::{Captured, CapturedThread, FRAMES_MAX, WordReader};
use crate::sync::AtomicU64;
use lists::FrameLists;
use walk::Walk;

pub use task::{TaskLayout, task_name};

/// Maximum number of frames without code of the program that are skipped in one list.
pub const SKIPPED_MAX: usize = FRAMES_MAX;
/// Stands for a field that this version does not have.
pub const ABSENT: u16 = u16::MAX;
/// Number of pointers from which the cookie of a code object is computed.
pub const COOKIE_WORDS: usize = 6;
/// Number of 32-bit fields from which the cookie of a code object is computed.
pub const COOKIE_HALVES: usize = 3;

/// How the instruction field of a frame gives the position, in bytes from the first instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Instruction {
    /// A 32-bit offset in bytes (3.8 and 3.9).
    Bytes = 0,
    /// A 32-bit offset in units of two bytes (3.10).
    Units = 1,
    /// A pointer (3.11 and later).
    Pointer = 2,
}

/// The offsets in one interpreter's structures, in bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PythonLayout {
    /// [`RecordKind`](crate::context::RecordKind) of the variable with the thread's state, which is
    /// 0 while the thread does not hold the interpreter's lock. 0 if there is no such variable.
    pub state_kind: u64,
    /// Offset of that variable: see [`TlsLocation`](crate::context::TlsLocation).
    pub state_offset: u64,
    /// Module of that variable: see [`TlsLocation`](crate::context::TlsLocation).
    pub state_module: u64,
    /// Distance from the thread pointer to the value of the thread-specific key that holds the
    /// thread's state, or 0 for none. With [`Self::key_value`], to a pointer to the key's block.
    pub key: u64,
    /// Offset of the value in the key's block, or `u64::MAX` if there is no such block.
    pub key_value: u64,
    /// Address of the variable with the state of the thread that holds the interpreter's lock
    /// (AVMA), or 0 if [`Self::state_kind`] leads to it.
    pub current_state: u64,
    /// Address of the type of code objects (AVMA).
    pub code_type: u64,
    /// The bits of [`Self::frame_code`] that are an address.
    pub code_mask: u64,
    /// Address of the pointer to the first interpreter of the process (AVMA).
    pub interpreters: u64,
    /// Where asyncio's tasks are.
    pub task: TaskLayout,
    /// From a thread's state to the current frame, or to [`Self::chain_frame`]'s structure.
    pub state_frame: u16,
    /// From that structure to the current frame, or [`ABSENT`] if there is no such structure.
    pub chain_frame: u16,
    /// From a frame to its caller.
    pub frame_previous: u16,
    /// From a frame to its code object.
    pub frame_code: u16,
    /// From a frame to its instruction.
    pub frame_instruction: u16,
    /// [`Instruction`].
    pub instruction: u16,
    /// From a frame to the byte that is not 0 if native code called it, or [`ABSENT`].
    pub frame_entry: u16,
    /// From a frame to the byte that tells who owns it, or [`ABSENT`].
    pub frame_owner: u16,
    /// The least value of that byte for a frame that only marks a call from native code.
    pub owner_shim: u16,
    /// 1 if native code calls every frame.
    pub is_each_entry: u16,
    /// From a code object to its first instruction.
    pub code_start: u16,
    /// Pointers of a code object that enter its cookie, or [`ABSENT`].
    pub cookie_words: [u16; COOKIE_WORDS],
    /// 32-bit fields of a code object that enter its cookie, or [`ABSENT`].
    pub cookie_halves: [u16; COOKIE_HALVES],
    /// From a code object to the string whose hash enters its cookie, or [`ABSENT`].
    pub cookie_name: u16,
    /// From an interpreter to the next one.
    pub interpreter_next: u16,
    /// From an interpreter to the state of its first thread.
    pub interpreter_threads: u16,
    /// From a thread's state to the next one.
    pub state_next: u16,
    /// From a thread's state to its thread pointer.
    pub state_pointer: u16,
    /// From a thread's state to the structure on its stack with the innermost call from native
    /// code, or [`ABSENT`]: a frame tells it, or nothing does.
    pub state_call: u16,
    /// From that structure to that of the next call, or [`ABSENT`].
    pub call_previous: u16,
    /// Zero.
    pub reserved: [u16; 1],
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<PythonLayout>() == 12 * 8 + 28 * 2);
/// Offset of an object's type.
const OBJECT_TYPE: u64 = 8;
/// Offset of a string's hash, in every version.
const STRING_HASH: u16 = 24;

/// The reads of one interpreter's structures.
type Reader<'a, M> = reader::Reader<'a, PythonLayout, M>;

impl<M: WordReader> Reader<'_, M> {
    /// Returns the state of the thread with this thread pointer, or 0.
    fn thread_state(&mut self, thread_pointer: u64) -> Result<u64, Lost> {
        if let Some(way) = self.layout.state_variable() {
            let variable = way.variable(thread_pointer, |avma| self.memory.load(avma))?;
            // Each interpreter of the process has states of its own. The variable knows the
            // current one.
            let state = variable.map_or(Ok(0), |variable| self.word(variable))?;
            if state != 0 {
                return Ok(state);
            }
        }
        let PythonLayout { key, key_value, .. } = *self.layout;
        if key == 0 {
            return Ok(0);
        }
        let value = self.word(thread_pointer.wrapping_add(key))?;
        if key_value == u64::MAX || value == 0 {
            return Ok(value);
        }
        self.word(value.wrapping_add(key_value))
    }

    /// Returns the innermost frame in the list of a thread's state, or 0.
    fn leaf(&mut self, state: u64) -> Result<u64, Lost> {
        let frame = self.field(state, self.layout.state_frame)?;
        if frame == 0 || self.layout.chain_frame == ABSENT {
            return Ok(frame);
        }
        self.field(frame, self.layout.chain_frame)
    }

    /// Whether a frame only marks a call from native code.
    fn is_shim(&mut self, frame: u64) -> Result<bool, Lost> {
        let PythonLayout { frame_owner, owner_shim, .. } = *self.layout;
        Ok(frame_owner != ABSENT && u16::from(self.byte(frame, frame_owner)?) >= owner_shim)
    }

    fn managed_frame(&mut self, frame: u64, code: u64) -> Result<ManagedFrame, Lost> {
        let PythonLayout { frame_entry, is_each_entry, code_start, .. } = *self.layout;
        let is_entry =
            is_each_entry != 0 || frame_entry != ABSENT && self.byte(frame, frame_entry)? != 0;
        let at = self.layout.frame_instruction;
        let position = match self.layout.instruction {
            it if it == Instruction::Pointer as u16 => {
                let start = code.wrapping_add(u64::from(code_start));
                self.field(frame, at)?.wrapping_sub(start) as u32
            }
            it if it == Instruction::Units as u16 => self.half(frame, at)?.wrapping_mul(2),
            _ => self.half(frame, at)?,
        };
        let flags = if is_entry { ENTRY } else { 0 };
        Ok(match cookie(self.layout, code, self.memory) {
            Some(cookie) => ManagedFrame { object: code, flags, position, cookie },
            None => ManagedFrame { object: code, flags: flags | FOREIGN, position, cookie: 0 },
        })
    }
}

/// Returns the cookie of a code object. `None` if it is no code object, or unreadable.
///
/// The recorder compares the cookie at the capture with that of the object that it reads later.
pub fn cookie(layout: &PythonLayout, code: u64, memory: &mut impl WordReader) -> Option<u32> {
    let mut reader = Reader { layout, memory };
    let kind = reader.word(code.wrapping_add(OBJECT_TYPE)).ok()?;
    if kind != layout.code_type {
        return None;
    }
    let mut parts = CookieParts::NONE;
    for at in layout.cookie_words.into_iter().filter(|at| *at != ABSENT) {
        parts = parts.with(reader.field(code, at).ok()?);
    }
    for at in layout.cookie_halves.into_iter().filter(|at| *at != ABSENT) {
        parts = parts.with(u64::from(reader.half(code, at).ok()?));
    }
    if layout.cookie_name != ABSENT {
        // A program that creates functions all the time creates the next one, and all that it
        // refers to, at the addresses of the last one.
        let name = reader.field(code, layout.cookie_name).ok()?;
        let hash = reader.field(name, STRING_HASH).ok()?;
        parts = parts.with(hash);
    }
    Some(parts.finish())
}

/// Writes the section of a thread's frames: see [`super::capture`].
pub fn capture(
    index: usize,
    layout: &PythonLayout,
    thread: CapturedThread,
    memory: &mut impl WordReader,
    words: &[AtomicU64],
) -> Captured {
    let mut reader = Reader { layout, memory };
    let Ok(mut lists) = FrameLists::of(&mut reader, thread) else { return Captured::Unreadable };
    if lists.innermost().is_none() {
        return Captured::Nothing;
    }
    let Some(frames) = FrameWriter::into(words) else { return Captured::Refused };
    let mut walk = Walk::into(frames);
    let end = walk.run(&mut reader, &mut lists);
    if !walk.has_code && end == SectionEnd::Root {
        return Captured::Nothing;
    }
    walk.frames.finish(index, end)
}
