//! Where everything lies in the three segments, and the control block at the head of the data.
//!
//! # Invariants
//! - Segments are reserved at these lengths and populated by the recorder as they grow; the
//!   handler touches only what a `*_limit` word says is populated.
//! - No two regions of the data segment overlap (asserted below).

use crate::sync::{AtomicU32, AtomicU64};

/// Reserved length of the code segment in bytes.
pub const CODE_LEN: u64 = 1 << 20;
/// Reserved length of the tables segment in bytes.
pub const TABLES_LEN: u64 = 1 << 30;
/// Reserved length of the data segment in bytes.
pub const DATA_LEN: u64 = 1 << 30;
/// From the start of the code segment to the start of the tables segment.
pub const TABLES_DISTANCE: u64 = 2 << 20;
/// From the start of the code segment to the start of the data segment.
pub const DATA_DISTANCE: u64 = TABLES_DISTANCE + TABLES_LEN + (2 << 20);
/// Length of the hole in the target's address space that takes all three segments.
pub const SPAN: u64 = DATA_DISTANCE + DATA_LEN;

/// First word of a live control block ("traceprf").
pub const MAGIC: u64 = u64::from_be_bytes(*b"traceprf");
/// Upper half of the upper half of every `sig_data` of ours; the session's cookie follows it.
pub const SIG_DATA_MARK: u16 = 0x7450;

/// Offset of the area where the injection prepares its frames and runs the agent's entry.
pub const INJECT_OFFSET: u64 = 0x1_0000;
/// Length of that area in bytes.
pub const INJECT_LEN: u64 = 0x4_0000;
/// Offset of the hazard slots, [`HAZARD_SLOTS`] words.
pub const HAZARD_OFFSET: u64 = 0x5_0000;
/// Number of hazard slots, as in the call-trace storage document.
pub const HAZARD_SLOTS: usize = 8192;
/// Offset of the index from kernel thread id to thread slot, [`TID_INDEX_LEN`] words.
pub const TID_INDEX_OFFSET: u64 = 0x6_0000;
/// Number of words in that index: twice the slots, so that probing stays short.
pub const TID_INDEX_LEN: usize = 32768;
/// Offset of the bitmap of retired perf events.
pub const EVENTS_RETIRED_OFFSET: u64 = 0xB_0000;
/// Number of perf events that can be told apart.
pub const EVENTS_MAX: usize = 65536;
/// Offset of the bitmap of thread slots whose timers are to be armed, [`ARM_PENDING_WORDS`] words.
pub const ARM_PENDING_OFFSET: u64 = 0xB_2000;
/// Words of that bitmap.
pub const ARM_PENDING_WORDS: usize = THREAD_SLOTS / 64;
/// Offset of [`crate::context::ContextSources`].
pub const CONTEXT_SOURCES_OFFSET: u64 = 0xB_3000;
/// Offset of the thread slots.
pub const THREAD_SLOTS_OFFSET: u64 = 0x10_0000;
/// Bytes of a thread slot: two cache lines, as in the thread priming document.
pub const THREAD_SLOT_BYTES: u64 = 128;
/// Thread slots that are there at first, at least.
pub const SLOTS_AT_FIRST: u32 = 256;
/// Number of thread slots.
pub const THREAD_SLOTS: usize = 16384;
/// Offset of the threads' frame buffers, one of [`SCRATCH_STRIDE`] bytes for each slot.
pub const SCRATCH_OFFSET: u64 = 0x100_0000;
/// Bytes of frame buffer for each thread slot.
pub const SCRATCH_STRIDE: u64 = 0x2000;
/// Deepest stack that is recorded, in frames; what is beyond is marked truncated.
pub const DEPTH_MAX: usize = 1024;
/// Offset of the first trace table.
pub const TRACE_TABLES_OFFSET: u64 = 0x1200_0000;
/// Bytes reserved for each trace table.
pub const TRACE_TABLE_STRIDE: u64 = 0x400_0000;
/// Trace tables: three roles, and spares that rotate in when a dead or stopped thread holds one.
pub const TRACE_TABLES: usize = 8;

/// Signals that the agent may have a handler for: see [`SAMPLING`], [`PRIMING`] and [`FORMER`].
pub const SIGNALS: usize = 4;
/// Place in [`ControlBlock::signals`] of the signal of perf events.
pub const SAMPLING: usize = 0;
/// Place in [`ControlBlock::signals`] of the signal that primes threads, which is also their
/// timers'.
pub const PRIMING: usize = 1;
/// Places in [`ControlBlock::signals`] of signals that primed until the application took them. Our
/// handler may still be called for them, by a handler that was put in its place.
pub const FORMER: core::ops::Range<usize> = 2..SIGNALS;

/// How threads are sampled, in [`ControlBlock::engine`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum EngineMode {
    /// By perf events: threads have timers only where the recorder asks for them.
    Perf = 0,
    /// By timers: a primed thread arms its own.
    Timer = 1,
}

/// Our handler was installed for a signal.
pub const INSTALLED: u32 = 1;
/// Our handler was installed for a signal, and another's was found in its place.
pub const REPLACED: u32 = 2;

/// What the agent's entry is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum Operation {
    /// Install the handler for all [`ControlBlock::signals`] that are named and have none; then as
    /// [`Operation::Arm`].
    Install = 1,
    /// Arm timers of slots whose bit is set in the bitmap of pending ones.
    Arm = 2,
    /// Delete all timers.
    Disarm = 3,
    /// Find out which of the installed handlers were replaced by the application's.
    Look = 4,
}

impl Operation {
    /// All there are.
    pub const ALL: [Self; 4] = [Self::Install, Self::Arm, Self::Disarm, Self::Look];
}

/// Pending timers that one run of [`Operation::Arm`], or one priming signal, arms at most.
pub const ARM_MAX: usize = 64;

/// What the agent's entry is called with: an operation, and how many timers it may arm.
pub fn entry_argument(operation: Operation, arm_most: usize) -> u64 {
    operation as u64 | (arm_most as u64) << 32
}

/// The operation's number and the number of timers in the entry's argument.
pub fn entry_asked(argument: u64) -> (u64, usize) {
    (argument & u64::from(u32::MAX), ((argument >> 32) as usize).min(ARM_MAX))
}

/// In [`crate::thread::ThreadSlot::timer`]: somebody is creating it right now.
pub const TIMER_BUSY: u32 = u32::MAX;
/// Bits of a slot's number in the value of its timer's signal; the generation's follow.
const TIMER_SLOT_BITS: u32 = 14;
/// Generations that timers' signals tell apart.
const TIMER_GENERATIONS: u32 = 1 << (32 - TIMER_SLOT_BITS);

/// The upper half of the value of every signal of ours.
fn marked(cookie: u32, low: u32) -> u64 {
    (SIG_DATA_MARK as u64) << 48 | u64::from(cookie & 0xffff) << 32 | u64::from(low)
}

/// The value of the signal of a slot's timer.
pub fn timer_value(cookie: u32, slot: u32, generation: u32) -> u64 {
    let low = (generation % TIMER_GENERATIONS) << TIMER_SLOT_BITS | slot;
    marked(cookie, low)
}

/// The value of a priming signal that is sent at this time of CLOCK_MONOTONIC.
pub fn prime_value(cookie: u32, now_ns: u64) -> u64 {
    marked(cookie, (now_ns / 1000) as u32)
}

/// Nanoseconds between the sending of a priming signal with this value and `now_ns`, if they are
/// less than half an hour: the value has room for 71 minutes of microseconds.
pub fn prime_latency_ns(value: u64, now_ns: u64) -> Option<u64> {
    let elapsed_us = ((now_ns / 1000) as u32).wrapping_sub(value as u32);
    (elapsed_us < u32::MAX / 2).then_some(u64::from(elapsed_us) * 1000)
}

/// A signal's disposition, as the agent changed it.
#[repr(C)]
#[derive(Debug, Default)]
pub struct SignalAction {
    /// The signal, 0 for none.
    pub signal: AtomicU32,
    /// 0, [`INSTALLED`] or [`REPLACED`].
    pub installed: AtomicU32,
    /// The kernel's `struct sigaction` that was installed before ours: handler, flags, restorer,
    /// mask.
    pub old_action: [AtomicU64; 4],
    /// The one that we installed, to be recognised at the cure.
    pub our_action: [AtomicU64; 4],
}

/// How the handler reads the time of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ClockMode {
    /// `clock_gettime(CLOCK_MONOTONIC)` by system call; the sample's time is nanoseconds.
    Monotonic = 0,
    /// The time stamp counter; the recorder turns ticks into nanoseconds.
    Tsc = 1,
}

/// What the agent does, in [`ControlBlock::state`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum AgentState {
    /// Mapped, nothing installed.
    Prepared = 0,
    /// The signal handler is installed; samples are not taken.
    Installed = 1,
    /// Samples are taken.
    Sampling = 2,
    /// The handler swallows its signals and does nothing else.
    Stopped = 3,
}

/// Why the agent gave up, in [`ControlBlock::error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum AgentError {
    /// Nothing is wrong.
    None = 0,
    /// The control block has another magic or version.
    Version = 1,
    /// `rt_sigaction` failed; the errno is in [`ControlBlock::error_detail`].
    SigactionFailed = 2,
}

/// Named counts of everything that the handler does not store, and of what it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Counter {
    /// Samples stored.
    Samples = 0,
    /// No thread slot was free.
    LostThreadSlot = 1,
    /// No hazard slot was free.
    LostHazard = 2,
    /// Rotation went on faster than the handler could publish its hazard.
    LostRotation = 3,
    /// The sample was stored, its trace found no room in the arena: trace id 1.
    DroppedArena = 4,
    /// The sample log was full.
    LostLog = 5,
    /// A second event of the same thread fired.
    DuplicateEvent = 6,
    /// The signal was not ours and went to the previous handler.
    Foreign = 7,
    /// A signal of an earlier session, swallowed.
    Stale = 8,
    /// The signal had been blocked and came late: its pc is where it was unblocked.
    Late = 9,
    /// A signal that came while sampling was off.
    Off = 10,
    /// The handler found the control block unusable.
    Broken = 11,
    /// Probes of memory outside a verified window that found it unreadable.
    ProbeFailed = 12,
    /// First probes of a hazard slot that found another owner.
    HazardCollision = 13,
    /// Calls of `put`.
    Puts = 14,
    /// Calls of `put` that found the trace present.
    Hits = 15,
    /// The sample was stored, its trace found no slot among those probed: trace id 1.
    DroppedProbes = 16,
    /// First probes of a table's slot that found another trace.
    TableCollision = 17,
    /// A hit inside our own handler on the same thread.
    Nested = 18,
    /// A thread slot that was lost to sixteen lost races in a row.
    SlotLeaked = 19,
    /// Hits of timers.
    TimerHits = 20,
    /// Periods that were folded into such a hit: overruns.
    TimerOverruns = 21,
    /// Timers that were armed.
    Armed = 22,
    /// Timers that could not be created; the errno is in the thread's slot.
    TimerFailed = 23,
    /// Timers deleted because the recorder gave no sign of life.
    LeaseEnded = 24,
    /// Threads that were primed by the signal.
    Primed = 25,
    /// Periods that hits of timers stood for besides one each, where the sample was lost.
    LostOverruns = 26,
    /// Priming signals to a thread that got no slot.
    PrimeFailed = 27,
    /// Hazards that were not ours any more when they were to be released, after their sample was
    /// stored.
    ReleaseFailed = 28,
    /// Signals whose sender the kernel had no memory to note: maybe hits.
    Nameless = 29,
    /// Hits that a thread did not get, as it was held in a call that they would have ended.
    Withheld = 30,
    /// Samples whose stack did not end at a root, and that found no room for a slice of it.
    SliceLost = 31,
    /// Contexts that did not belong together when they were read: their writers do not keep the
    /// order.
    ContextTorn = 32,
    /// Thread context records, or the way to them, that could not be read.
    RecordUnreadable = 33,
    /// Attributes of thread context records that found no room.
    AttributesLost = 34,
    /// Hits of threads whose thread pointer leads to no block of their own: no record was looked
    /// for.
    RecordForeign = 35,
    /// Handlers that were to be timed, and took so long that they must have been interrupted.
    Untimed = 36,
}
/// Number of counter words; more than [`Counter`] has, for growth.
pub const COUNTERS: usize = 64;

/// The first page of the data segment.
#[repr(C)]
#[derive(Debug)]
pub struct ControlBlock {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// [`crate::ABI_VERSION`].
    pub version: AtomicU32,
    /// The session's cookie: the lower half of the upper half of every `sig_data`.
    pub cookie: AtomicU32,
    /// The target's pid in its innermost pid namespace.
    pub pid: AtomicU32,
    /// Longest time from a priming signal's sending to its handling, in nanoseconds.
    pub prime_latency_max_ns: AtomicU32,
    /// [`AgentState`].
    pub state: AtomicU32,
    /// [`AgentError`].
    pub error: AtomicU32,
    /// Errno that goes with [`Self::error`].
    pub error_detail: AtomicU32,
    /// [`ClockMode`].
    pub clock_mode: AtomicU32,
    /// Sampling period in nanoseconds of CPU time.
    pub period_ns: AtomicU64,
    /// The signals that the agent handles.
    pub signals: [SignalAction; SIGNALS],
    /// The ACTIVE table: generation << 3 | table index.
    pub active: AtomicU64,
    /// 1 when a table is close to full and the recorder should rotate now.
    pub rotate_wanted: AtomicU32,
    /// Next thread slot never used before.
    pub slots_next: AtomicU32,
    /// Number of thread slots whose frame buffers are populated.
    pub slots_limit: AtomicU32,
    /// 1 when a bit may be set in the bitmap of timers to be armed.
    pub arm_wanted: AtomicU32,
    /// Top of the stack of retired thread slots: tag << 32 | slot + 1.
    pub slots_free: AtomicU64,
    /// Grows with each rotation; stack windows verified in an older epoch are verified again.
    pub window_epoch: AtomicU64,
    /// Until when timers may go on, CLOCK_MONOTONIC nanoseconds: the recorder puts it off while it
    /// lives.
    pub lease_until_ns: AtomicU64,
    /// Priming signals that were handled.
    pub prime_acks: AtomicU64,
    /// Sum of the times from their sending to their handling, in nanoseconds.
    pub prime_latency_sum_ns: AtomicU64,
    /// [`EngineMode`].
    pub engine: AtomicU32,
    /// Raised at the end of every run of the agent's entry.
    pub entered: AtomicU32,
    /// The agent's entry, told by its first run: whoever adopts the agent may need it.
    pub entry_avma: AtomicU64,
    /// [`Counter`]s.
    pub counters: [AtomicU64; COUNTERS],
    /// Sum of the times of handlers that were timed, in the unit of [`Self::clock_mode`].
    pub timed_sum: AtomicU64,
    /// Number of them.
    pub timed: AtomicU64,
    /// The longest time that counts, in the same unit.
    pub timed_max: AtomicU64,
    /// Exponent of the divisor of the rate that timers are to have.
    pub rate_shift: AtomicU32,
    /// The family of perf events that is on: see [`crate::event`].
    pub event_family: AtomicU32,
}

impl ControlBlock {
    /// Adds one to a counter.
    pub fn count(&self, counter: Counter) {
        self.count_by(counter, 1);
    }

    /// Adds to a counter.
    pub fn count_by(&self, counter: Counter, count: u64) {
        // Relaxed: counters order nothing; the recorder reads them at its leisure.
        self.counters[counter as usize].fetch_add(count, crate::sync::Ordering::Relaxed);
    }
}

#[cfg(not(loom))]
mod asserts {
    use super::*;
    use core::mem::{offset_of, size_of};
    const _: () = assert!(size_of::<ControlBlock>() == 960);
    const _: () = assert!(offset_of!(ControlBlock, period_ns) == 40);
    const _: () = assert!(offset_of!(ControlBlock, signals) == 48);
    const _: () = assert!(size_of::<SignalAction>() == 72);
    const _: () = assert!(offset_of!(ControlBlock, active) == 336);
    const _: () = assert!(offset_of!(ControlBlock, slots_free) == 360);
    const _: () = assert!(offset_of!(ControlBlock, counters) == 416);
    const _: () = assert!(offset_of!(ControlBlock, timed_sum) == 928);
    const _: () = assert!(size_of::<ControlBlock>() as u64 <= INJECT_OFFSET);
    const _: () = assert!(INJECT_OFFSET + INJECT_LEN <= HAZARD_OFFSET);
    const _: () = assert!(HAZARD_OFFSET + HAZARD_SLOTS as u64 * 8 <= TID_INDEX_OFFSET);
    const _: () = assert!(TID_INDEX_OFFSET + TID_INDEX_LEN as u64 * 8 <= EVENTS_RETIRED_OFFSET);
    const _: () = assert!(EVENTS_RETIRED_OFFSET + EVENTS_MAX as u64 / 8 <= ARM_PENDING_OFFSET);
    const _: () =
        assert!(ARM_PENDING_OFFSET + ARM_PENDING_WORDS as u64 * 8 <= CONTEXT_SOURCES_OFFSET);
    const _: () = assert!(
        CONTEXT_SOURCES_OFFSET + size_of::<crate::context::ContextSources>() as u64
            <= THREAD_SLOTS_OFFSET
    );
    const _: () =
        assert!(THREAD_SLOTS_OFFSET + THREAD_SLOTS as u64 * THREAD_SLOT_BYTES <= SCRATCH_OFFSET);
    const _: () =
        assert!(SCRATCH_OFFSET + THREAD_SLOTS as u64 * SCRATCH_STRIDE <= TRACE_TABLES_OFFSET);
    const _: () = assert!(THREAD_SLOTS <= 1 << TIMER_SLOT_BITS);
    const _: () = assert!(SCRATCH_STRIDE >= DEPTH_MAX as u64 * 8);
    const _: () =
        assert!(TRACE_TABLES_OFFSET + TRACE_TABLES as u64 * TRACE_TABLE_STRIDE <= DATA_LEN);
    const _: () = assert!(CODE_LEN <= TABLES_DISTANCE);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn values_of_signals_tell_mark_cookie_slot_and_generation() {
        let value = timer_value(0xabcd_1234, 0x2001, 3);
        assert_eq!(value, 0x7450_1234_0000_e001);
        let last = THREAD_SLOTS as u32 - 1;
        assert_ne!(timer_value(1, last, 0), timer_value(1, 0, 1));
        assert_ne!(timer_value(1, 5, 7), timer_value(1, 5, 8));
        assert_eq!(timer_value(1, 5, 7), timer_value(1, 5, 7 + TIMER_GENERATIONS));
    }

    #[test]
    fn latency_survives_the_wrap_of_the_clock() {
        let wrap_ns = (u64::from(u32::MAX) + 1) * 1000;
        for sent in [0, 999, 5_000_000, wrap_ns - 2000, 7 * wrap_ns - 1] {
            let value = prime_value(7, sent);
            let latency = prime_latency_ns(value, sent + 30_000).unwrap();
            assert!((29_000..=31_000).contains(&latency), "{latency}");
        }
        // Sent after it came: another's value, or a clock that was read before.
        assert_eq!(prime_latency_ns(prime_value(7, 3_000_000), 2_000_000), None);
    }
}
