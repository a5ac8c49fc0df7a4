//! The inner part of the handler: it takes one sample.
//!
//! # Safety
//! Only the tests are unsafe: they create a data segment in memory of their own.

use traceprof_abi::context::origin;
use traceprof_abi::event::EventWord;
use traceprof_abi::layout::{ControlBlock, Counter};
use traceprof_abi::segment::DataSegment;
use traceprof_abi::signal::TRAP_PERF;
use traceprof_abi::storage::Dropped;
use traceprof_abi::storage::hazard::Unprotected;
use traceprof_abi::storage::log::{Sample, flags};
use traceprof_abi::storage::slice::{self, Slice, Slices};
use traceprof_abi::storage::table::{Put, TraceTable};
use traceprof_abi::sync::{AtomicU64, Ordering};
use traceprof_abi::thread::ThreadSlot;
use traceprof_abi::unwind::{self, EndReason, Memory, Registers, Snapshot, Tables};

use crate::clock::now;
use crate::frame::Frame;
use crate::memory::StackMemory;
use crate::stack::Stack;
use crate::thread::{Thread, own_block};
use crate::{context, event, otel_record, own_stack, stack, sys};

/// The trigger of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The expiry of a perf event.
    Event(EventWord),
    /// The expiry of a timer.
    Timer {
        /// Number of periods that the expiry stands for.
        periods: u32,
    },
}

impl Origin {
    /// Returns the number of periods that the expiry stands for.
    fn weight(self) -> u32 {
        match self {
            // The events expire in user mode only, where the kernel delivers each expiry
            // separately. (In kernel mode they would coalesce until the system call returns.)
            Self::Event(event) => event.weight(),
            Self::Timer { periods } => periods,
        }
    }
}

/// Like [`take`], and also counts the further periods of the expiry if its sample is lost.
pub fn take_or_lose(
    data: DataSegment,
    tables: Tables,
    frame: &Frame<'_>,
    (thread, origin): (&Thread<'_>, Origin),
) {
    let (counts, samples) = (data.control(), &thread.slot.samples);
    // Relaxed, all: this thread's own counts.
    let stored = samples.load(Ordering::Relaxed);
    let duplicates = &counts.counters[Counter::DuplicateEvent as usize];
    let before = duplicates.load(Ordering::Relaxed);
    take(data, tables, frame, thread, origin);
    if samples.load(Ordering::Relaxed) == stored && duplicates.load(Ordering::Relaxed) == before {
        // The loss was already counted as one period; the others are added.
        let besides = origin.weight().saturating_sub(1);
        counts.count_by(Counter::LostOverruns, u64::from(besides));
    }
}

/// Takes a sample of the thread.
pub fn take(
    data: DataSegment,
    tables: Tables,
    frame: &Frame<'_>,
    thread: &Thread<'_>,
    origin: Origin,
) {
    let (control, slot) = (data.control(), thread.slot);
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
    // The slot belongs to a dead thread if this thread found it just before it was retired. Once
    // this check has passed, the slot is known to be this thread's own. Nothing is written to it
    // before.
    if !data.threads().is_held(thread.tid, thread.index, owner) {
        control.count(Counter::LostThreadSlot);
    } else if let Origin::Event(event) = origin
        && !event::is_accepted(data, slot, event)
    {
        control.count(Counter::DuplicateEvent);
    // An expiry before this step completes. One after it would overwrite this sample.
    } else if !slot.enter() {
        control.count(Counter::Nested);
    } else {
        let task = Task { data, tables, frame, thread, origin, table: hazard.table() };
        own_stack::run(data, frame, thread.index, take_once, &task);
        slot.leave();
    }
    if !hazards.release(hazard) {
        // The sample's own outcome is counted already.
        control.count(Counter::ReleaseFailed);
    }
}

/// A sample to take: of this thread, into this table.
struct Task<'a> {
    data: DataSegment,
    tables: Tables,
    frame: &'a Frame<'a>,
    thread: &'a Thread<'a>,
    origin: Origin,
    table: usize,
}

/// Takes the sample. The thread is not inside another sample.
extern "C" fn take_once(task: &Task<'_>) {
    let &Task { data, tables, frame, thread, origin, table } = task;
    let (Some(traces), Some(snapshot)) = (data.table(table), tables.snapshot()) else {
        return data.control().count(Counter::Broken);
    };
    let mut sample = describe(data, thread, frame, origin);
    context::read(data, &mut sample);
    if sample.source == origin::NONE {
        otel_record::read(data, thread.slot, &traces, &mut sample);
    }
    store(data, thread, (&traces, data.slices(table), &snapshot), frame, sample);
}

/// Returns the sample without its trace.
fn describe(data: DataSegment, thread: &Thread<'_>, frame: &Frame<'_>, origin: Origin) -> Sample {
    let info = frame.info;
    let time = now(data.control());
    let set = |flag: u32, on: bool| if on { flag } else { 0 };
    let late = info.code == TRAP_PERF && info.perf_flags & sys::TRAP_PERF_FLAG_ASYNC != 0;
    let (kind, event) = match origin {
        Origin::Event(event) => (set(flags::LATE, late), event.0),
        Origin::Timer { .. } => (flags::TIMER, info.timer() as u32),
    };
    Sample {
        time,
        slot: thread.index as u32,
        // Relaxed: incremented only after this thread has exited.
        generation: thread.slot.generation.load(Ordering::Relaxed),
        tid: thread.tid,
        weight: origin.weight(),
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
    // Relaxed: an epoch that is seen late only causes the window to be verified again.
    let epoch = control.window_epoch.load(Ordering::Relaxed);
    let mut memory = StackMemory::new(snapshot, thread.slot, epoch, registers.sp, control);
    let walked = stack::walk(data, thread, snapshot, &registers, &mut memory);
    let Some(Stack { words, end, task, holds_lock }) = walked else {
        return control.count(Counter::Broken);
    };
    let task = if task.is_empty() { 0 } else { keep_name(control, table, task) };
    let held = if holds_lock { flags::HOLDS_LOCK } else { 0 };
    let sample = Sample { flags: sample.flags | held, ..sample };
    memory.keep(thread.slot, epoch);
    let trace_flags = unwind::trace_flags(end, snapshot.epoch());
    let (put, collided) = table.put_probed(words, trace_flags, sample.weight);
    count_put(control, put, collided);
    let log_index =
        table.append_at(&Sample { trace_id: put.id(), reason: end as u16, task, ..sample });
    let stored = log_index.is_some();
    account(control, thread.slot, stored, sample.weight);
    if let Some(log_index) = log_index
        // The chain of an unproven root is complete, whatever is mapped later.
        && !matches!(end, EndReason::Root | EndReason::Depth | EndReason::Unproven)
    {
        // Relaxed: published with the ACTIVE word, which the hazard acquired.
        let instance = table.header.instance.load(Ordering::Relaxed) as u32;
        let kept = slices.as_ref().is_some_and(|slices| {
            let top = own_block(data, thread.tid, &mut memory.objects);
            let origin = (instance, log_index, snapshot.generation());
            keep_slice(slices, origin, &registers, (&mut memory, top))
        });
        if !kept {
            control.count(Counter::SliceLost);
        }
        if slices.is_some_and(|slices| slices.is_filling()) {
            // Relaxed: a hint that the recorder polls.
            control.rotate_wanted.store(1, Ordering::Relaxed);
        }
    }
    if stored {
        // Relaxed: only this thread writes it. It tells the recorder what an idle thread did last.
        // The id of a trace that found no room has no effect there.
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

/// Stores the name of a task in the trace table, as attributes are stored, and returns its id or 0.
#[cold]
fn keep_name(control: &ControlBlock, table: &TraceTable<'_>, name: &[AtomicU64]) -> u64 {
    match table.put(name, u32::from(unwind::ATTRIBUTES), 0) {
        Put::Dropped(_) => {
            control.count(Counter::AttributesLost);
            0
        }
        Put::New(id) | Put::Hit(id) => id,
    }
}

/// Number of stack bytes for which a slice has room, and for which all slices of a sample have.
const SLICE_BYTES: u64 = slice::WORDS as u64 * 8;
const SLICES_BYTES: u64 = SLICE_BYTES * slice::SLICES_OF_SAMPLE as u64;

/// Stores the registers and the top of the stack of a sample that did not reach its root.
#[cold]
fn keep_slice(
    slices: &Slices<'_>,
    (instance, sample, generation): (u32, usize, u64),
    registers: &Registers,
    (memory, top): (&mut StackMemory<'_>, Option<u64>),
) -> bool {
    let (start, end) = memory.known(registers.sp, top, SLICES_BYTES);
    memory.probe_again();
    let Registers { pc, gpr, .. } = *registers;
    let slice = Slice { sample, generation, pc, registers: gpr, start, count: 0 };
    let number = end.saturating_sub(start).div_ceil(SLICE_BYTES).max(1) as usize;
    slices.put(instance, &slice, number, |avma| if avma < end { memory.load(avma) } else { None })
}

fn count_put(control: &ControlBlock, put: Put, collided: bool) {
    control.count(Counter::Puts);
    if collided {
        control.count(Counter::TableCollision);
    }
    match put {
        Put::New(_) => {}
        Put::Hit(_) => control.count(Counter::PutHits),
        Put::Dropped(Dropped::Arena) => control.count(Counter::DroppedArena),
        Put::Dropped(Dropped::Probes) => control.count(Counter::DroppedProbes),
    }
}

fn account(control: &ControlBlock, slot: &ThreadSlot, stored: bool, weight: u32) {
    if stored {
        control.count(Counter::Samples);
        // Relaxed: only this handler writes these counts, and the recorder may read them late.
        let add = |word: &AtomicU64, more: u64| {
            word.store(word.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
        };
        add(&slot.samples, 1);
        add(&slot.weight, u64::from(weight));
    } else {
        control.count(Counter::LostLog);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::alloc::{Layout, alloc_zeroed};

    use traceprof_abi::layout::{self, AgentState};
    use traceprof_abi::storage::rotation::Rotation;
    use traceprof_abi::unwind::tables;

    use super::*;
    use crate::thread::{find_thread, known_thread};

    /// Returns a data segment of zeros that stays mapped as long as the test's process.
    pub(crate) fn segment() -> DataSegment {
        const PAGE: usize = 4096;
        // Aligned by hand: the allocator clears aligned memory completely and at once, but the
        // system zeroes this memory page by page as it is touched.
        let shape = Layout::from_size_align(layout::DATA_LEN as usize + PAGE, 16).unwrap();
        // SAFETY: the size is not zero.
        let start = unsafe { alloc_zeroed(shape) };
        assert!(!start.is_null());
        // SAFETY: the offset is less than a page, and the allocation has an extra page.
        let base = unsafe { start.add(start.align_offset(PAGE)) };
        // SAFETY: aligned, of the segment's length, never freed, accessed through this value only.
        unsafe { DataSegment::new(base) }
    }

    /// An expiry inside the handler would overwrite the frames of the sample that it interrupts.
    #[test]
    fn an_expiry_inside_the_handler_is_only_counted() {
        let data = segment();
        let control = data.control();
        control.slots_limit.store(1, Ordering::Relaxed);
        control.state.store(AgentState::Sampling as u32, Ordering::Relaxed);
        // SAFETY: zeroes are a valid value of a structure of integers.
        let (info, context) = unsafe { std::mem::zeroed() };
        let frame = Frame { info: &info, context: &context, return_slot: &mut 0, is_direct: false };
        // SAFETY: more than the header's length, of zeroes: no snapshot was ever published.
        let tables = unsafe { Tables::new(data.base(), 4096) };
        let count = |counter: Counter| control.counters[counter as usize].load(Ordering::Relaxed);
        control.pid.store(sys::getpid(), Ordering::Relaxed);
        let thread = find_thread(data).unwrap();
        let slot = thread.slot;
        slot.inside.store(1, Ordering::Relaxed);
        take(data, tables, &frame, &thread, Origin::Event(EventWord(0)));
        assert_eq!((count(Counter::Nested), count(Counter::Broken)), (1, 0));
        assert_eq!(slot.inside.load(Ordering::Relaxed), 1, "the outer expiry is still inside");
        slot.inside.store(0, Ordering::Relaxed);
        take(data, tables, &frame, &thread, Origin::Event(EventWord(0)));
        // There are no tables to unwind with. The handler tried, and left.
        assert_eq!((count(Counter::Nested), count(Counter::Broken)), (1, 1));
        assert_eq!(slot.inside.load(Ordering::Relaxed), 0);
        assert_eq!(data.hazards().claims().next(), None);
    }

    /// A tables segment's header with a snapshot that has no module: stacks end at the first frame.
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

    /// Starts to sample into a table with room for two samples, and returns all tables.
    pub(crate) fn start(data: DataSegment) -> Vec<TraceTable<'static>> {
        let control = data.control();
        control.slots_limit.store(1, Ordering::Relaxed);
        control.pid.store(sys::getpid(), Ordering::Relaxed);
        control.state.store(AgentState::Sampling as u32, Ordering::Relaxed);
        let all: Vec<_> = (0..layout::TRACE_TABLES).filter_map(|index| data.table(index)).collect();
        all[0].header.arena_limit.store(64, Ordering::Relaxed);
        all[0].header.log_limit.store(2, Ordering::Relaxed);
        let _ = Rotation::start(&all, &control.active);
        all
    }

    #[test]
    fn a_sample_has_its_weight_and_is_its_threads_last() {
        static SEGMENT: Aligned = Aligned(NO_MODULES);
        let data = segment();
        let control = data.control();
        let all = start(data);
        // SAFETY: zeroes are a valid value of a structure of integers.
        let (info, context) = unsafe { std::mem::zeroed() };
        let frame = Frame { info: &info, context: &context, return_slot: &mut 0, is_direct: false };
        // SAFETY: aligned, as long as said, never written.
        let tables = unsafe { Tables::new(SEGMENT.0.as_ptr().cast(), size_of::<Aligned>()) };
        let slot = find_thread(data).unwrap().slot;
        let sampled = || {
            let [samples, weight] = [&slot.samples, &slot.weight];
            (samples.load(Ordering::Relaxed), weight.load(Ordering::Relaxed))
        };
        let mut last = 0;
        for (origin, total) in
            [(Origin::Timer { periods: 7 }, (1, 7)), (Origin::Event(EventWord(0)), (2, 8))]
        {
            take(data, tables, &frame, &known_thread(data).unwrap(), origin);
            assert_eq!(sampled(), total);
            let sample = all[0].samples().last().flatten().unwrap();
            last = slot.last_trace.load(Ordering::Relaxed);
            assert_eq!((last, last >> 32), (sample.trace_id, 1));
            assert_eq!(sample.tid, sys::gettid());
        }
        let trace = all[0].traces().find(|trace| trace.id == last).unwrap();
        assert_eq!(trace.weight, 8, "both have the same stack");
        // An expiry of a second event of the same thread, and one of a thread that has a timer.
        // SAFETY: zeroes are a valid value of a structure of integers.
        let mut other: sys::SigInfo = unsafe { std::mem::zeroed() };
        other.value = 9;
        let other =
            Frame { info: &other, context: &context, return_slot: &mut 0, is_direct: false };
        let duplicates =
            || control.counters[Counter::DuplicateEvent as usize].load(Ordering::Relaxed);
        crate::event_expiry::on_event(data, tables, &other);
        assert_eq!((duplicates(), slot.other_event.load(Ordering::Relaxed)), (1, 10));
        slot.timer.store(5, Ordering::Relaxed);
        crate::event_expiry::on_event(data, tables, &frame);
        assert_eq!((duplicates(), sampled()), (2, (2, 8)));
        slot.timer.store(0, Ordering::Relaxed);
        // The log is full, and a sample that is not stored does not become the last one.
        slot.last_trace.store(0, Ordering::Relaxed);
        take(data, tables, &frame, &known_thread(data).unwrap(), Origin::Event(EventWord(0)));
        assert_eq!((sampled(), slot.last_trace.load(Ordering::Relaxed)), ((2, 8), 0));
        let lost = control.counters[Counter::LostLog as usize].load(Ordering::Relaxed);
        assert_eq!(lost, 1);
    }

    /// A thread with a reused id finds such a slot just before the recorder retires the slot.
    #[test]
    fn nothing_is_written_to_a_slot_that_is_not_the_threads_own() {
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
        let frame = Frame { info: &info, context: &context, return_slot: &mut 0, is_direct: false };
        // SAFETY: more than the header's length, of zeroes: no snapshot was ever published.
        let tables = unsafe { Tables::new(data.base(), 4096) };
        take(data, tables, &frame, &thread, Origin::Event(EventWord(0)));
        let lost = control.counters[Counter::LostThreadSlot as usize].load(Ordering::Relaxed);
        assert_eq!((lost, thread.slot.event.load(Ordering::Relaxed)), (1, 0));
        assert_eq!(data.hazards().claims().next(), None);
    }
}
