//! Time inside the kernel, sampled without a signal.
//!
//! A hit of a `sigtrap` event in kernel mode is delivered when the thread returns to user mode. If
//! the system call is `execve` that is in the new program, whose disposition is the default one:
//! measured, such a hit killed 15 of 15 targets that executed another program. So the signalling
//! events leave kernel mode out, and a second family takes its hits into ring buffers, with the
//! user registers and a copy of the stack's top; the recorder unwinds them with the same tables.
//!
//! # Invariants
//! - A kernel hit changes nothing in the target.
//! - Both families count the same clock and leave out what the other takes, so weights add up on
//!   average; what chance does to the sum, `balance` puts right. The delivery of our own signals is
//!   the exception: the signalling family's timer starts anew with it and never expires in it, so that
//!   family counts its time as user time, and a hit of this one in it is left out (measured with them:
//!   1 to 2 % too much at 999 Hz, 10 % at 10 kHz).

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;

use traceprof_abi::layout::DEPTH_MAX;
use traceprof_abi::storage::log::{Sample, flags};
use traceprof_abi::sync::{AtomicU64, Ordering};
use traceprof_abi::unwind::{self, EndReason, Memory, Registers, Snapshot, Tables};

use super::batch::{Batch, ThreadNews};
use super::collections::{Collection, Distinct, empty, empty_map};
use super::perf::{self, Scope, Setup};
use super::ring::Ring;
use crate::proc;

mod cores;
mod rate;

pub(super) use self::cores::cpus;
pub(super) use self::rate::Slower;

/// Memory for all ring buffers together.
const RINGS_LEN: usize = 64 << 20;
const RING_MAX: usize = 4 << 20;
const RING_MIN: usize = 256 << 10;
/// From a hit during the delivery of a signal to the handler's own reading of the clock, at most
/// (measured on a virtual machine: 10 to 23 us). A page fault of an instruction that is interrupted
/// within that time is taken for one, too.
const DELIVERY_NS: u64 = 30_000;
/// Kernel hits a second and thread; beyond it each one weighs more.
const FREQ_MAX: u64 = 2000;
/// Descriptors that may be spent: one for each thread at attach and core.
const DESCRIPTORS_MAX: usize = 32768;
const PERF_RECORD_LOST: u32 = 2;
const PERF_RECORD_SAMPLE: u32 = 9;

/// The events and buffers of one recording.
pub(super) struct KernelEvents {
    events: Vec<OwnedFd>,
    /// The events that the buffers belong to, by core: they stay, and need not be on.
    owners: Vec<OwnedFd>,
    rings: Vec<Ring>,
    /// Share of a period, in units of [`SHARE`], that hits have not been given weight for yet.
    owed: u64,
    /// What one hit stands for, in the same units.
    share: u64,
    tables: Tables,
    frames: Vec<AtomicU64>,
    /// The same frames as plain words.
    words: Vec<u64>,
    traces: Distinct,
    /// The event whose hits count, by thread and core.
    accepted: HashMap<(u32, u32), u64>,
    hits: Vec<Hit>,
    /// How many of them [`Self::news`] has told of.
    told: usize,
    /// Hits that belong to the next batch, and their traces.
    later: (Vec<Hit>, Distinct),
    own: Range<u64>,
    /// Hits that found a buffer full.
    pub(super) lost: u64,
    /// Hits in all, those that do not count among them.
    pub(super) told_of: u64,
}

/// One hit, unwound.
#[derive(Debug, Clone, Copy)]
struct Hit {
    tid: u32,
    time_ns: u64,
    /// Number of its trace.
    trace: u32,
    reason: u16,
    /// What it stands for, in units of [`SHARE`].
    share: u64,
}

/// Units of a period.
const SHARE: u64 = 1000;
/// Hits, and threads with their cores, that room is kept for.
const HITS_LEAST: usize = 1024;

/// What one hit stands for, in thousandths of a period: a little more than two periods, or than
/// several at high rates, since each tick of this second timer costs the target as much as one of
/// the first (6 % of slowdown at 10 kHz when both were equally fast). The two families must not tick in step: both are started within
/// microseconds, and a timer of this one that expires while the other one's signal is delivered
/// would find the thread in the kernel each time (measured: 15 % of all time, on a busy machine).
/// A period off by the golden ratio keeps every phase equally likely.
fn share(period_ns: u64) -> u64 {
    let freq = 1_000_000_000 / period_ns.max(1);
    freq.div_ceil(FREQ_MAX).max(2) * SHARE + 382
}

/// Bytes of stack to copy at each hit: less at high rates.
fn stack_len(period_ns: u64) -> u32 {
    if period_ns >= 2_000_000 { 32 << 10 } else { 16 << 10 }
}

/// Bytes of each core's buffer: a power of two.
fn ring_len(cores: usize) -> usize {
    1 << (RINGS_LEN / cores.max(1)).clamp(RING_MIN, RING_MAX).ilog2()
}

/// There may be so many descriptors: one for each thread on each core.
fn check_descriptors(pid: i32, cores: usize) -> io::Result<()> {
    let threads = proc::tasks(pid)?.len().max(1);
    match threads.saturating_mul(cores) {
        0..=DESCRIPTORS_MAX => Ok(()),
        _ => Err(io::Error::from_raw_os_error(libc::EMFILE)),
    }
}

/// Whether this user may sample kernel mode on this thread.
pub(super) fn is_permitted(tid: i32, setup: Setup) -> bool {
    let cpu = cpus().first().copied().unwrap_or(0);
    let stack = stack_len(setup.period_ns);
    perf::open_kernel(Scope::Family, (tid, cpu), setup.period_ns, stack).is_ok()
}

impl KernelEvents {
    fn new(share: u64, tables: Tables) -> Self {
        Self {
            events: Vec::new(),
            owners: Vec::new(),
            rings: Vec::new(),
            owed: 0,
            share,
            tables,
            frames: (0..DEPTH_MAX).map(|_| AtomicU64::new(0)).collect(),
            words: Vec::with_capacity(DEPTH_MAX),
            traces: Distinct::default(),
            accepted: HashMap::new(),
            hits: Vec::new(),
            told: 0,
            later: Default::default(),
            own: 0..0,
            lost: 0,
            told_of: 0,
        }
    }

    /// Opens a disabled event for each thread and core, with hits that stand for 2 to the power of `shift`
    /// times as much as usual. Threads that come later inherit theirs.
    pub(super) fn open(pid: i32, setup: Setup, shift: u32, tables: Tables) -> io::Result<Self> {
        let mut kernel = Self::new(rate::slow_share(setup, shift), tables);
        let cpus = cpus();
        check_descriptors(pid, cpus.len())?;
        let (ring_len, period_ns) = (ring_len(cpus.len()), kernel.period_ns(setup));
        for cpu in cpus {
            kernel.open_core(pid, cpu, period_ns, ring_len)?;
        }
        Ok(kernel)
    }

    /// Buffers only: threads are added one by one.
    pub(super) fn open_empty(setup: Setup, tables: Tables) -> io::Result<Self> {
        let mut kernel = Self::new(share(setup.period_ns), tables);
        let cpus = cpus();
        let ring_len = ring_len(cpus.len());
        for cpu in cpus {
            // A buffer belongs to an event: this one is of the calling thread, and never on.
            let (own, stack) = (0, stack_len(setup.period_ns));
            let event =
                perf::open_kernel(Scope::Alone, (own, cpu), kernel.period_ns(setup), stack)?;
            kernel.rings.push(Ring::map(&event, ring_len)?);
            kernel.owners.push(event);
        }
        Ok(kernel)
    }

    /// Events for one thread alone, disabled, in the buffers of [`Self::open_empty`]. They are the
    /// caller's to close.
    pub(super) fn add(&self, tid: i32, setup: Setup) -> io::Result<Vec<OwnedFd>> {
        let (period_ns, stack) = (self.period_ns(setup), stack_len(setup.period_ns));
        let open = |(cpu, owner): (i32, &OwnedFd)| {
            let event = perf::open_kernel(Scope::Alone, (tid, cpu), period_ns, stack)?;
            perf::share_output(&event, owner)?;
            Ok(event)
        };
        cpus().into_iter().zip(&self.owners).map(open).collect()
    }

    fn period_ns(&self, setup: Setup) -> u64 {
        setup.period_ns.saturating_mul(self.share) / SHARE
    }

    /// The events of all threads on one core share its buffer.
    fn open_core(&mut self, pid: i32, cpu: i32, period_ns: u64, ring_len: usize) -> io::Result<()> {
        let mut first: Option<usize> = None;
        let stack = stack_len(period_ns);
        let mut open = |tid: i32| -> io::Result<()> {
            let event = perf::open_kernel(Scope::Family, (tid, cpu), period_ns, stack)?;
            match first {
                None => {
                    self.rings.push(Ring::map(&event, ring_len)?);
                    self.owners.push(event.try_clone()?);
                    first = Some(self.events.len());
                }
                Some(index) => perf::share_output(&event, &self.events[index])?,
            }
            self.events.push(event);
            Ok(())
        };
        perf::each_thread(pid, |tid| match open(tid) {
            Err(error) if error.raw_os_error() != Some(libc::ESRCH) => Err(error),
            opened => Ok(opened.is_ok()),
        })
    }

    /// Starts all events.
    pub(super) fn enable(&self) {
        self.events.iter().for_each(perf::enable);
    }

    /// Stops all events.
    pub(super) fn disable(&self) {
        self.events.iter().for_each(perf::disable);
    }

    /// Takes the records that have come and unwinds them.
    pub(super) fn drain(&mut self) {
        let tables = self.tables;
        let Some(snapshot) = tables.snapshot() else { return };
        let mut rings = std::mem::take(&mut self.rings);
        for ring in &mut rings {
            ring.drain(|record| self.record(record, &snapshot));
        }
        self.rings = rings;
    }

    /// The threads that were hit since the last call, as the recorder sees them.
    pub(super) fn news(&mut self) -> BTreeSet<u32> {
        let new = self.hits.get(self.told..).unwrap_or_default();
        self.told = self.hits.len();
        new.iter().map(|hit| hit.tid).collect()
    }

    fn record(&mut self, record: &[u8], snapshot: &Snapshot<'_>) {
        let Some((header, body)) = record.split_first_chunk::<8>() else { return };
        match u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) {
            PERF_RECORD_SAMPLE => {
                if let Some(interrupted) = Interrupted::parse(body) {
                    self.hit(&interrupted, snapshot);
                }
            }
            PERF_RECORD_LOST => self.lost += Words(body).nth(1).unwrap_or(0),
            _ => {}
        }
    }

    fn hit(&mut self, interrupted: &Interrupted<'_>, snapshot: &Snapshot<'_>) {
        self.told_of += 1;
        // The handler's own system calls: the signalling family, whose timer has just been forwarded,
        // has counted their time already.
        if self.own.contains(&interrupted.registers.pc) {
            return;
        }
        // A thread that was found after it had inherited an event has two on each core, and so have
        // the threads that it starts: one of them counts.
        let place = (interrupted.tid, interrupted.cpu);
        if *self.accepted.entry(place).or_insert(interrupted.event) != interrupted.event {
            return;
        }
        let mut memory = CopiedStack::new(snapshot, interrupted);
        let unwound = unwind::unwind(snapshot, &interrupted.registers, &mut memory, &self.frames);
        let end = memory.end(unwound.end);
        let frames = self.frames.iter().take(unwound.depth);
        self.words.clear();
        // Relaxed: this thread's own buffer.
        self.words.extend(frames.map(|frame| frame.load(Ordering::Relaxed)));
        self.hits.push(Hit {
            tid: interrupted.tid,
            time_ns: interrupted.time_ns,
            trace: self.traces.number(&self.words, unwind::trace_flags(end, snapshot.epoch())),
            reason: end as u16,
            share: self.share,
        });
    }

    /// Hands over the hits up to `until_ns` that were drained; those after it wait, since the
    /// handlers' samples of that time come with the next batch, and a thread's times must not go
    /// back. `instance` gives the upper half of the traces' ids, if there are any; `key` is the
    /// key of the thread that had an id at a time.
    pub(super) fn take(
        &mut self,
        until_ns: u64,
        batch: &mut Batch,
        instance: impl FnOnce() -> Option<u32>,
        mut key: impl FnMut(u32, u64, &mut Vec<ThreadNews>) -> (u32, u32),
    ) {
        // Thread ids are reused; which of two events counts need not last.
        empty_map(&mut self.accepted, HITS_LEAST);
        if self.hits.is_empty() {
            return;
        }
        // The recording ends when there are no more ids; the hits wait for its end.
        let Some(instance) = instance() else { return };
        let upper = u64::from(instance) << 32;
        // Those of the handlers, to look them up.
        batch.sort();
        let handled = batch.samples.len();
        let (later, their_traces) = &mut self.later;
        for hit in &self.hits {
            if hit.time_ns > until_ns {
                let traces = self.traces.traces();
                let Some(entry) = traces.entries().get(hit.trace as usize) else { continue };
                let trace = their_traces.number(traces.frames_of(entry), entry.flags);
                later.push(Hit { trace, ..*hit });
                continue;
            }
            let (slot, generation) = key(hit.tid, hit.time_ns, &mut batch.threads);
            let traces = self.traces.traces();
            let frames = traces.entries().get(hit.trace as usize).map(|it| traces.frames_of(it));
            let leaf = frames.and_then(<[u64]>::first);
            if is_delivery(
                (slot, generation),
                hit.time_ns,
                leaf,
                (&batch.samples[..handled], &batch.traces),
            ) {
                continue;
            }
            self.owed += hit.share;
            let weight = (self.owed / SHARE) as u32;
            self.owed %= SHARE;
            self.traces.weigh(hit.trace, u64::from(weight));
            batch.samples.push(Sample {
                time: hit.time_ns,
                trace_id: upper | u64::from(hit.trace),
                slot,
                generation,
                tid: hit.tid,
                weight,
                flags: flags::KERNEL,
                reason: hit.reason,
                ..Sample::default()
            });
        }
        let traces = self.traces.traces();
        for entry in traces.entries().iter().filter(|entry| entry.weight > 0) {
            batch.traces.copy(traces, entry.with_id(upper | entry.id));
        }
        self.traces.clear();
        std::mem::swap(&mut self.traces, their_traces);
        std::mem::swap(&mut self.hits, later);
        self.told = self.hits.len();
        empty(later, HITS_LEAST);
    }

    /// The agent's own addresses in the target: hits there are its handler's.
    pub(super) fn leave_out(&mut self, own: Range<u64>) {
        self.own = own;
    }
}

/// Whether the handler took a sample of the same instruction right after this hit: the kernel was
/// about to deliver the signal. The samples are in order.
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

/// What a hit interrupted.
struct Interrupted<'r> {
    tid: u32,
    time_ns: u64,
    /// The kernel's id of the event, or of the one that it was inherited from.
    event: u64,
    cpu: u32,
    registers: Registers,
    stack: &'r [u8],
}

/// The words of a record.
struct Words<'r>(&'r [u8]);

impl Iterator for Words<'_> {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let (word, rest) = self.0.split_first_chunk::<8>()?;
        self.0 = rest;
        Some(u64::from_ne_bytes(*word))
    }
}

impl<'r> Interrupted<'r> {
    /// Fields as the kernel orders them: pid and tid, time, event id, core, user registers, user
    /// stack. `None` for a hit without user registers.
    fn parse(body: &'r [u8]) -> Option<Self> {
        const ABI_64: u64 = 2;
        let mut words = Words(body);
        let tid = (words.next()? >> 32) as u32;
        let time_ns = words.next()?;
        let event = words.next()?;
        let cpu = words.next()? as u32;
        if words.next()? != ABI_64 {
            return None;
        }
        let mut regs = [0u64; perf::USER_REGISTERS];
        for register in &mut regs {
            *register = words.next()?;
        }
        let registers = perf::registers(regs);
        let size = usize::try_from(words.next()?).ok()?;
        let copied = words.0.get(..size)?;
        let used = words.0.get(size..).and_then(<[u8]>::first_chunk::<8>);
        let used = used.map_or(0, |word| u64::from_ne_bytes(*word));
        let stack = copied.get(..usize::try_from(used).ok()?)?;
        Some(Self { tid, time_ns, event, cpu, registers, stack })
    }
}

/// The copied top of a stack.
struct CopiedStack<'r> {
    snapshot: &'r Snapshot<'r>,
    sp: u64,
    bytes: &'r [u8],
    bounds: (u64, u64),
    /// What was asked for last lies above what was copied.
    is_short: bool,
}

impl<'r> CopiedStack<'r> {
    fn new(snapshot: &'r Snapshot<'r>, interrupted: &Interrupted<'r>) -> Self {
        let (sp, bytes) = (interrupted.registers.sp, interrupted.stack);
        let mut memory = Self { snapshot, sp, bytes, bounds: (sp, sp), is_short: false };
        memory.bound(sp);
        memory
    }

    /// Why a walk really ended: where a word was missing, the stack may go on. A rule that cannot be
    /// applied, or code that no table covers, ends it whatever was copied.
    fn end(&self, end: EndReason) -> EndReason {
        match end {
            EndReason::Unreadable | EndReason::Gap | EndReason::Range if self.is_short => {
                EndReason::Copied
            }
            end => end,
        }
    }

    fn bound(&mut self, sp: u64) {
        let copied = (self.sp, self.sp.saturating_add(self.bytes.len() as u64));
        // Nothing below sp is copied.
        self.bounds = self.snapshot.writable(sp).map_or(copied, |(lo, hi)| (lo.max(self.sp), hi));
    }
}

impl Memory for CopiedStack<'_> {
    fn load(&mut self, avma: u64) -> Option<u64> {
        let offset = avma.checked_sub(self.sp).and_then(|offset| usize::try_from(offset).ok());
        let word = offset.and_then(|offset| self.bytes.get(offset..)?.first_chunk());
        self.is_short = word.is_none() && avma >= self.sp;
        word.map(|word| u64::from_ne_bytes(*word))
    }

    fn rebound(&mut self, sp: u64) -> bool {
        self.bound(sp);
        self.load(sp & !7).is_some()
    }

    fn bounds(&self) -> (u64, u64) {
        self.bounds
    }
}

#[cfg(test)]
pub(super) mod tests;
