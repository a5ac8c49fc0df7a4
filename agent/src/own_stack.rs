//! The stack on which the handler takes a sample: memory of the thread's slot, not the thread's
//! stack. The thread's stack may have room for little more than the kernel's signal frame.
//!
//! # Invariants
//! - One handler at a time is on the stack of a slot. The caller has found the slot to be its
//!   thread's own, under its hazard, and has swapped [`ThreadSlot::inside`] from 0 to 1. A forked
//!   child in a pid namespace of its own may have the same thread id and shares the memory. It
//!   finds the word set.
//! - No other handler runs on top of that stack, whose end it does not know: the handler moves
//!   there only if the kernel called it directly ([`Frame::is_direct`]). Then all signals are
//!   blocked until it returns. A handler of the application that calls the agent's may let others
//!   interrupt it, so that call stays on the stack on which it came. (An application that installs
//!   the agent's handler with the agent's restorer and a smaller mask, by the bare system call,
//!   would deceive this check. Its handlers have the rest of this stack and the frame buffer.)
//! - A return address to the application is never on that stack: the handler leaves it before it
//!   returns.
//!
//! [`ThreadSlot::inside`]: traceprof_abi::thread::ThreadSlot::inside
//!
//! # Safety
//! Only the switch itself is unsafe.

use traceprof_abi::segment::DataSegment;

use crate::frame::Frame;
use crate::sys;

/// Calls `work` on the stack of the calling thread's slot, or on the current stack if others may
/// interrupt the call.
///
/// The slot is the thread's own, and no other handler is on its stack (see the invariants).
pub fn run<T>(
    data: DataSegment,
    frame: &Frame<'_>,
    slot: usize,
    work: extern "C" fn(&T),
    argument: &T,
) {
    let own = if frame.is_direct { data.handler_stack(slot) } else { None };
    let top = own.map_or(core::ptr::null(), |words| words.as_ptr_range().end);
    // SAFETY: `top` is null, or the end of memory that nothing else uses until the call returns.
    // `work` takes a pointer to a `T`, and this is one.
    unsafe { sys::call_on(top.cast(), (&raw const *argument).cast(), work as *const ()) };
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use traceprof_abi::layout::HANDLER_STACK_BYTES;

    use super::*;
    use crate::sample::tests::segment;

    struct Seen {
        place: Cell<u64>,
    }

    extern "C" fn look(seen: &Seen) {
        let local = 0u64;
        seen.place.set(core::ptr::from_ref(core::hint::black_box(&local)).addr() as u64);
    }

    #[test]
    fn only_a_handler_that_nothing_interrupts_moves_to_the_slots_stack() {
        let data = segment();
        // SAFETY: zeroes are a valid value of structures of integers.
        let (info, context) = unsafe { std::mem::zeroed() };
        let place = |slot: usize, is_direct: bool| {
            let frame = Frame { info: &info, context: &context, return_slot: &mut 0, is_direct };
            let seen = Seen { place: Cell::new(0) };
            run(data, &frame, slot, look, &seen);
            seen.place.get()
        };
        for slot in [0, 7] {
            let start = data.handler_stack(slot).unwrap().as_ptr() as u64;
            let own = start..start + HANDLER_STACK_BYTES;
            assert!(own.contains(&place(slot, true)) && !own.contains(&place(slot, false)));
        }
        let frames = data.scratch(7).unwrap().as_ptr_range();
        assert_eq!(frames.end, data.handler_stack(7).unwrap().as_ptr(), "it cannot reach others'");
        let end = data.handler_stack(6).unwrap().as_ptr_range().end;
        assert_eq!(frames.start, end, "slots are next to each other");
        // Without a slot it stays where it is.
        let here = core::ptr::from_ref(&frames).addr() as u64;
        assert!(place(usize::MAX, true).abs_diff(here) < 1 << 16);
    }
}
