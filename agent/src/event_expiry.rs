//! The handler of a perf event's expiry.
//!
//! # Safety
//! Only the tests are unsafe: they construct the data that the kernel passes to a handler.

use traceprof_abi::event::EventWord;
use traceprof_abi::layout::{AgentState, Counter};
use traceprof_abi::segment::DataSegment;
use traceprof_abi::sync::Ordering;
use traceprof_abi::thread::ThreadSlot;
use traceprof_abi::unwind::Tables;

use crate::frame::Frame;
use crate::sample::{self, Origin};
use crate::thread::find_thread;
use crate::timer;

/// Takes the sample of a perf event's expiry.
#[inline(never)]
pub fn on_event(data: DataSegment, tables: Tables, frame: &Frame<'_>) {
    let event = EventWord(frame.info.value as u32);
    on_expiry(data, tables, frame, |_| event);
}

/// Takes the sample of the expiry of the calling thread's own event, which the recorder has noted
/// in the thread's slot. The signal does not name the event.
#[inline(never)]
pub fn on_notification(data: DataSegment, tables: Tables, frame: &Frame<'_>) {
    on_expiry(data, tables, frame, |slot| {
        // Relaxed, all: a rate that is seen late changes the weight of one sample.
        match slot.event.load(Ordering::Relaxed).checked_sub(1) {
            Some(event) => EventWord(event),
            None => {
                let (control, relaxed) = (data.control(), Ordering::Relaxed);
                let [shift, family] =
                    [&control.rate_shift, &control.event_family].map(|word| word.load(relaxed));
                EventWord::new(0, shift, family)
            }
        }
    });
}

#[inline(always)]
fn on_expiry(
    data: DataSegment,
    tables: Tables,
    frame: &Frame<'_>,
    event_of: impl FnOnce(&ThreadSlot) -> EventWord,
) {
    let control = data.control();
    // Acquire: pairs with the recorder's Release when it turns sampling on.
    if control.state.load(Ordering::Acquire) != AgentState::Sampling as u32 {
        return control.count(Counter::Off);
    }
    let Some(thread) = find_thread(data) else {
        return control.count(Counter::LostThreadSlot);
    };
    // Relaxed: the thread has a timer, so its timer counts its time and not the event.
    if thread.slot.timer.load(Ordering::Relaxed) != 0 {
        return control.count(Counter::DuplicateEvent);
    }
    let origin = Origin::Event(event_of(thread.slot));
    sample::take_or_lose(data, tables, frame, (&thread, origin));
    timer::drain(data, timer::ARM_PER_SAMPLE);
}

#[cfg(test)]
mod tests {
    use traceprof_abi::storage::log::flags;

    use super::*;
    use crate::sample::tests::{Aligned, NO_MODULES, segment, start};
    use crate::sys;
    use crate::thread::known_thread;

    /// The signal of such an event has no room for the event's word.
    #[test]
    fn an_event_that_only_notifies_has_the_weight_in_the_slot() {
        static SEGMENT: Aligned = Aligned(NO_MODULES);
        let data = segment();
        let control = data.control();
        control.rate_shift.store(2, Ordering::Relaxed);
        let all = start(data);
        // SAFETY: zeroes are a valid value of a structure of integers.
        let (mut info, context): (sys::SigInfo, _) = unsafe { std::mem::zeroed() };
        // The place of the descriptor's number, and that of `TRAP_PERF_FLAG_ASYNC`.
        (info.value, info.perf_flags) = (77, sys::TRAP_PERF_FLAG_ASYNC);
        let frame = Frame { info: &info, context: &context, return_slot: &mut 0, is_direct: false };
        // SAFETY: aligned, as long as said, never written.
        let tables = unsafe { Tables::new(SEGMENT.0.as_ptr().cast(), size_of::<Aligned>()) };
        on_notification(data, tables, &frame);
        let slot = known_thread(data).unwrap().slot;
        slot.event.store(EventWord::new(0, 4, 0).0 + 1, Ordering::Relaxed);
        on_notification(data, tables, &frame);
        let samples: Vec<_> = all[0].samples().flatten().collect();
        let seen: Vec<_> = samples.iter().map(|it| (it.weight, it.flags & flags::LATE)).collect();
        assert_eq!(seen, [(4, 0), (16, 0)], "before the recorder has noted the event, and after");
    }
}
