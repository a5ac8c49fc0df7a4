//! The stack walk of a sample.

use traceprof_abi::layout::DEPTH_MAX;
use traceprof_abi::segment::DataSegment;
use traceprof_abi::sync::AtomicU64;
use traceprof_abi::unwind::{self, EndReason, Registers, Snapshot};

use crate::memory::StackMemory;

/// Returns the frame words of the calling thread's stack, leaf first, and why the walk ended.
/// `slot` is the thread's slot, whose buffer holds the words. `None` if the slot has no buffer.
pub fn walk<'a>(
    data: DataSegment,
    slot: usize,
    snapshot: &Snapshot<'_>,
    registers: &Registers,
    memory: &mut StackMemory<'_>,
) -> Option<(&'a [AtomicU64], EndReason)> {
    let frames = data.scratch(slot)?.get(..DEPTH_MAX)?;
    let unwound = unwind::unwind(snapshot, registers, memory, frames);
    Some((frames.get(..unwound.depth)?, unwound.end))
}
