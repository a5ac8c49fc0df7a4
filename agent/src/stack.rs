//! The stack of a sample: walked, and where it can be taken over from the thread's previous sample.

use traceprof_abi::layout::{Counter, DEPTH_MAX};
use traceprof_abi::segment::DataSegment;
use traceprof_abi::sync::AtomicU64;
use traceprof_abi::unwind::{self, EndReason, Previous, Registers, Rest, Snapshot, Walked};

use crate::memory::StackMemory;

/// The frame words of the calling thread's stack, leaf first, and why there are no more. The thread
/// has this slot. `None` if there is no room for them.
pub fn walk<'a>(
    data: DataSegment,
    slot: usize,
    snapshot: &Snapshot<'_>,
    registers: &Registers,
    memory: &mut StackMemory<'_>,
) -> Option<(&'a [AtomicU64], EndReason)> {
    let control = data.control();
    if let Some(previous) = data.previous(slot).and_then(Previous::new) {
        let walked = unwind::unwind_on(snapshot, registers, memory, previous);
        if walked.taken > 0 {
            control.count_by(Counter::StepsTaken, walked.taken as u64);
        }
        if let Some(reason) = reason(&walked) {
            control.count(reason);
        }
        return Some((previous.frames(&walked), walked.unwound.end));
    }
    let frames = data.scratch(slot)?.get(..DEPTH_MAX)?;
    let unwound = unwind::unwind(snapshot, registers, memory, frames);
    control.count(Counter::PreviousUnknown);
    Some((frames.get(..unwound.depth)?, unwound.end))
}

/// Why less was taken over from the thread's previous stack than might have been.
fn reason(walked: &Walked) -> Option<Counter> {
    match walked.rest {
        Rest::Other if walked.taken > 0 => None,
        Rest::Other => Some(Counter::PreviousOther),
        Rest::Unknown => Some(Counter::PreviousUnknown),
        Rest::Changed => Some(Counter::PreviousChanged),
        Rest::Moved => Some(Counter::PreviousMoved),
        Rest::Shallow => Some(Counter::PreviousShallow),
    }
}
