//! The managed frames of a sample, of runtimes that keep them in lists.
//!
//! # Safety
//! Only the thread pointer is read here. [`crate::objects`] reads the runtimes' memory.

use traceprof_abi::context::is_own_block;
use traceprof_abi::layout::{ControlBlock, Counter};
use traceprof_abi::runtime::lua::LuaStacks;
use traceprof_abi::runtime::word::SectionEnd;
use traceprof_abi::runtime::{
    Captured, CapturedThread, NamelessTask, RuntimeBlock, WordReader, capture, capture_task,
    has_frames, holds_lock, may_have_frames, task_room,
};
use traceprof_abi::sync::AtomicU64;

use crate::objects::ProbedMemory;
use crate::sys;

/// The calling thread, and what its registers and its stack tell the runtimes.
#[derive(Debug, Clone, Copy)]
pub struct Interrupted {
    /// The thread's id.
    pub tid: u32,
    /// The program counter.
    pub pc: u64,
    /// The stack pointer.
    pub stack: u64,
    /// As [`CapturedThread`] says.
    pub loop_stack: u64,
    /// As [`CapturedThread`] says.
    pub lua: LuaStacks,
    /// As [`CapturedThread`] says.
    pub registers: [u64; 5],
}

/// What a sample has of the runtimes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Appended {
    /// Number of words that were written.
    pub words: usize,
    /// Number of words after these with the name of the thread's task.
    pub task: usize,
    /// Whether the thread holds the lock that it needs to run functions of a runtime.
    pub holds_lock: bool,
}

/// Writes the calling thread's managed frames, a section for each runtime that has some, and after
/// them the name of the thread's task.
pub fn append(
    control: &ControlBlock,
    runtimes: &[RuntimeBlock],
    interrupted: Interrupted,
    memory: &mut ProbedMemory,
    mut words: &[AtomicU64],
) -> Appended {
    let Interrupted { pc, stack, loop_stack, lua, registers, .. } = interrupted;
    // The others have nothing but frames on the thread's stack.
    if !runtimes.iter().any(|block| may_have_frames(block, lua) || task_room(block) > 0) {
        if runtimes.iter().any(has_frames) {
            control.count(Counter::RuntimeIdle);
        }
        return Appended::default();
    }
    // SAFETY: the recorder publishes a runtime only where the processor and the kernel allow
    // programs to use the instruction. The target cannot write the tables segment.
    let thread_pointer = unsafe { sys::thread_pointer() };
    // A thread without a block of its own would have the frames of its creator.
    if !is_own_block(thread_pointer, interrupted.tid, |avma| memory.load(avma)) {
        control.count(Counter::RuntimeForeignThread);
        return Appended::default();
    }
    let before = words.len();
    let pointer = thread_pointer;
    let thread = CapturedThread { pointer, pc, stack, loop_stack, lua, registers };
    // The deepest stacks leave room for the name.
    let reserved = runtimes.iter().map(task_room).max().unwrap_or(0);
    for numbered in runtimes.iter().enumerate().filter(|(_, block)| has_frames(block)) {
        let room = words.get(..words.len().saturating_sub(reserved)).unwrap_or(&[]);
        match capture(numbered, thread, memory, room) {
            Captured::Section { words: written, end, foreign } => {
                words = words.get(written..).unwrap_or(&[]);
                count_section(control, end, foreign);
            }
            Captured::Nothing => control.count(Counter::RuntimeIdle),
            Captured::Unreadable => control.count(Counter::RuntimeUnreadable),
            Captured::Refused => control.count(Counter::Broken),
        }
    }
    let (mut task, mut is_nameless) = (0, false);
    for runtime in runtimes {
        if task != 0 {
            break;
        }
        match capture_task(runtime, thread_pointer, memory, words) {
            Ok(written) => task = written,
            Err(NamelessTask) => is_nameless = true,
        }
    }
    if task == 0 && is_nameless {
        control.count(Counter::TaskNameless);
    }
    let holds_lock = runtimes.iter().any(|block| holds_lock(block, thread_pointer, memory));
    Appended { words: before.wrapping_sub(words.len()), task, holds_lock }
}

fn count_section(control: &ControlBlock, end: SectionEnd, foreign: usize) {
    match end {
        SectionEnd::Root | SectionEnd::Outer => {}
        SectionEnd::Depth => control.count(Counter::RuntimeDepth),
        SectionEnd::Unreadable | SectionEnd::Unlinked => control.count(Counter::RuntimeUnreadable),
    }
    if foreign > 0 {
        control.count_by(Counter::RuntimeForeignObject, foreign as u64);
    }
}
