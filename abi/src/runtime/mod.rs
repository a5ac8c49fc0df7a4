//! Managed frames: the frames of language runtimes that keep them in memory of their own.
//!
//! The recorder finds a runtime in the target and publishes a [`RuntimeBlock`] with the offsets of
//! its structures. For each sample, the handler follows the runtime's list of frames and appends a
//! section to the frame words ([`word`]). The section holds identities: addresses of code objects,
//! positions in them, and cookies. The recorder reads the names later, when it drains the sample.
//! The recorder uses the same code to read the frames of a thread that it does not sample.
//!
//! # Invariants
//! - No panic, no allocation, and a bound on every loop: this code runs in a signal handler of
//!   another program, whose memory may hold anything.
//! - All reads of the runtime's memory go through [`WordReader`].
//!
//! # Does not
//! - name anything, or align managed frames with native frames: the recorder does both.

mod block;
mod cookie;
mod frames;
pub mod java;
pub mod lua;
pub mod perl;
pub mod php;
pub mod python;
mod reader;
pub mod ruby;
mod task;
pub mod v8;
pub mod word;

pub use block::{BLOCK_BYTES, BLOCK_WORDS, RUNTIMES_MAX, RuntimeBlock};

pub use task::{NamelessTask, TASK_CUT, TASK_NUMBER, TASK_VIRTUAL, TASK_WORDS};

use crate::sync::AtomicU64;
use lua::LuaStacks;
use word::SectionEnd;

/// Maximum number of frames in a section.
pub const FRAMES_MAX: usize = 1024;

/// The memory of the process that has the runtime.
pub trait WordReader {
    /// Loads the eight bytes at a multiple of 8 and never faults. `None` if they are unreadable.
    fn load(&mut self, avma: u64) -> Option<u64>;
}

/// The result of a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Captured {
    /// The runtime does not know the thread, or the thread runs none of its code. Nothing was
    /// written.
    Nothing,
    /// A section was written.
    Section {
        /// Number of words, with the header.
        words: usize,
        /// Why the section ended.
        end: SectionEnd,
        /// Number of frames whose object was not of the expected type.
        foreign: usize,
    },
    /// The way from the thread to its frames was unreadable. Nothing was written.
    Unreadable,
    /// There was no room for a section.
    Refused,
}

/// The thread whose frames are captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CapturedThread {
    /// The thread pointer.
    pub pointer: u64,
    /// The program counter, or 0 if it is unknown.
    pub pc: u64,
    /// The stack pointer, or 0 if it is unknown.
    pub stack: u64,
    /// The stack pointer in the innermost frame of the loop that [`loop_of`] tells, or 0 if it is
    /// unknown.
    pub loop_stack: u64,
    /// Where the frames of the interpreter of LuaJIT are.
    pub lua: LuaStacks,
    /// The registers in which interpreters keep their frames and their positions, or 0 if they are
    /// unknown: r14 and r15 are those of PHP, and rdx, rbx and rbp those of LuaJIT.
    pub registers: [u64; 5],
}

impl CapturedThread {
    /// Makes a thread of which only the thread pointer is known.
    pub const fn of(pointer: u64) -> Self {
        let lua = LuaStacks { innermost: 0, outermost: 0 };
        Self { pointer, pc: 0, stack: 0, loop_stack: 0, lua, registers: [0; 5] }
    }

    /// Whether an address is on the thread's stack, as far as is known. A thread's own block is
    /// above its stack; that of the first thread is elsewhere, below.
    fn has_on_stack(self, avma: u64) -> bool {
        let Self { pointer, stack, .. } = self;
        stack != 0 && stack <= avma && (pointer < stack || avma < pointer)
    }
}

/// Writes the section of a thread's frames in a runtime, leaf first. `index` is the block's number
/// in the snapshot.
pub fn capture(
    (index, block): (usize, &RuntimeBlock),
    thread: CapturedThread,
    memory: &mut impl WordReader,
    words: &[AtomicU64],
) -> Captured {
    if let Some(layout) = block.python() {
        python::capture(index, layout, thread, memory, words)
    } else if let Some(layout) = block.php() {
        php::capture(index, layout, thread, memory, words)
    } else if let Some(layout) = block.ruby() {
        ruby::capture(index, layout, thread, memory, words)
    } else if let Some(layout) = block.perl() {
        perl::capture(index, layout, thread, memory, words)
    } else if let Some(layout) = block.lua() {
        lua::capture(index, layout, thread, memory, words)
    } else {
        Captured::Nothing
    }
}

/// Returns the code (AVMAs) that interprets functions and has its frame and its position in
/// registers, if a runtime has such code.
pub fn loop_of(runtimes: &[RuntimeBlock]) -> Option<core::ops::Range<u64>> {
    let layout = runtimes.iter().find_map(|block| block.php())?;
    (layout.has_registers != 0).then_some(layout.loop_start..layout.loop_end)
}

/// Whether the thread with this thread pointer holds the lock that a thread must hold to run the
/// functions of a runtime. False if the runtime has no such lock, or does not tell who holds it.
pub fn holds_lock(block: &RuntimeBlock, thread_pointer: u64, memory: &mut impl WordReader) -> bool {
    block.python().is_some_and(|layout| python::holds_lock(layout, thread_pointer, memory))
}

/// Whether a runtime keeps frames in memory of its own, not on the thread's stack.
pub fn has_frames(block: &RuntimeBlock) -> bool {
    block.python().is_some()
        || block.php().is_some()
        || block.ruby().is_some()
        || block.perl().is_some()
        || block.lua().is_some()
}

/// Whether a thread may have frames of a runtime. The native stack may tell that it has none.
pub fn may_have_frames(block: &RuntimeBlock, lua: LuaStacks) -> bool {
    has_frames(block) && (lua != LuaStacks::WITHOUT || block.lua().is_none())
}

/// Returns the number of words that the name of a task takes at most, or 0 if the runtime has no
/// tasks.
pub fn task_room(block: &RuntimeBlock) -> usize {
    let is_known = block.python().is_some_and(|layout| layout.task.state_task != python::ABSENT);
    if is_known || block.java().is_some() { TASK_WORDS } else { 0 }
}

/// Writes the name of the task that a thread runs in a runtime: see [`python::task_name`], and
/// [`java`] for virtual threads. Returns the number of words.
pub fn capture_task(
    block: &RuntimeBlock,
    pointer: u64,
    memory: &mut impl WordReader,
    words: &[AtomicU64],
) -> Result<usize, NamelessTask> {
    match (block.python(), block.java()) {
        (Some(layout), _) => python::task_name(layout, pointer, memory, words),
        (_, Some(layout)) => java::carried_name(layout, pointer, memory, words),
        _ => Ok(0),
    }
}
