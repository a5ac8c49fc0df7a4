//! The stack of a sample: program counters, then managed frames.

use traceprof_abi::layout::DEPTH_MAX;
use traceprof_abi::segment::DataSegment;
use traceprof_abi::sync::AtomicU64;
use traceprof_abi::unwind::{self, EndReason, Registers, Snapshot};

use crate::memory::StackMemory;
use crate::runtime;
use crate::thread::Thread;

/// Returns the frame words of the calling thread's stack, each part leaf first, and why the walk of
/// the program counters ended. The buffer of the thread's slot holds the words. `None` if the slot
/// has no buffer.
pub fn walk<'a>(
    data: DataSegment,
    thread: &Thread<'_>,
    snapshot: &Snapshot<'_>,
    registers: &Registers,
    memory: &mut StackMemory<'_>,
) -> Option<(&'a [AtomicU64], EndReason)> {
    let words = data.scratch(thread.index)?;
    let unwound = unwind::unwind(snapshot, registers, memory, words.get(..DEPTH_MAX)?);
    let rest = words.get(unwound.depth..)?;
    let managed = runtime::append(data.control(), snapshot.runtimes(), thread.tid, rest);
    Some((words.get(..unwound.depth.wrapping_add(managed))?, unwound.end))
}
