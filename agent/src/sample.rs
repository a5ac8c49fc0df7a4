//! The handler's inner part: take one sample.
//!
//! # Safety
//! Only the tests are unsafe: they make a data segment of memory of their own.

use traceprof_abi::layout::{ClockMode, ControlBlock, Counter, DEPTH_MAX};
use traceprof_abi::segment::DataSegment;
use traceprof_abi::storage::hazard::Unprotected;
use traceprof_abi::storage::log::{Sample, flags};
use traceprof_abi::storage::table::{Put, TraceTable};
use traceprof_abi::sync::Ordering;
use traceprof_abi::thread::ThreadSlot;
use traceprof_abi::unwind::{self, Snapshot, Tables};

use crate::memory::StackMemory;
use crate::signal::Frame;
use crate::sys;

/// The weight of a hit in periods. A hit is one period: the events of this engine fire in user mode
/// only, where each hit is delivered by itself. (In kernel mode they would coalesce until the
/// system call's return.)
///
/// An inherited event starts with a whole period, so a thread of n and a half periods is hit n
/// times; half a period a thread is missing on average, which matters for threads of a
/// millisecond. The first hit of a thread that was born during the recording makes up for it: it
/// weighs two periods every other time, by a coin that the time's bits throw.
fn weigh(thread: &Thread<'_>, time: u64) -> u32 {
    if thread.fresh { 1 + (time.count_ones() & 1) } else { 1 }
}

/// The thread that takes the sample.
struct Thread<'a> {
    tid: u32,
    index: usize,
    slot: &'a ThreadSlot,
    /// The slot was claimed for this sample.
    fresh: bool,
}

/// Takes the sample of a hit that is ours.
pub fn take(data: DataSegment, tables: Tables, frame: &Frame<'_>) {
    let control = data.control();
    let Some(thread) = find_thread(data) else {
        return control.count(Counter::LostThreadSlot);
    };
    let event = frame.info.perf_data as u32;
    if !accept_event(data, thread.slot, event) {
        return control.count(Counter::DuplicateEvent);
    }
    let hazards = data.hazards();
    let hazard = match hazards.protect(thread.tid, &control.active) {
        Ok(hazard) => hazard,
        Err(Unprotected::Exhausted) => return control.count(Counter::LostHazard),
        Err(Unprotected::Overtaken) => return control.count(Counter::LostRotation),
    };
    if hazard.collided {
        control.count(Counter::HazardCollision);
    }
    if !data.threads().is_held(thread.tid, thread.index) {
        hazards.release(hazard);
        return control.count(Counter::LostThreadSlot);
    }
    match (data.table(hazard.table()), tables.snapshot()) {
        (Some(table), Some(snapshot)) => {
            store(data, &thread, &table, &snapshot, frame);
        }
        _ => control.count(Counter::Broken),
    }
    hazards.release(hazard);
}

fn find_thread<'a>(data: DataSegment) -> Option<Thread<'a>> {
    let tid = sys::gettid();
    let threads = data.threads();
    let (index, fresh) = match threads.find(tid) {
        Some(index) => (index, false),
        None => (threads.claim(tid).index()?, true),
    };
    Some(Thread { tid, index, slot: threads.slots.get(index)?, fresh })
}

/// A thread counts the hits of one event. A thread that was found by the recorder after it had
/// inherited an event has two; the recorder closes the younger and marks it retired.
fn accept_event(data: DataSegment, slot: &ThreadSlot, event: u32) -> bool {
    let id = event.wrapping_add(1);
    // Relaxed: the slot is this thread's own; the recorder only reads it.
    let accepted = slot.event.load(Ordering::Relaxed);
    if accepted == id {
        return true;
    }
    if accepted == 0 || is_retired(data, accepted.wrapping_sub(1)) {
        slot.event.store(id, Ordering::Relaxed);
        return true;
    }
    slot.other_event.store(id, Ordering::Relaxed);
    false
}

fn is_retired(data: DataSegment, event: u32) -> bool {
    let word = data.events_retired().get(event as usize / 64);
    // Relaxed: a bit that is seen late costs one more uncounted duplicate.
    word.is_some_and(|word| word.load(Ordering::Relaxed) >> (event % 64) & 1 == 1)
}

fn store(
    data: DataSegment,
    thread: &Thread<'_>,
    table: &TraceTable<'_>,
    snapshot: &Snapshot<'_>,
    frame: &Frame<'_>,
) {
    let control = data.control();
    let registers = frame.context.registers();
    let time = now(control);
    let late = frame.info.perf_flags & sys::TRAP_PERF_FLAG_ASYNC != 0;
    let weight = weigh(thread, time);
    let Some(frames) = data.scratch(thread.index).and_then(|words| words.get(..DEPTH_MAX)) else {
        return control.count(Counter::Broken);
    };
    // Relaxed: an epoch that is seen late only makes the window be verified again.
    let epoch = control.window_epoch.load(Ordering::Relaxed);
    let probe_failed = &control.counters[Counter::ProbeFailed as usize];
    let mut memory = StackMemory::new(snapshot, thread.slot, epoch, registers.sp, probe_failed);
    let unwound = unwind::unwind(snapshot, &registers, &mut memory, frames);
    memory.keep(thread.slot, epoch);
    let depth = unwound.depth.min(DEPTH_MAX);
    let put = table.put(frames.get(..depth).unwrap_or(&[]), unwound.end as u32, weight);
    count_put(control, put);
    let set = |flag: u32, on: bool| if on { flag } else { 0 };
    let stored = table.append(&Sample {
        time,
        trace_id: put.id(),
        slot: thread.index as u32,
        // Relaxed: raised only when this thread is gone.
        generation: thread.slot.generation.load(Ordering::Relaxed),
        tid: thread.tid,
        weight,
        flags: set(flags::LATE, late) | set(flags::FIRST, thread.fresh),
        state: 0,
        reason: unwound.end as u16,
        syscall: 0,
        span: 0,
        root_span: 0,
        event: u64::from(frame.info.perf_data as u32),
    });
    account(control, thread.slot, stored, weight);
    if late {
        control.count(Counter::Late);
    }
    if table.nearly_full() {
        // Relaxed: a hint that the recorder polls.
        control.rotate_wanted.store(1, Ordering::Relaxed);
    }
}

fn count_put(control: &ControlBlock, put: Put) {
    control.count(Counter::Puts);
    match put {
        Put::New(_) => {}
        Put::Hit(_) => control.count(Counter::Hits),
        Put::Dropped => control.count(Counter::DroppedArena),
    }
}

fn account(control: &ControlBlock, slot: &ThreadSlot, stored: bool, weight: u32) {
    if stored {
        control.count(Counter::Samples);
        // Relaxed: counts of this thread, read by the recorder at its leisure.
        slot.samples.fetch_add(1, Ordering::Relaxed);
        slot.weight.fetch_add(u64::from(weight), Ordering::Relaxed);
    } else {
        control.count(Counter::LostLog);
    }
}

fn now(control: &ControlBlock) -> u64 {
    // Relaxed: set before the handler was installed.
    if control.clock_mode.load(Ordering::Relaxed) == ClockMode::Tsc as u32 {
        traceprof_abi::clock::ticks()
    } else {
        sys::monotonic_ns()
    }
}

#[cfg(test)]
mod tests {
    use std::alloc::{Layout, alloc_zeroed};

    use traceprof_abi::layout;

    use super::*;

    /// A data segment of zeros that stays for the test's process.
    fn segment() -> DataSegment {
        let shape = Layout::from_size_align(layout::DATA_LEN as usize, 4096).unwrap();
        // SAFETY: the size is not zero. The system hands out zeroed pages as they are touched.
        let base = unsafe { alloc_zeroed(shape) };
        assert!(!base.is_null());
        // SAFETY: aligned, of the segment's length, never freed, reached through this alone.
        unsafe { DataSegment::new(base) }
    }

    #[test]
    fn a_thread_counts_one_of_two_events() {
        let data = segment();
        let slot = &data.threads().slots[3];
        assert!(accept_event(data, slot, 70));
        assert!(accept_event(data, slot, 70));
        assert!(!accept_event(data, slot, 9), "the second event of a thread");
        assert_eq!(slot.other_event.load(Ordering::Relaxed), 10);
        assert!(accept_event(data, slot, 70));
        // The recorder closes the younger one, whichever it is that counts.
        data.events_retired()[1].store(1 << (70 - 64), Ordering::Relaxed);
        assert!(accept_event(data, slot, 9));
        assert!(!accept_event(data, slot, 71));
    }

    #[test]
    fn an_event_beyond_the_bitmap_is_not_retired() {
        assert!(!is_retired(segment(), u32::MAX));
    }

    #[test]
    fn newborn_threads_weigh_half_a_period_more_on_average() {
        let data = segment();
        let slot = &data.threads().slots[0];
        let sum = |fresh: bool| -> u32 {
            let thread = Thread { tid: 1, index: 0, slot, fresh };
            (0..10_000u64).map(|time| weigh(&thread, time.wrapping_mul(40_503))).sum()
        };
        assert_eq!(sum(false), 10_000);
        assert!((14_500..15_500).contains(&sum(true)), "{}", sum(true));
    }
}
