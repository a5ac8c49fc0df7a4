//! The layout of the three segments, and the control block at the start of the data segment.
//!
//! # Invariants
//! - The segments are reserved at these lengths, and the recorder populates them as they grow. The
//!   handler touches only what a `*_limit` word declares populated.
//! - No two regions of the data segment overlap (asserted below).

use crate::sync::{AtomicU32, AtomicU64};

/// Reserved length of the code segment in bytes.
pub const CODE_LEN: u64 = 1 << 20;
/// Reserved length of the tables segment in bytes.
pub const TABLES_LEN: u64 = 1 << 30;
/// Reserved length of the data segment in bytes.
pub const DATA_LEN: u64 = 1 << 30;
/// Distance from the start of the code segment to the start of the tables segment.
pub const TABLES_DISTANCE: u64 = 2 << 20;
/// Distance from the start of the code segment to the start of the data segment.
pub const DATA_DISTANCE: u64 = TABLES_DISTANCE + TABLES_LEN + (2 << 20);
/// Length of the free range in the target's address space that holds all three segments.
pub const SPAN: u64 = DATA_DISTANCE + DATA_LEN;

/// First word of a live control block ("traceprf").
pub const MAGIC: u64 = u64::from_be_bytes(*b"traceprf");
/// The top 16 bits of every `sig_data` of the agent's signals. The session's cookie follows them.
pub const SIG_DATA_MARK: u16 = 0x7450;

/// Offset of the area in which the injection prepares its frames and runs the agent's entry.
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
/// Maximum number of perf events in one family.
pub const EVENTS_MAX: usize = 65536;
/// Offset of the bitmap of thread slots with a pending timer request, [`ARM_PENDING_WORDS`] words.
pub const ARM_PENDING_OFFSET: u64 = 0xB_2000;
/// Number of words in that bitmap.
pub const ARM_PENDING_WORDS: usize = THREAD_SLOTS / 64;
/// Offset of [`crate::context::ContextSources`].
pub const CONTEXT_SOURCES_OFFSET: u64 = 0xB_3000;
/// Offset of the thread slots.
pub const THREAD_SLOTS_OFFSET: u64 = 0x10_0000;
/// Size of a thread slot in bytes: two cache lines.
pub const THREAD_SLOT_BYTES: u64 = 128;
/// Minimum number of thread slots that the recorder populates at attach.
pub const INITIAL_THREAD_SLOTS: u32 = 256;
/// Maximum number of thread slots.
pub const THREAD_SLOTS: usize = 16384;
/// Offset of the threads' scratch memory, [`SCRATCH_STRIDE`] bytes for each slot: the frame buffer,
/// then the handler's stack. If that stack ever overflowed, it would only overwrite the frames of
/// its own thread.
pub const SCRATCH_OFFSET: u64 = 0x100_0000;
/// Size of one thread slot's scratch memory in bytes.
pub const SCRATCH_STRIDE: u64 = HANDLER_STACK_OFFSET + HANDLER_STACK_BYTES;
/// Maximum number of frame words of a sample: program counters and managed frames.
pub const FRAME_WORDS_MAX: usize = 2048;
/// Offset of the handler's stack within a thread slot's scratch memory, a multiple of 16.
pub const HANDLER_STACK_OFFSET: u64 = 0x4000;
/// Size of that stack in bytes: more than the handler needs there.
pub const HANDLER_STACK_BYTES: u64 = 0x1000;
/// The most bytes of the thread's own stack that the handler needs below the kernel's signal frame.
/// A test of the image measures both needs.
pub const HANDLER_NEED_BYTES: u64 = 512;
/// Maximum number of recorded frames of a stack, unless the process has V8: see
/// [`crate::unwind::walk_words_max`]. A deeper stack is marked truncated.
pub const DEPTH_MAX: usize = 1024;
/// Offset of the first trace table.
pub const TRACE_TABLES_OFFSET: u64 = 0x1600_0000;
/// Size reserved for each trace table in bytes.
pub const TRACE_TABLE_STRIDE: u64 = 0x400_0000;
/// Number of trace tables: three roles, and spares that replace a table held by a dead or stopped
/// thread.
pub const TRACE_TABLES: usize = 8;

/// Maximum number of signals that the agent handles: see [`SAMPLING`], [`PRIMING`] and [`FORMER`].
pub const SIGNALS: usize = 4;
/// Index in [`ControlBlock::signals`] of the perf events' signal.
pub const SAMPLING: usize = 0;
/// Index in [`ControlBlock::signals`] of the signal that primes threads. It is also the signal of
/// timers, and of perf events that notify the owners of their descriptors.
pub const PRIMING: usize = 1;
/// Indices in [`ControlBlock::signals`] of earlier priming signals, which the application has taken
/// since. The application's handler may still chain to the agent's handler for them.
pub const FORMER: core::ops::Range<usize> = 2..SIGNALS;

/// How threads are sampled, in [`ControlBlock::engine`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum EngineMode {
    /// Perf events. Threads have timers only where the recorder requests them.
    Perf = 0,
    /// Timers. A primed thread arms its own timer.
    Timer = 1,
    /// Perf events that notify the owners of their descriptors, one for each thread. Threads have
    /// no timers.
    Signal = 2,
}

/// The agent's handler is installed for the signal.
pub const INSTALLED: u32 = 1;
/// The agent's handler was installed for the signal, and another handler has replaced it.
pub const REPLACED: u32 = 2;

/// An operation of the agent's entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum Operation {
    /// Install the handler for each of [`ControlBlock::signals`] that is named and has none. Then
    /// do what [`Operation::Arm`] does.
    Install = 1,
    /// Arm the timers of slots whose bit is set in the pending bitmap.
    Arm = 2,
    /// Delete all timers.
    Disarm = 3,
    /// Check which of the installed handlers the application has replaced.
    CheckHandlers = 4,
}

impl Operation {
    /// All operations.
    pub const ALL: [Self; 4] = [Self::Install, Self::Arm, Self::Disarm, Self::CheckHandlers];
}

/// Maximum number of pending timers that one [`Operation::Arm`], or one priming signal, arms.
pub const ARM_MAX: usize = 64;

/// Returns the argument of the agent's entry: the operation, and how many timers it may arm.
pub fn entry_argument(operation: Operation, arm_most: usize) -> u64 {
    operation as u64 | (arm_most as u64) << 32
}

/// Splits the entry's argument into the operation's number and the maximum number of timers to arm.
pub fn entry_asked(argument: u64) -> (u64, usize) {
    (argument & u64::from(u32::MAX), ((argument >> 32) as usize).min(ARM_MAX))
}

/// Value of [`crate::thread::ThreadSlot::timer`] while a thread creates the timer.
pub const TIMER_BUSY: u32 = u32::MAX;
/// Number of bits for the slot's index in the value of its timer's signal. The generation's bits
/// follow.
const TIMER_SLOT_BITS: u32 = 14;
/// Number of generations that the timers' signals distinguish.
const TIMER_GENERATIONS: u32 = 1 << (32 - TIMER_SLOT_BITS);

/// Combines the mark and the cookie, which form the upper half of every value, with the lower half.
fn marked(cookie: u32, low: u32) -> u64 {
    (SIG_DATA_MARK as u64) << 48 | u64::from(cookie & 0xffff) << 32 | u64::from(low)
}

/// Whether a timer with this value was created by the agent of the session with this cookie.
pub fn is_timer_value(value: u64, cookie: u32) -> bool {
    value >> 32 == marked(cookie, 0) >> 32
}

/// Returns the value that a slot's timer sends with its signal.
pub fn timer_value(cookie: u32, slot: u32, generation: u32) -> u64 {
    let low = (generation % TIMER_GENERATIONS) << TIMER_SLOT_BITS | slot;
    marked(cookie, low)
}

/// Returns the value of a priming signal that is sent at this CLOCK_MONOTONIC time.
pub fn prime_value(cookie: u32, now_ns: u64) -> u64 {
    marked(cookie, (now_ns / 1000) as u32)
}

/// Returns the nanoseconds from the sending of the priming signal with this value to `now_ns`.
/// `None` if they are half an hour or more: the value holds 71 minutes in microseconds.
pub fn prime_latency_ns(value: u64, now_ns: u64) -> Option<u64> {
    let elapsed_us = ((now_ns / 1000) as u32).wrapping_sub(value as u32);
    (elapsed_us < u32::MAX / 2).then_some(u64::from(elapsed_us) * 1000)
}

/// A signal's disposition before and after the agent changed it.
#[repr(C)]
#[derive(Debug, Default)]
pub struct SignalAction {
    /// The signal number, or 0 for none.
    pub signal: AtomicU32,
    /// 0, [`INSTALLED`] or [`REPLACED`].
    pub installed: AtomicU32,
    /// The kernel's `struct sigaction` from before the installation: handler, flags, restorer,
    /// mask.
    pub old_action: [AtomicU64; 4],
    /// The `struct sigaction` that the agent installed. The restore recognizes it.
    pub our_action: [AtomicU64; 4],
}

/// The clock from which the handler reads a sample's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ClockMode {
    /// `clock_gettime(CLOCK_MONOTONIC)` by system call. The sample's time is in nanoseconds.
    Monotonic = 0,
    /// The time stamp counter. The recorder converts ticks into nanoseconds.
    Tsc = 1,
}

/// The agent's state, in [`ControlBlock::state`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum AgentState {
    /// The agent is mapped, and nothing is installed.
    Prepared = 0,
    /// The signal handler is installed, but takes no samples.
    Installed = 1,
    /// The handler takes samples.
    Sampling = 2,
    /// The handler swallows the agent's signals and does nothing else.
    Stopped = 3,
}

/// The reason why the agent gave up, in [`ControlBlock::error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum AgentError {
    /// No error.
    None = 0,
    /// The control block has another magic or version.
    Version = 1,
    /// `rt_sigaction` failed; the errno is in [`ControlBlock::error_detail`].
    SigactionFailed = 2,
}

/// Counters of what the handler does, and of everything that it does not store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Counter {
    /// Samples stored.
    Samples = 0,
    /// Samples lost because no thread slot was free.
    LostThreadSlot = 1,
    /// Samples lost because no hazard slot was free.
    LostHazard = 2,
    /// Samples lost because the tables rotated faster than the handler could publish its hazard.
    LostRotation = 3,
    /// Stored samples whose trace found no room in the arena. They have trace id 1.
    DroppedArena = 4,
    /// Samples lost because the sample log was full.
    LostLog = 5,
    /// Expiries of a second event of the same thread.
    DuplicateEvent = 6,
    /// Signals of others, which the handler passed to the previous handler.
    Foreign = 7,
    /// Signals of an earlier session, which the handler swallowed.
    Stale = 8,
    /// Signals that were blocked and came late. Their pc is where the thread unblocked them.
    Late = 9,
    /// Signals that came while sampling was off.
    Off = 10,
    /// Times that a handler found the control block, a table or a buffer unusable.
    Broken = 11,
    /// Memory probes outside a verified window that found the memory unreadable.
    ProbeFailed = 12,
    /// First probes of a hazard slot that found another owner.
    HazardCollision = 13,
    /// Calls of `put`.
    Puts = 14,
    /// Calls of `put` that found the trace in the table.
    PutHits = 15,
    /// Stored samples whose trace found no slot among those probed. They have trace id 1.
    DroppedProbes = 16,
    /// First probes of a table's slot that found another trace.
    TableCollision = 17,
    /// Expiries that interrupted the handler on the same thread.
    Nested = 18,
    /// Thread slots that stay unused because giving them back lost sixteen races in a row.
    SlotLeaked = 19,
    /// Timer expiries that sent a signal.
    TimerExpiries = 20,
    /// Further timer expiries that the kernel merged into such a signal: overruns.
    TimerOverruns = 21,
    /// Armed timers.
    Armed = 22,
    /// Timers that could not be created. The errno is in the thread's slot.
    TimerFailed = 23,
    /// Timers that were deleted because the recorder did not renew the lease.
    LeaseEnded = 24,
    /// Threads that the priming signal primed.
    Primed = 25,
    /// Periods of lost samples beyond the first period of each expiry.
    LostOverruns = 26,
    /// Priming signals to a thread that got no slot.
    PrimeFailed = 27,
    /// Hazards that no longer held the handler's claim at their release, after their sample was
    /// stored.
    ReleaseFailed = 28,
    /// Signals whose information the kernel had no memory to queue. Some may be expiries.
    SignalInfoLost = 29,
    /// Expiries that the recorder withheld from a thread in a system call that the signal would
    /// have interrupted.
    Withheld = 30,
    /// Samples whose stack did not reach a root and whose stack slice found no room.
    SliceLost = 31,
    /// Contexts whose fields were inconsistent when they were read: their writers do not keep the
    /// order of the stores.
    ContextTorn = 32,
    /// Thread context records that could not be read, or whose location could not be read.
    RecordUnreadable = 33,
    /// Attributes of thread context records that found no room.
    AttributesLost = 34,
    /// Expiries on threads whose thread pointer does not lead to a block of their own, so that the
    /// handler read no record.
    RecordForeign = 35,
    /// Timed handler runs that took longer than [`ControlBlock::timed_max`] and count as that long.
    TimedAtLimit = 36,
    /// Context tables that a handler could not read, because the application had withdrawn them.
    TableUnreadable = 37,
    /// Samples of threads that run no code of a runtime, in a process that has one.
    RuntimeIdle = 38,
    /// Samples of threads whose thread pointer does not lead to a block of their own, so that the
    /// handler followed no managed frames.
    RuntimeForeignThread = 39,
    /// Lists of managed frames that were unreadable, as a whole or from some frame on, or that
    /// ended where none can end.
    RuntimeUnreadable = 40,
    /// Lists of managed frames that were too long for the sample.
    RuntimeDepth = 41,
    /// Managed frames whose object was not of the expected type.
    RuntimeForeignObject = 42,
    /// Samples of threads that ran a task whose name could not be read, or that has none.
    TaskNameless = 43,
}
/// Number of counter words. There are more than [`Counter`] uses, for growth.
pub const COUNTERS: usize = 64;

/// The control block at the start of the data segment.
#[repr(C)]
#[derive(Debug)]
pub struct ControlBlock {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// [`crate::ABI_VERSION`].
    pub version: AtomicU32,
    /// The session's cookie. Its low 16 bits follow the mark in every `sig_data`.
    pub cookie: AtomicU32,
    /// The target's pid in its innermost pid namespace.
    pub pid: AtomicU32,
    /// Longest time from the sending of a priming signal to its handling, in nanoseconds.
    pub prime_latency_max_ns: AtomicU32,
    /// [`AgentState`].
    pub state: AtomicU32,
    /// [`AgentError`].
    pub error: AtomicU32,
    /// The errno that belongs to [`Self::error`].
    pub error_detail: AtomicU32,
    /// [`ClockMode`].
    pub clock_mode: AtomicU32,
    /// Sampling period in nanoseconds of CPU time.
    pub period_ns: AtomicU64,
    /// The signals that the agent handles.
    pub signals: [SignalAction; SIGNALS],
    /// The ACTIVE word: generation << 3 | index of the ACTIVE table.
    pub active: AtomicU64,
    /// 1 when a table is nearly full and the recorder should rotate now.
    pub rotate_wanted: AtomicU32,
    /// Index of the next thread slot that was never used.
    pub slots_next: AtomicU32,
    /// Number of thread slots whose frame buffers are populated.
    pub slots_limit: AtomicU32,
    /// 1 when a bit may be set in the bitmap of pending timer requests.
    pub arm_wanted: AtomicU32,
    /// Top of the stack of retired thread slots: tag << 32 | slot + 1.
    pub slots_free: AtomicU64,
    /// Epoch of the stack windows, incremented by each rotation. The handler verifies a window of
    /// an older epoch again.
    pub window_epoch: AtomicU64,
    /// CLOCK_MONOTONIC time in nanoseconds until which timers may run. The recorder extends it
    /// while it lives.
    pub lease_until_ns: AtomicU64,
    /// Number of handled priming signals.
    pub prime_acks: AtomicU64,
    /// Sum of the times from the sending of these signals to their handling, in nanoseconds.
    pub prime_latency_sum_ns: AtomicU64,
    /// [`EngineMode`].
    pub engine: AtomicU32,
    /// Number of finished runs of the agent's entry.
    pub entered: AtomicU32,
    /// Address of the agent's entry, stored by its first run. A recorder that adopts the agent may
    /// need it.
    pub entry_avma: AtomicU64,
    /// [`Counter`]s.
    pub counters: [AtomicU64; COUNTERS],
    /// Sum of the run times of timed handlers, in the unit of [`Self::clock_mode`].
    pub timed_sum: AtomicU64,
    /// Number of timed handlers.
    pub timed: AtomicU64,
    /// The time that longer handler runs count as, in the unit of [`Self::clock_mode`].
    pub timed_max: AtomicU64,
    /// Exponent of the divisor of the rate that the recorder wants for timers.
    pub rate_shift: AtomicU32,
    /// The active family of perf events: see [`crate::event`].
    pub event_family: AtomicU32,
}

impl ControlBlock {
    /// Adds one to a counter.
    pub fn count(&self, counter: Counter) {
        self.count_by(counter, 1);
    }

    /// Adds to a counter.
    pub fn count_by(&self, counter: Counter, count: u64) {
        // Relaxed: counters order nothing, and the recorder may read them late.
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
    const _: () = assert!(HANDLER_STACK_OFFSET >= FRAME_WORDS_MAX as u64 * 8);
    const _: () = assert!(FRAME_WORDS_MAX > DEPTH_MAX);
    const _: () = assert!(SCRATCH_OFFSET.is_multiple_of(16) && SCRATCH_STRIDE.is_multiple_of(16));
    const _: () =
        assert!(TRACE_TABLES_OFFSET + TRACE_TABLES as u64 * TRACE_TABLE_STRIDE <= DATA_LEN);
    const _: () = assert!(CODE_LEN <= TABLES_DISTANCE);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn values_of_signals_hold_mark_cookie_slot_and_generation() {
        let value = timer_value(0xabcd_1234, 0x2001, 3);
        assert_eq!(value, 0x7450_1234_0000_e001);
        assert!(is_timer_value(value, 0xabcd_1234) && is_timer_value(value, 0x1234));
        assert!(!is_timer_value(value, 0x1235) && !is_timer_value(value ^ 1 << 63, 0x1234));
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
        // The signal seems sent after its arrival: the value is foreign, or the clock was read
        // before.
        assert_eq!(prime_latency_ns(prime_value(7, 3_000_000), 2_000_000), None);
    }
}
