//! The frames of a thread that runs LuaJIT 2.1 on x86-64, built with 64-bit references (`LJ_GC64`).
//!
//! A thread of Lua, that is a program or a coroutine, has its frames in an array. Each call from
//! native code into the interpreter has a frame of fixed size on the native stack, which tells the
//! thread of Lua. A thread of Lua that runs has a list of these frames.
//!
//! A frame of a function has the address of its prototype, which all closures of the function
//! share. The position is the number of an instruction.
//!
//! # Invariants
//! - At most [`FRAMES_MAX`](super::FRAMES_MAX) frames, and a bounded number of steps.
//! - A frame is stored only if its thread of Lua refers to the native frame that has led to it, and
//!   each return position is in the code of the function to which it returns.

mod entry;
mod position;
mod prototype;
mod slot;
mod trace;
mod walk;

pub use prototype::{
    CODE, FIRST_LINE, INSTRUCTIONS, KIND, KIND_STRING, LINE_COUNT, LINES, SOURCE, STRING_BYTES,
    STRING_LENGTH, cookie,
};

use super::frames::FrameWriter;
use super::reader;
use super::word::SectionEnd;
use super::{Captured, CapturedThread, WordReader};
use crate::sync::AtomicU64;
use walk::LuaWalk;

/// The position of a frame of which none is known.
pub const NOWHERE: u32 = u32::MAX;

/// Where an interpreter has what is needed to read frames.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LuaLayout {
    /// The code of the interpreter (AVMAs), all of which runs in frames of one size.
    pub code_start: u64,
    /// See [`Self::code_start`].
    pub code_end: u64,
    /// From the variables of a program to the thread of Lua that runs.
    pub current: u16,
    /// From the variables of a program to the base of the frame in which compiled code began, which
    /// is 0 while no such code runs.
    pub compiled_base: u16,
    /// From the variables of a program to what runs, a number of 32 bits.
    pub state: u16,
    /// From the variables of a program to the array of its traces, which are pieces of compiled
    /// code.
    pub traces: u16,
    /// From a trace to the address of its code. The four bytes before are the length.
    pub machine_code: u16,
    /// From the variables of a program to the addresses of the interpreter's code for each kind of
    /// instruction. They tell which of several interpreters the program runs in.
    pub dispatch: u16,
    /// 0.
    pub reserved: [u16; 2],
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<LuaLayout>() == 2 * 8 + 8 * 2);

/// What the walk of the native stack has found of the interpreter's frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LuaStacks {
    /// An address at or below the innermost frame, or 0 if none was found.
    pub innermost: u64,
    /// The outermost frame, or 0 if there may be others above what was found.
    pub outermost: u64,
}

impl LuaStacks {
    /// What a complete stack has on which no interpreter runs.
    pub const WITHOUT: Self = Self { innermost: u64::MAX, outermost: u64::MAX };

    /// Notes a frame of the interpreter with this stack pointer, above those before.
    pub fn note(&mut self, stack: u64) {
        if self.innermost == 0 {
            self.innermost = stack;
        }
        self.outermost = stack;
    }

    /// Returns what was found by a walk that has ended. `is_complete` tells whether it has reached
    /// the root, and `is_one` whether the process has one interpreter: of several, each has an
    /// outermost frame of its own.
    pub fn found(self, is_complete: bool, is_one: bool) -> Self {
        match (is_complete, self.innermost) {
            (true, 0) => Self::WITHOUT,
            (true, _) if is_one => self,
            (_, innermost) => Self { innermost, outermost: 0 },
        }
    }
}

/// The reads of one interpreter's structures.
type Reader<'a, M> = reader::Reader<'a, LuaLayout, M>;

impl LuaLayout {
    /// Whether an address is in the code of the interpreter.
    pub fn has_code(&self, avma: u64) -> bool {
        (self.code_start..self.code_end).contains(&avma)
    }
}

/// Returns the stack pointer in the frame of the interpreter above an address of the stack, if the
/// code at an address is compiled and runs on top of it. `is_exact` tells whether the code runs at
/// the address, and has not called other code.
pub fn compiled_frame(
    layout: &LuaLayout,
    (avma, is_exact): (u64, bool),
    stack: u64,
    memory: &mut impl WordReader,
) -> Option<u64> {
    let mut reader = Reader { layout, memory };
    let entry = entry::above(&mut reader, stack)?;
    let runs = entry.runs_compiled(&mut reader, avma, is_exact).unwrap_or(false);
    runs.then(|| entry.stack())
}

/// Returns the stack pointer in the frame of the interpreter above an address of the stack, if it
/// is near.
pub fn frame_above(layout: &LuaLayout, stack: u64, memory: &mut impl WordReader) -> Option<u64> {
    entry::above(&mut Reader { layout, memory }, stack).map(|entry| entry.stack())
}

/// Writes the section of a thread's frames: see [`super::capture`].
pub(super) fn capture(
    index: usize,
    layout: &LuaLayout,
    thread: CapturedThread,
    memory: &mut impl WordReader,
    words: &[AtomicU64],
) -> Captured {
    let mut reader = Reader { layout, memory };
    let Some(innermost) = entry::innermost(&mut reader, thread) else { return Captured::Nothing };
    let Some(frames) = FrameWriter::into(words) else { return Captured::Refused };
    let mut walk = LuaWalk::into(frames, thread);
    let end = walk.run(&mut reader, innermost).err().unwrap_or(SectionEnd::Root);
    walk.frames.finish(index, end)
}
