//! Time inside the kernel, sampled without a signal.
//!
//! The kernel delivers the signal of a `sigtrap` event that expired in kernel mode when the thread
//! returns to user mode. After `execve` that is in the new program, where SIGTRAP has its default
//! action: such a signal killed 15 of 15 targets that executed another program (measured). So the
//! signalling events exclude kernel mode. A second family of events writes its samples into ring
//! buffers, with the user registers and a copy of the stack's top. The recorder unwinds them with
//! the same tables.
//!
//! # Invariants
//! - A kernel sample changes nothing in the target.
//! - Both families count the same clock, and each excludes the mode that the other samples, so the
//!   weights add up on average; `balance` corrects random errors of the sum. The delivery of our
//!   own signals is the exception: it restarts the signalling family's timer, which never expires
//!   during a delivery, so that family counts this time as user time. The recorder therefore drops
//!   samples of this family during a delivery (with them: 1 to 2 % too much at 999 Hz, 10 % at 10
//!   kHz).

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;

use traceprof_abi::layout::DEPTH_MAX;
use traceprof_abi::runtime::word::{KERNEL_NAMELESS, split_kernel};
use traceprof_abi::storage::log::{Sample, flags};
use traceprof_abi::sync::{AtomicU64, Ordering};
use traceprof_abi::unwind::{self, Snapshot, Tables};

use crate::record::batch::Batch;
use crate::record::batch::threads::ThreadChange;
use crate::record::batch::traces::{Collection, Distinct, empty, empty_map};
use crate::record::contract::sampling::{KernelFrames, Setup};
use crate::record::source::perf::{self, Modes, SampleContent, Scope};
use crate::record::source::ring_buffer::RingBuffer;
use crate::record::target::narrow_stacks::{self, NarrowThread};

mod buffers;
mod copied_stack;
mod cores;
mod descendants;
mod frames_shown;
mod rate;
mod sample_record;

use self::buffers::{check_descriptors, ring_len, stack_len};
use self::copied_stack::CopiedStack;
pub(crate) use self::cores::cpus;
pub(crate) use self::descendants::{
    DescendantChange, DescendantEvents, DescendantRecord, DescendantSample, DescendantSetup,
    SampledStack,
};
pub(crate) use self::frames_shown::{Obstacle, shown};
pub(crate) use self::rate::SlowerFamily;
use self::sample_record::{InterruptedThread, Words};

/// The longest time from a sample during a signal's delivery until the handler reads the clock
/// (measured on a virtual machine: 10 to 23 us).
///
/// A page fault of an instruction that is interrupted within this time counts as a delivery, too.
const DELIVERY_NS: u64 = 30_000;
/// The highest rate of kernel samples for each thread; above it each sample weighs more.
const FREQ_MAX: u64 = 2000;
const PERF_RECORD_LOST: u32 = 2;
const PERF_RECORD_SAMPLE: u32 = 9;
/// `PERF_RECORD_MISC_CPUMODE_MASK`, and `PERF_RECORD_MISC_USER` below.
const MODE_MASK: u16 = 7;
const MODE_USER: u16 = 2;

/// The kernel-mode events and buffers of one recording.
pub(crate) struct KernelEvents {
    events: Vec<OwnedFd>,
    /// The events that own the buffers, by core; they stay open and need not be enabled.
    owners: Vec<OwnedFd>,
    rings: Vec<RingBuffer>,
    /// The share of a period, in units of [`SHARE`], that is not yet part of a sample's weight.
    owed: u64,
    /// The weight of one sample, in the same units.
    share: u64,
    /// What samples show of the kernel's functions.
    shown: KernelFrames,
    tables: Tables,
    frames: Vec<AtomicU64>,
    /// The frames of the kernel and the same frames, as plain words.
    words: Vec<u64>,
    traces: Distinct,
    /// The event whose samples count, by thread and core.
    accepted: HashMap<(u32, u32), u64>,
    samples: Vec<KernelSample>,
    /// The number of samples that [`Self::take_sampled_threads`] has reported.
    reported: usize,
    /// The samples of the next batch, and their traces.
    later: (Vec<KernelSample>, Distinct),
    agent_range: Range<u64>,
    /// The modes that are sampled here of all threads but these.
    modes: Modes,
    /// Threads that get no signal: their time in user mode is sampled here, too.
    narrow: Vec<NarrowThread>,
    /// Threads whose user mode signals sample, and since when, in CLOCK_MONOTONIC nanoseconds.
    /// Their samples in user mode do not count here.
    pub(crate) signalled: HashMap<u32, u64>,
    /// Samples that found a buffer full.
    pub(crate) lost: u64,
    /// All samples, including those that do not count.
    pub(crate) samples_seen: u64,
}

/// One sample, unwound.
#[derive(Debug, Clone, Copy)]
struct KernelSample {
    tid: u32,
    time_ns: u64,
    /// The number of its trace.
    trace: u32,
    reason: u16,
    /// Its weight in units of [`SHARE`].
    share: u64,
    /// Whether the thread ran in user mode.
    is_user: bool,
}

/// The number of units in one period.
const SHARE: u64 = 1000;
/// The number of samples, and of threads with their cores, that buffers keep room for.
const SAMPLES_LEAST: usize = 1024;

/// Returns the weight of one sample in thousandths of a period.
///
/// It is a little more than two periods, or several at high rates: each expiry of this second timer
/// costs the target as much as one of the first (6 % of slowdown at 10 kHz when both were equally
/// fast). The two families must not expire in step. Both start within microseconds of each other. A
/// timer of this family that expires while the other family's signal is delivered would find the
/// thread in the kernel each time (measured: 15 % of all time, on a busy machine). A period off by
/// the golden ratio makes every phase equally likely.
fn share(period_ns: u64) -> u64 {
    let freq = 1_000_000_000 / period_ns.max(1);
    freq.div_ceil(FREQ_MAX).max(2) * SHARE + 382
}

/// Checks whether this user may sample kernel mode on this thread.
pub(crate) fn is_permitted(tid: i32, setup: Setup) -> bool {
    let cpu = cpus().first().copied().unwrap_or(0);
    let content = SampleContent { user_stack: stack_len(setup.period_ns), has_chain: false };
    let family = (Scope::Family, Modes::Kernel);
    perf::open_kernel(family, (tid, cpu), setup.period_ns, content).is_ok()
}

/// Returns the modes of a thread that are sampled without a signal: those of all threads, or both
/// for a thread that gets no signal.
fn modes_of(all: Modes, narrow: &[NarrowThread], pid: i32, tid: i32) -> Modes {
    if all == Modes::Kernel && narrow_stacks::holds(narrow, pid, tid) { Modes::All } else { all }
}

impl KernelEvents {
    fn new((share, shown): (u64, KernelFrames), modes: Modes, tables: Tables) -> Self {
        Self {
            modes,
            signalled: HashMap::new(),
            events: Vec::new(),
            owners: Vec::new(),
            rings: Vec::new(),
            owed: 0,
            share,
            shown,
            tables,
            frames: (0..DEPTH_MAX).map(|_| AtomicU64::new(0)).collect(),
            words: Vec::with_capacity(DEPTH_MAX),
            traces: Distinct::default(),
            accepted: HashMap::new(),
            samples: Vec::new(),
            reported: 0,
            later: Default::default(),
            agent_range: 0..0,
            narrow: Vec::new(),
            lost: 0,
            samples_seen: 0,
        }
    }

    /// Opens a disabled event for each thread and core; later threads inherit theirs.
    ///
    /// Each sample has 2 to the power of `shift` times its usual weight. The user mode of `narrow`,
    /// and of threads that these start, is sampled as well as `modes`.
    pub(crate) fn open(
        pid: i32,
        (setup, shift): (Setup, u32),
        tables: Tables,
        (modes, narrow): (Modes, &[NarrowThread]),
    ) -> io::Result<Self> {
        let kernel = (rate::slow_share(setup, shift), setup.frames);
        let mut kernel = Self::new(kernel, modes, tables);
        kernel.narrow = narrow.to_vec();
        let cpus = cpus();
        check_descriptors(pid, cpus.len(), 0)?;
        let (ring_len, period_ns) = (ring_len(cpus.len()), kernel.period_ns(setup));
        for cpu in cpus {
            kernel.open_core(pid, cpu, period_ns, ring_len)?;
        }
        Ok(kernel)
    }

    /// Opens the buffers only; [`Self::add`] opens events for single threads.
    pub(crate) fn open_empty(setup: Setup, tables: Tables) -> io::Result<Self> {
        let kernel = (share(setup.period_ns), setup.frames);
        let mut kernel = Self::new(kernel, Modes::Kernel, tables);
        let cpus = cpus();
        let ring_len = ring_len(cpus.len());
        for cpu in cpus {
            // Each buffer needs an event. This event covers the calling thread and is never
            // enabled.
            let (own_thread, content) = (0, kernel.content(setup.period_ns));
            let alone = (Scope::Alone, Modes::Kernel);
            let event =
                perf::open_kernel(alone, (own_thread, cpu), kernel.period_ns(setup), content)?;
            kernel.rings.push(RingBuffer::map(&event, ring_len)?);
            kernel.owners.push(event);
        }
        Ok(kernel)
    }

    /// Opens disabled events for one thread alone, in the buffers of [`Self::open_empty`].
    ///
    /// The caller closes them.
    pub(crate) fn add(&self, tid: i32, setup: Setup) -> io::Result<Vec<OwnedFd>> {
        let (period_ns, content) = (self.period_ns(setup), self.content(setup.period_ns));
        let open = |(cpu, owner): (i32, &OwnedFd)| {
            let alone = (Scope::Alone, Modes::Kernel);
            let event = perf::open_kernel(alone, (tid, cpu), period_ns, content)?;
            perf::share_output(&event, owner)?;
            Ok(event)
        };
        cpus().into_iter().zip(&self.owners).map(open).collect()
    }

    fn period_ns(&self, setup: Setup) -> u64 {
        setup.period_ns.saturating_mul(self.share) / SHARE
    }

    /// Returns what samples contain at this rate.
    fn content(&self, period_ns: u64) -> SampleContent {
        let has_chain = self.shown == KernelFrames::Chain;
        SampleContent { user_stack: stack_len(period_ns), has_chain }
    }

    /// Opens the events of all threads on one core, which share a buffer.
    fn open_core(&mut self, pid: i32, cpu: i32, period_ns: u64, ring_len: usize) -> io::Result<()> {
        let mut first: Option<usize> = None;
        let (content, narrow) = (self.content(period_ns), std::mem::take(&mut self.narrow));
        let modes = self.modes;
        let mut open = |tid: i32| -> io::Result<()> {
            let family = (Scope::Family, modes_of(modes, &narrow, pid, tid));
            let event = perf::open_kernel(family, (tid, cpu), period_ns, content)?;
            match first {
                None => {
                    self.rings.push(RingBuffer::map(&event, ring_len)?);
                    self.owners.push(event.try_clone()?);
                    first = Some(self.events.len());
                }
                Some(index) => perf::share_output(&event, &self.events[index])?,
            }
            self.events.push(event);
            Ok(())
        };
        let opened = perf::each_thread(pid, |tid| match open(tid) {
            Err(error) if error.raw_os_error() != Some(libc::ESRCH) => Err(error),
            opened => Ok(opened.is_ok()),
        });
        self.narrow = narrow;
        opened
    }

    /// Returns whether the user mode of all threads is sampled here, unless signals sample it.
    pub(crate) fn has_user_mode(&self) -> bool {
        self.modes != Modes::Kernel
    }

    /// Starts all events.
    pub(crate) fn enable(&self) {
        self.events.iter().for_each(perf::enable);
    }

    /// Stops all events.
    pub(crate) fn disable(&self) {
        self.events.iter().for_each(perf::disable);
    }

    /// Reads the records that have arrived and unwinds them.
    pub(crate) fn drain(&mut self) {
        let tables = self.tables;
        let Some(snapshot) = tables.snapshot() else { return };
        let mut rings = std::mem::take(&mut self.rings);
        for ring in &mut rings {
            ring.drain(|record| self.record(record, &snapshot));
        }
        self.rings = rings;
    }

    /// Returns the outer ids of the threads that were sampled since the last call.
    pub(crate) fn take_sampled_threads(&mut self) -> BTreeSet<u32> {
        let new = self.samples.get(self.reported..).unwrap_or_default();
        self.reported = self.samples.len();
        new.iter().map(|sample| sample.tid).collect()
    }

    fn record(&mut self, record: &[u8], snapshot: &Snapshot<'_>) {
        let Some((header, body)) = record.split_first_chunk::<8>() else { return };
        let mode = u16::from_ne_bytes([header[4], header[5]]) & MODE_MASK;
        match u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) {
            PERF_RECORD_SAMPLE => {
                let has_chain = self.shown == KernelFrames::Chain;
                if let Some(interrupted) = InterruptedThread::parse(body, has_chain) {
                    self.sample(&interrupted, mode == MODE_USER, snapshot);
                }
            }
            PERF_RECORD_LOST => self.lost += Words(body).nth(1).unwrap_or(0),
            _ => {}
        }
    }

    fn sample(
        &mut self,
        interrupted: &InterruptedThread<'_>,
        is_user: bool,
        snapshot: &Snapshot<'_>,
    ) {
        self.samples_seen += 1;
        let is_signalled = |since_ns: &u64| interrupted.time_ns >= *since_ns;
        if is_user && self.signalled.get(&interrupted.tid).is_some_and(is_signalled) {
            return;
        }
        // A sample in the handler's own system calls. The signalling family counts their time
        // already, since its timer has just been restarted.
        if self.agent_range.contains(&interrupted.registers.pc) {
            return;
        }
        // A thread that was found after it had inherited an event has two events on each core, and
        // so have the threads that it starts. Only one of the two counts.
        let thread_on_cpu = (interrupted.tid, interrupted.cpu);
        if *self.accepted.entry(thread_on_cpu).or_insert(interrupted.event) != interrupted.event {
            return;
        }
        let mut memory = CopiedStack::new(snapshot, interrupted);
        let unwound = unwind::unwind(snapshot, &interrupted.registers, &mut memory, &self.frames);
        let end = memory.end(unwound.end);
        let frames = self.frames.iter().take(unwound.depth);
        self.words.clear();
        self.words.extend(interrupted.chain.frame_words());
        if self.shown == KernelFrames::Nameless && !is_user {
            self.words.push(KERNEL_NAMELESS);
        }
        // Relaxed: this thread's own buffer.
        self.words.extend(frames.map(|frame| frame.load(Ordering::Relaxed)));
        self.samples.push(KernelSample {
            tid: interrupted.tid,
            time_ns: interrupted.time_ns,
            trace: self.traces.number(&self.words, unwind::trace_flags(end, snapshot.epoch())),
            reason: end as u16,
            share: self.share,
            is_user,
        });
    }

    /// Moves the samples up to `until_ns` into the batch.
    ///
    /// Later ones wait, since the handlers' samples of that time come with the next batch and a
    /// thread's times must not decrease. `instance` returns the upper half of the traces' ids, if
    /// any are left. `key` returns the key of the thread that had a thread id at a given time.
    pub(crate) fn take(
        &mut self,
        until_ns: u64,
        batch: &mut Batch,
        instance: impl FnOnce() -> Option<u32>,
        mut key: impl FnMut(u32, u64, &mut Vec<ThreadChange>) -> (u32, u32),
    ) {
        // Cleared, since thread ids are reused; the choice between two events need not persist.
        empty_map(&mut self.accepted, SAMPLES_LEAST);
        if self.samples.is_empty() {
            return;
        }
        // Without ids the samples stay here; the recording ends when ids run out.
        let Some(instance) = instance() else { return };
        let upper = u64::from(instance) << 32;
        // Sorts the handlers' samples for the search in `is_delivery`.
        batch.sort();
        let handled = batch.samples.len();
        let (later, their_traces) = &mut self.later;
        for sample in &self.samples {
            if sample.time_ns > until_ns {
                let traces = self.traces.traces();
                let Some(entry) = traces.entries().get(sample.trace as usize) else { continue };
                let trace = their_traces.number(traces.frames_of(entry), entry.flags);
                later.push(KernelSample { trace, ..*sample });
                continue;
            }
            let (slot, generation) = key(sample.tid, sample.time_ns, &mut batch.threads);
            let traces = self.traces.traces();
            let frames = traces.entries().get(sample.trace as usize).map(|it| traces.frames_of(it));
            let leaf = frames.and_then(|frames| split_kernel(frames).1.first());
            if is_delivery(
                (slot, generation),
                sample.time_ns,
                leaf,
                (&batch.samples[..handled], &batch.traces),
            ) {
                continue;
            }
            self.owed += sample.share;
            let weight = (self.owed / SHARE) as u32;
            self.owed %= SHARE;
            self.traces.weigh(sample.trace, u64::from(weight));
            batch.samples.push(Sample {
                time: sample.time_ns,
                trace_id: upper | u64::from(sample.trace),
                slot,
                generation,
                tid: sample.tid,
                weight,
                flags: if sample.is_user { 0 } else { flags::KERNEL },
                reason: sample.reason,
                ..Sample::default()
            });
        }
        let traces = self.traces.traces();
        for entry in traces.entries().iter().filter(|entry| entry.weight > 0) {
            batch.traces.copy(traces, entry.with_id(upper | entry.id));
        }
        self.traces.clear();
        std::mem::swap(&mut self.traces, their_traces);
        std::mem::swap(&mut self.samples, later);
        self.reported = self.samples.len();
        empty(later, SAMPLES_LEAST);
    }

    /// Sets the agent's own addresses in the target, whose samples belong to its handler.
    pub(crate) fn set_agent_range(&mut self, agent_range: Range<u64>) {
        self.agent_range = agent_range;
    }
}

/// Returns whether the handler took a sample of the same instruction right after this one.
///
/// The kernel was then delivering the signal. The samples must be sorted.
fn is_delivery(
    key: (u32, u32),
    time_ns: u64,
    leaf: Option<&u64>,
    (samples, traces): (&[Sample], &Collection),
) -> bool {
    let next = samples.partition_point(|it| ((it.slot, it.generation), it.time) < (key, time_ns));
    let Some(next) = samples.get(next) else { return false };
    let is_soon = (next.slot, next.generation) == key && next.time - time_ns <= DELIVERY_NS;
    let entry = traces.get(next.trace_id).filter(|_| is_soon);
    entry.is_some_and(|entry| traces.frames_of(entry).first() == leaf)
}

#[cfg(test)]
pub(crate) mod tests;
