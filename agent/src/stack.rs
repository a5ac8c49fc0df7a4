//! The stack of a sample: program counters, then managed frames.

use traceprof_abi::segment::DataSegment;
use traceprof_abi::sync::AtomicU64;
use traceprof_abi::unwind::{self, EndReason, Registers, Snapshot, walk_words_max};

use crate::memory::StackMemory;
use crate::runtime::{self, Interrupted};
use crate::thread::Thread;

/// The stack of a sample.
#[derive(Debug, Clone, Copy)]
pub struct Stack<'a> {
    /// The frame words, each part leaf first.
    pub words: &'a [AtomicU64],
    /// Why the walk of the program counters ended.
    pub end: EndReason,
    /// The name of the thread's task, as words of attributes. Empty if it has none.
    pub task: &'a [AtomicU64],
    /// Whether the thread holds the lock that it needs to run functions of a language's runtime.
    pub holds_lock: bool,
}

/// Returns the calling thread's stack. The buffer of the thread's slot holds the words. `None` if
/// the slot has no buffer.
pub fn walk<'a>(
    data: DataSegment,
    thread: &Thread<'_>,
    snapshot: &Snapshot<'_>,
    registers: &Registers,
    memory: &mut StackMemory<'_>,
) -> Option<Stack<'a>> {
    let words = data.scratch(thread.index)?;
    let unwound =
        unwind::unwind(snapshot, registers, memory, words.get(..walk_words_max(snapshot))?);
    let rest = words.get(unwound.depth..)?;
    let interrupted = Interrupted {
        tid: thread.tid,
        pc: registers.pc,
        stack: registers.sp,
        loop_stack: unwound.loop_stack,
        lua: unwound.lua,
        registers: registers.of_interpreter(),
    };
    let (control, objects) = (data.control(), &mut memory.objects);
    let managed = runtime::append(control, snapshot.runtimes(), interrupted, objects, rest);
    let (words, rest) = words.split_at_checked(unwound.depth.wrapping_add(managed.words))?;
    let task = rest.get(..managed.task)?;
    Some(Stack { words, end: unwound.end, task, holds_lock: managed.holds_lock })
}
