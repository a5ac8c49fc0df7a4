//! The handler's inner part: take one sample.
//!
//! # Safety
//! Only the tests are unsafe: they make a data segment of memory of their own.

use core::sync::atomic::compiler_fence;

use traceprof_abi::context::origin;
use traceprof_abi::event::EventWord;
use traceprof_abi::layout::{AgentState, ControlBlock, Counter};
use traceprof_abi::segment::DataSegment;
use traceprof_abi::storage::Dropped;
use traceprof_abi::storage::hazard::Unprotected;
use traceprof_abi::storage::log::{Sample, flags};
use traceprof_abi::storage::slice::{self, Slice, Slices};
use traceprof_abi::storage::table::{Put, TraceTable};
use traceprof_abi::sync::Ordering;
use traceprof_abi::thread::ThreadSlot;
use traceprof_abi::unwind::{self, EndReason, Memory, Registers, Snapshot, Tables};

use crate::clock::now;
use crate::frame::Frame;
use crate::memory::StackMemory;
use crate::thread::{Thread, find_thread};
use crate::{context, event, record, stack, sys, timer};

/// What brought a sample about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The hit of a perf event.
    Event,
    /// The hit of a timer.
    Timer {
        /// Periods that it stands for.
        periods: u32,
    },
}

impl Origin {
    /// Periods that the hit stands for.
    fn weight(self, frame: &Frame<'_>) -> u32 {
        match self {
            // The events fire in user mode only, where each hit is delivered by itself. (In kernel
            // mode they would coalesce until the system call's return.)
            Self::Event => EventWord(frame.info.value as u32).weight(),
            Self::Timer { periods } => periods,
        }
    }
}

/// Takes the sample of a perf event's hit.
pub fn on_event(data: DataSegment, tables: Tables, frame: &Frame<'_>) {
    let control = data.control();
    // Acquire: pairs with the recorder's Release when it turns sampling on.
    if control.state.load(Ordering::Acquire) != AgentState::Sampling as u32 {
        return control.count(Counter::Off);
    }
    let Some(thread) = find_thread(data) else {
        return control.count(Counter::LostThreadSlot);
    };
    // Relaxed: the thread's timer counts its time; whoever arms it wants that.
    if thread.slot.timer.load(Ordering::Relaxed) != 0 {
        return control.count(Counter::DuplicateEvent);
    }
    take_or_lose(data, tables, frame, (&thread, Origin::Event));
}

/// As [`take`], and counts what else a hit stood for whose sample is lost.
pub fn take_or_lose(
    data: DataSegment,
    tables: Tables,
    frame: &Frame<'_>,
    (thread, origin): (&Thread<'_>, Origin),
) {
    let (counts, samples) = (data.control(), &thread.slot.samples);
    // Relaxed, all: counts of this thread's own.
    let stored = samples.load(Ordering::Relaxed);
    let duplicates = &counts.counters[Counter::DuplicateEvent as usize];
    let before = duplicates.load(Ordering::Relaxed);
    take(data, tables, frame, thread, origin);
    if samples.load(Ordering::Relaxed) == stored && duplicates.load(Ordering::Relaxed) == before {
        // The loss is counted where it happened, as one period.
        let besides = origin.weight(frame).saturating_sub(1);
        counts.count_by(Counter::LostOverruns, u64::from(besides));
    }
}

/// Takes a sample of the thread, and serves threads that wait for their timers.
pub fn take(
    data: DataSegment,
    tables: Tables,
    frame: &Frame<'_>,
    thread: &Thread<'_>,
    origin: Origin,
) {
    let control = data.control();
    // Relaxed: only this thread writes it. A hit between the load and the store runs its course and
    // leaves 0 behind; one after the store would write into the frames of this sample.
    if thread.slot.inside.load(Ordering::Relaxed) != 0 {
        return control.count(Counter::Nested);
    }
    thread.slot.inside.store(1, Ordering::Relaxed);
    // The compiler alone could move the frames out of the two stores: a signal interrupts between
    // two instructions and sees all that were before.
    compiler_fence(Ordering::SeqCst);
    take_once(data, tables, frame, thread, origin);
    timer::drain(data, timer::ARM_PER_SAMPLE);
    compiler_fence(Ordering::SeqCst);
    thread.slot.inside.store(0, Ordering::Relaxed);
}

/// The rest, of which nothing is running on this thread.
fn take_once(
    data: DataSegment,
    tables: Tables,
    frame: &Frame<'_>,
    thread: &Thread<'_>,
    origin: Origin,
) {
    let control = data.control();
    let hazards = data.hazards();
    let owner = data.threads().owner(thread.index);
    let hazard = match hazards.protect(owner, &control.active) {
        Ok(hazard) => hazard,
        Err(Unprotected::Exhausted) => return control.count(Counter::LostHazard),
        Err(Unprotected::Overtaken) => return control.count(Counter::LostRotation),
    };
    if hazard.collided {
        control.count(Counter::HazardCollision);
    }
    match (data.table(hazard.table()), tables.snapshot()) {
        // A dead thread's slot, found in the moment before it was retired. From here on it is known
        // to be this thread's own, and nothing is noted in it before.
        _ if !data.threads().is_held(thread.tid, thread.index, owner) => {
            control.count(Counter::LostThreadSlot);
        }
        _ if origin == Origin::Event
            && !event::is_accepted(data, thread.slot, EventWord(frame.info.value as u32)) =>
        {
            control.count(Counter::DuplicateEvent);
        }
        (Some(table), Some(snapshot)) => {
            let mut sample = describe(data, thread, frame, origin);
            context::read(data, &mut sample);
            if sample.source == origin::NONE {
                record::read(data, thread.slot, &table, &mut sample);
            }
            let slices = data.slices(hazard.table());
            store(data, thread, (&table, slices, &snapshot), frame, sample);
        }
        _ => control.count(Counter::Broken),
    }
    if !hazards.release(hazard) {
        // What came of the sample is counted already.
        control.count(Counter::ReleaseFailed);
    }
}

/// All of a sample but its trace.
fn describe(data: DataSegment, thread: &Thread<'_>, frame: &Frame<'_>, origin: Origin) -> Sample {
    let info = frame.info;
    let time = now(data.control());
    let set = |flag: u32, on: bool| if on { flag } else { 0 };
    let late = info.perf_flags & sys::TRAP_PERF_FLAG_ASYNC != 0;
    let (kind, event) = match origin {
        Origin::Event => (set(flags::LATE, late), info.value as u32),
        Origin::Timer { .. } => (flags::TIMER, info.timer() as u32),
    };
    Sample {
        time,
        slot: thread.index as u32,
        // Relaxed: raised only when this thread is gone.
        generation: thread.slot.generation.load(Ordering::Relaxed),
        tid: thread.tid,
        weight: origin.weight(frame),
        flags: kind | set(flags::FIRST, thread.fresh),
        event: u64::from(event),
        ..Sample::default()
    }
}

fn store(
    data: DataSegment,
    thread: &Thread<'_>,
    (table, slices, snapshot): (&TraceTable<'_>, Option<Slices<'_>>, &Snapshot<'_>),
    frame: &Frame<'_>,
    sample: Sample,
) {
    let control = data.control();
    let registers = frame.context.registers();
    // Relaxed: an epoch that is seen late only makes the window be verified again.
    let epoch = control.window_epoch.load(Ordering::Relaxed);
    let probe_failed = &control.counters[Counter::ProbeFailed as usize];
    let mut memory = StackMemory::new(snapshot, thread.slot, epoch, registers.sp, probe_failed);
    let walked = stack::walk(data, thread.index, snapshot, &registers, &mut memory);
    let Some((stack, end)) = walked else {
        return control.count(Counter::Broken);
    };
    memory.keep(thread.slot, epoch);
    let flags = unwind::trace_flags(end, snapshot.epoch());
    let (put, collided) = table.put_probed(stack, flags, sample.weight);
    count_put(control, put, collided);
    let place = table.append_at(&Sample { trace_id: put.id(), reason: end as u16, ..sample });
    let stored = place.is_some();
    account(control, thread.slot, stored, sample.weight);
    if let Some(place) = place
        && !matches!(end, EndReason::Root | EndReason::Depth)
    {
        // Relaxed: published with the ACTIVE word, which the hazard acquired.
        let instance = table.header.instance.load(Ordering::Relaxed) as u32;
        let kept = slices.is_some_and(|slices| {
            keep_slice(slices, (instance, place), snapshot.generation(), &registers, &mut memory)
        });
        if !kept {
            control.count(Counter::SliceLost);
        }
    }
    if stored {
        // Relaxed: a note of this thread's, which says what an idle thread did last. An id of a
        // trace that found no room is of no effect there.
        thread.slot.last_trace.store(put.id(), Ordering::Relaxed);
    }
    if sample.flags & flags::LATE != 0 {
        control.count(Counter::Late);
    }
    if table.nearly_full() {
        // Relaxed: a hint that the recorder polls.
        control.rotate_wanted.store(1, Ordering::Relaxed);
    }
}

/// Stack that a slice has room for.
const SLICE_BYTES: u64 = slice::WORDS as u64 * 8;

/// Keeps the registers and the top of the stack of a sample that did not reach its root.
#[cold]
fn keep_slice(
    slices: Slices<'_>,
    (instance, sample): (u32, usize),
    generation: u64,
    registers: &Registers,
    memory: &mut StackMemory<'_>,
) -> bool {
    let (start, end) = memory.known(registers.sp, SLICE_BYTES);
    let Registers { pc, gpr, .. } = *registers;
    let slice = Slice { sample, generation, pc, registers: gpr, start, count: 0 };
    slices.put(instance, &slice, |avma| if avma < end { memory.load(avma) } else { None })
}

fn count_put(control: &ControlBlock, put: Put, collided: bool) {
    control.count(Counter::Puts);
    if collided {
        control.count(Counter::TableCollision);
    }
    match put {
        Put::New(_) => {}
        Put::Hit(_) => control.count(Counter::Hits),
        Put::Dropped(Dropped::Arena) => control.count(Counter::DroppedArena),
        Put::Dropped(Dropped::Probes) => control.count(Counter::DroppedProbes),
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

#[cfg(test)]
pub(crate) mod tests {
    use std::alloc::{Layout, alloc_zeroed};

    use traceprof_abi::layout;
    use traceprof_abi::storage::rotation::Rotation;
    use traceprof_abi::unwind::tables;

    use super::*;
    use crate::thread::known_thread;

    /// A data segment of zeros that stays for the test's process.
    pub(crate) fn segment() -> DataSegment {
        const PAGE: usize = 4096;
        // Aligned by hand: memory that is asked for aligned is cleared at once, all of it; this is
        // zeroed by the system as it is touched.
        let shape = Layout::from_size_align(layout::DATA_LEN as usize + PAGE, 16).unwrap();
        // SAFETY: the size is not zero.
        let start = unsafe { alloc_zeroed(shape) };
        assert!(!start.is_null());
        // SAFETY: less than a page further on, and a page more than is used was allocated.
        let base = unsafe { start.add(start.align_offset(PAGE)) };
        // SAFETY: aligned, of the segment's length, never freed, reached through this alone.
        unsafe { DataSegment::new(base) }
    }

    /// A hit inside the handler would write its frames over those of the sample that it interrupts.
    #[test]
    fn a_hit_inside_the_handler_is_counted_and_left() {
        let data = segment();
        let control = data.control();
        control.slots_limit.store(1, Ordering::Relaxed);
        control.state.store(AgentState::Sampling as u32, Ordering::Relaxed);
        // SAFETY: zeroes are a valid value of a structure of integers.
        let (info, context) = unsafe { std::mem::zeroed() };
        let frame = Frame { info: &info, context: &context, return_slot: &mut 0 };
        // SAFETY: more than the header's length, of zeroes: no snapshot was ever published.
        let tables = unsafe { Tables::new(data.base(), 4096) };
        let count = |counter: Counter| control.counters[counter as usize].load(Ordering::Relaxed);
        control.pid.store(sys::getpid(), Ordering::Relaxed);
        let thread = find_thread(data).unwrap();
        let slot = thread.slot;
        slot.inside.store(1, Ordering::Relaxed);
        take(data, tables, &frame, &thread, Origin::Event);
        assert_eq!((count(Counter::Nested), count(Counter::Broken)), (1, 0));
        assert_eq!(slot.inside.load(Ordering::Relaxed), 1, "the outer hit is still at it");
        slot.inside.store(0, Ordering::Relaxed);
        take(data, tables, &frame, &thread, Origin::Event);
        // There are no tables to unwind with; what matters is that it tried, and left.
        assert_eq!((count(Counter::Nested), count(Counter::Broken)), (1, 1));
        assert_eq!(slot.inside.load(Ordering::Relaxed), 0);
        assert_eq!(data.hazards().claims().next(), None);
    }

    /// The head of a tables segment with a snapshot that knows no module: stacks end at the first
    /// frame.
    pub(crate) const NO_MODULES: [u64; 16] = {
        let mut words = [0; 16];
        words[0] = tables::MAGIC;
        words[1] = traceprof_abi::ABI_VERSION as u64;
        // The snapshot is at offset 64: no ranges, generation 1.
        words[2] = 64;
        words[9] = 1;
        words
    };

    #[repr(align(16))]
    pub(crate) struct Aligned(pub(crate) [u64; 16]);

    #[test]
    fn a_sample_has_its_weight_and_is_its_threads_last() {
        static SEGMENT: Aligned = Aligned(NO_MODULES);
        let data = segment();
        let control = data.control();
        control.slots_limit.store(1, Ordering::Relaxed);
        control.pid.store(sys::getpid(), Ordering::Relaxed);
        control.state.store(AgentState::Sampling as u32, Ordering::Relaxed);
        let all: Vec<_> = (0..layout::TRACE_TABLES).filter_map(|index| data.table(index)).collect();
        all[0].header.arena_limit.store(64, Ordering::Relaxed);
        all[0].header.log_limit.store(2, Ordering::Relaxed);
        let _ = Rotation::start(&all, &control.active);
        // SAFETY: zeroes are a valid value of a structure of integers.
        let (info, context) = unsafe { std::mem::zeroed() };
        let frame = Frame { info: &info, context: &context, return_slot: &mut 0 };
        // SAFETY: aligned, as long as said, never written.
        let tables = unsafe { Tables::new(SEGMENT.0.as_ptr().cast(), size_of::<Aligned>()) };
        let slot = find_thread(data).unwrap().slot;
        let sampled = || {
            let [samples, weight] = [&slot.samples, &slot.weight];
            (samples.load(Ordering::Relaxed), weight.load(Ordering::Relaxed))
        };
        let mut last = 0;
        for (origin, total) in [(Origin::Timer { periods: 7 }, (1, 7)), (Origin::Event, (2, 8))] {
            take(data, tables, &frame, &known_thread(data).unwrap(), origin);
            assert_eq!(sampled(), total);
            let sample = all[0].samples().last().flatten().unwrap();
            last = slot.last_trace.load(Ordering::Relaxed);
            assert_eq!((last, last >> 32), (sample.trace_id, 1));
            assert_eq!(sample.tid, sys::gettid());
        }
        let trace = all[0].traces().find(|trace| trace.id == last).unwrap();
        assert_eq!(trace.weight, 8, "both have the same stack");
        // A second event of the same thread, and one of a thread that has a timer.
        // SAFETY: zeroes are a valid value of a structure of integers.
        let mut other: sys::SigInfo = unsafe { std::mem::zeroed() };
        other.value = u64::from(EventWord::new(9, 4, 1).0);
        let slow = Frame { info: &other, context: &context, return_slot: &mut 0 };
        assert_eq!(Origin::Event.weight(&slow), 16);
        other.value = 9;
        let other = Frame { info: &other, context: &context, return_slot: &mut 0 };
        assert_eq!(Origin::Event.weight(&other), 1);
        let duplicates =
            || control.counters[Counter::DuplicateEvent as usize].load(Ordering::Relaxed);
        on_event(data, tables, &other);
        assert_eq!((duplicates(), slot.other_event.load(Ordering::Relaxed)), (1, 10));
        slot.timer.store(5, Ordering::Relaxed);
        on_event(data, tables, &frame);
        assert_eq!((duplicates(), sampled()), (2, (2, 8)));
        slot.timer.store(0, Ordering::Relaxed);
        // The log is full: what is not stored is nobody's last.
        slot.last_trace.store(0, Ordering::Relaxed);
        take(data, tables, &frame, &known_thread(data).unwrap(), Origin::Event);
        assert_eq!((sampled(), slot.last_trace.load(Ordering::Relaxed)), ((2, 8), 0));
        let lost = control.counters[Counter::LostLog as usize].load(Ordering::Relaxed);
        assert_eq!(lost, 1);
    }

    /// As a thread finds it that was given a dead thread's id just before the slot was retired.
    #[test]
    fn nothing_is_noted_in_a_slot_that_is_not_the_threads_own() {
        let data = segment();
        let control = data.control();
        control.slots_limit.store(2, Ordering::Relaxed);
        control.pid.store(sys::getpid(), Ordering::Relaxed);
        let thread = find_thread(data).unwrap();
        let threads = data.threads();
        assert!(threads.mark_retired(thread.tid, thread.index, 0));
        assert!(threads.recycle(thread.index, 0));
        assert_eq!(threads.claim(1 << 30).index(), Some(thread.index));
        // SAFETY: zeroes are a valid value of structures of integers.
        let (info, context) = unsafe { std::mem::zeroed() };
        let frame = Frame { info: &info, context: &context, return_slot: &mut 0 };
        // SAFETY: more than the header's length, of zeroes: no snapshot was ever published.
        let tables = unsafe { Tables::new(data.base(), 4096) };
        take(data, tables, &frame, &thread, Origin::Event);
        let lost = control.counters[Counter::LostThreadSlot as usize].load(Ordering::Relaxed);
        assert_eq!((lost, thread.slot.event.load(Ordering::Relaxed)), (1, 0));
        assert_eq!(data.hazards().claims().next(), None);
    }
}
