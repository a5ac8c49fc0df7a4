//! Drains the shared tables into batches, and attributes each sample to a thread.

use std::time::{Duration, Instant};

use traceprof_abi::storage::log::Sample;
use traceprof_abi::unwind::EndReason;

use self::collector::{Collector, Stats};
use self::outside_unwind::{HadCode, OutsideUnwinder};
use self::threads::{Registry, ThreadMetrics};
use crate::record::batch::Batch;
use crate::record::contract::clock::Clock;
use crate::record::source::kernel::KernelEvents;
use crate::record::source::program::TargetThreads;
use crate::record::source::wall::Wall;
use crate::record::target::attach::Attached;

pub(crate) mod collector;
pub mod fuzz_entry;
pub(crate) mod heaviest;
pub(crate) mod liveness;
pub(crate) mod outside_unwind;
pub(crate) mod threads;
pub(crate) mod trace_ids;

/// How long thread names may be read before the trace is flushed: a twentieth of the interval
/// between two flushes.
const NAMES_TIME: Duration = Duration::from_millis(40);

/// The samples of one program between its handlers and the batches.
pub(crate) struct Store {
    /// The clock of the samples.
    pub(crate) clock: Clock,
    /// The shared tables.
    pub(crate) collector: Collector,
    /// The target's threads.
    pub(crate) threads: Registry,
    unwinder: OutsideUnwinder,
}

/// Totals of the store of one program, or of several.
#[derive(Debug, Clone, Default)]
pub(crate) struct StoreTotals {
    /// Counts of threads and slots.
    pub(crate) threads: ThreadMetrics,
    /// Counts of the rotations.
    pub(crate) storage: Stats,
    /// The number of stacks that the recorder unwound in place of a handler.
    pub(crate) unwound_outside: u64,
}

impl StoreTotals {
    /// Adds the totals of another program or process.
    pub(crate) fn add(&mut self, other: &Self) {
        self.threads.add(other.threads);
        self.storage.add(other.storage);
        self.unwound_outside += other.unwound_outside;
    }
}

impl Store {
    /// Makes the store of a program with these tables and threads.
    pub(crate) fn new(clock: Clock, collector: Collector, threads: Registry) -> Self {
        Self { clock, collector, threads, unwinder: OutsideUnwinder::default() }
    }

    /// Updates the list of threads before a rotation, and before a flush also their names.
    pub(crate) fn scan_threads(&mut self, is_flush: bool) {
        if is_flush {
            self.threads.scan(false);
            self.threads.read_names(NAMES_TIME);
        } else {
            self.threads.turn(Instant::now());
        }
    }

    /// Moves the handlers' samples into the batch, and returns whether these are all samples so
    /// far.
    pub(crate) fn drain(&mut self, batch: &mut Batch) -> bool {
        batch.threads.extend(self.threads.take_changes());
        let threads = &self.threads;
        self.collector.rotate(batch, &|owner| threads.is_owner_gone(owner)).is_complete
    }

    /// Moves all remaining samples into the batch, once no handler runs any more.
    pub(crate) fn drain_remaining(&mut self, batch: &mut Batch) {
        batch.threads.extend(self.threads.take_changes());
        self.collector.finish(batch);
    }

    /// Sets the times of the samples, in CLOCK_MONOTONIC nanoseconds, and returns the number of
    /// samples whose unwind ended outside all known modules.
    pub(crate) fn set_times(&mut self, batch: &mut Batch) -> u64 {
        self.clock.advance();
        set_times(&self.clock, batch)
    }

    /// Unwinds the stacks that the handlers could not unwind, with the mappings known by now.
    pub(crate) fn unwind_outside(&mut self, batch: &mut Batch, attached: &mut Attached<'_>) {
        let (tables, pid) = (attached.tables(), attached.pid());
        let Some(snapshot) = tables.snapshot() else { return };
        let modules = attached.modules();
        // After an exec, the process has the code of another program, which must not be read for
        // these stacks.
        let pid = (!self.threads.is_program_gone()).then_some(pid);
        let collector = &self.collector;
        let had_code = |avma, time_ns, is_new| modules.had_code(avma, time_ns, is_new);
        let instance = || collector.take_instance();
        self.unwinder.unwind_slices(batch, pid, (&snapshot, &had_code), instance);
    }

    /// Attributes each sample to the thread that took it.
    pub(crate) fn attribute(&mut self, batch: &mut Batch) {
        self.threads.attribute(&mut batch.samples, &mut batch.threads);
    }

    /// Adds the kernel's samples up to `until_ns`, and attributes each to the thread that had its
    /// id at its time.
    pub(crate) fn add_kernel(
        &mut self,
        batch: &mut Batch,
        kernel: &mut KernelEvents,
        (until_ns, had_code): (u64, HadCode<'_>),
    ) {
        let (collector, threads) = (&self.collector, &mut self.threads);
        let before = batch.samples.len();
        kernel.take(
            until_ns,
            batch,
            || collector.take_instance(),
            |tid, time_ns, changes| threads.key_of(tid as i32, time_ns, changes),
        );
        self.unwinder.end_unproven(batch, before, had_code, || collector.take_instance());
    }

    /// Adds the stacks of threads that do not run, and returns their samples.
    ///
    /// The caller adds these to the batch once the CPU samples are weighed.
    pub(crate) fn off_cpu(&mut self, batch: &mut Batch, wall: &mut Wall) -> Vec<Sample> {
        let (collector, threads) = (&self.collector, &mut self.threads);
        let announce = |key, changes: &mut Vec<_>| threads.announce(key, changes);
        wall.samples(batch, || collector.take_instance(), announce)
    }

    /// Returns wall-clock samples of the time that threads ran, from the weighed samples of the
    /// batch.
    ///
    /// `period` is the sampling period in nanoseconds, and whether the batch is the last one.
    pub(crate) fn running(
        &mut self,
        batch: &mut Batch,
        wall: &mut Wall,
        period: (u64, bool),
    ) -> Vec<Sample> {
        let (collector, threads) = (&self.collector, &mut self.threads);
        let announce = |key, changes: &mut Vec<_>| threads.announce(key, changes);
        wall.running(batch, period, || collector.take_instance(), announce)
    }

    /// Returns the totals.
    pub(crate) fn totals(&self) -> StoreTotals {
        StoreTotals {
            threads: self.threads.metrics(),
            storage: self.collector.stats,
            unwound_outside: self.unwinder.unwound,
        }
    }
}

/// Sets the times of the samples by the clock, and returns the number of samples whose unwind ended
/// outside all known modules.
pub(crate) fn set_times(clock: &Clock, batch: &mut Batch) -> u64 {
    let mut unknown = 0;
    for sample in &mut batch.samples {
        sample.time = clock.monotonic_ns(sample.time);
        unknown += u64::from(sample.reason == EndReason::NoModule as u16);
    }
    unknown
}
