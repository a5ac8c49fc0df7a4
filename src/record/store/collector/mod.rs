//! Rotates the storage's tables and copies out what they hold, in the six steps of the call-trace
//! storage document: collect STANDBY, clear it and give it a new instance, make it ACTIVE, collect
//! the old ACTIVE, process what came of both, preserve what is still needed in the new STANDBY.
//!
//! The document's five collections are [`Batch::traces`] (all traces, among them those of the old
//! ACTIVE), `kept` (those of STANDBY), `live` (the ids to preserve) and `next` (the traces to
//! preserve); none of them takes memory once it has grown to what a turn needs.
//!
//! # Invariants
//! - A table is read only when no hazard names it, and reset only after it was read.
//! - What is read was written by a process that owes us nothing: ids, slots and lengths are
//!   checked by the storage's own bounds before anything is copied.
//! - A preserved trace is in every collection until it is let go, whatever becomes of STANDBY: the
//!   recorder's own copy is the one that counts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use traceprof_abi::layout::{ControlBlock, DEPTH_MAX, THREAD_SLOTS, TRACE_TABLES};
use traceprof_abi::segment::DataSegment;
use traceprof_abi::storage::DROPPED_TRACE_ID;
use traceprof_abi::storage::hazard::HazardSlots;
use traceprof_abi::storage::rotation::{Collected, Origin, Rotation};
use traceprof_abi::storage::table::{ARENA_WORDS, Put, Trace, TraceTable};
use traceprof_abi::sync::Ordering;
use traceprof_abi::unwind::{ATTRIBUTES, trace_end};

use crate::record::batch::contexts;
use crate::record::batch::rotation::Batch;
use crate::record::batch::traces::{Collection, TraceEntry};
use crate::record::store::liveness::{Heavy, LivenessChecker, PreserveSet};
use crate::record::store::trace_ids::Instances;

/// How long a rotation waits for handlers inside the old table: long against a handler, and
/// against a time slice of a busy core.
const PATIENCE: Duration = Duration::from_millis(20);

/// The recorder's side of the call-trace storage.
pub(crate) struct Collector {
    data: DataSegment,
    tables: Vec<TraceTable<'static>>,
    rotation: Rotation,
    /// Where the ids of the tables' traces come from.
    instances: Arc<Instances>,
    checkers: Vec<Box<dyn LivenessChecker>>,
    /// Ids of the traces to be kept over the next rotation.
    live: PreserveSet,
    /// The traces that are preserved now.
    kept: Collection,
    /// Where those of the next rotation are put together.
    next: Collection,
    /// Traces that were put into STANDBY, if they are there still.
    in_standby: Option<usize>,
    /// The last call of [`Self::rotate`] rotated, and STANDBY may be written.
    is_rotated: bool,
    /// Counts of what rotations met.
    pub(crate) stats: Stats,
}

/// What rotations met.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Stats {
    /// Rotations carried out.
    pub(crate) rotations: u64,
    /// Time that they took, with the collecting, in nanoseconds: sum and longest.
    pub(crate) rotation_ns: (u64, u64),
    /// Rotations that had to wait for a thread inside the old table.
    pub(crate) hazard_waits: u64,
    /// How long they waited in all, in nanoseconds.
    pub(crate) hazard_wait_ns: u64,
    /// Rotations that waited in vain: the table was quarantined.
    pub(crate) quarantines: u64,
    /// Quarantined tables that were collected later.
    pub(crate) released: u64,
    /// Hazards of threads that had died inside a handler.
    pub(crate) reclaimed: u64,
    /// Turns without a rotation: a thread was inside the table whose turn it was, and no spare
    /// left.
    pub(crate) blocked: u64,
    /// Traces preserved, each time that they were, and the most at once.
    pub(crate) preserved: (u64, u64),
    /// Preserved traces that did not fit into STANDBY, each time: the recorder alone kept them.
    pub(crate) preserve_spilled: u64,
    /// Live traces that there was no room to preserve.
    pub(crate) preserve_full: u64,
    /// Preserved traces that STANDBY did not give back as they were put.
    pub(crate) preserve_damaged: u64,
    /// Log records that were reserved and never committed.
    pub(crate) holes: u64,
    /// Samples whose trace was not in the table: they are kept without a stack.
    pub(crate) orphans: u64,
    /// Records that name no thread: the target wrote over them.
    pub(crate) unreadable: u64,
}

impl Stats {
    /// Adds those of a later program's storage.
    pub(crate) fn add(&mut self, later: Self) {
        let both = |one: (u64, u64), other: (u64, u64)| (one.0 + other.0, one.1.max(other.1));
        *self = Self {
            rotations: self.rotations + later.rotations,
            rotation_ns: both(self.rotation_ns, later.rotation_ns),
            hazard_waits: self.hazard_waits + later.hazard_waits,
            hazard_wait_ns: self.hazard_wait_ns + later.hazard_wait_ns,
            quarantines: self.quarantines + later.quarantines,
            released: self.released + later.released,
            reclaimed: self.reclaimed + later.reclaimed,
            blocked: self.blocked + later.blocked,
            preserved: both(self.preserved, later.preserved),
            preserve_spilled: self.preserve_spilled + later.preserve_spilled,
            preserve_full: self.preserve_full + later.preserve_full,
            preserve_damaged: self.preserve_damaged + later.preserve_damaged,
            holes: self.holes + later.holes,
            orphans: self.orphans + later.orphans,
            unreadable: self.unreadable + later.unreadable,
        };
    }
}

/// What a rotation leaves behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "samples may be left that name threads which are gone"]
pub(crate) struct Drained {
    /// Every sample that was stored before the call has been read, and no handler is running any
    /// more that started before it.
    pub(crate) all: bool,
}

impl Collector {
    /// Takes the tables into use: the first one becomes ACTIVE. `None` if no id is left for its
    /// traces.
    pub(crate) fn start(data: DataSegment, instances: Arc<Instances>) -> Option<Self> {
        let instance = instances.take()?;
        let tables: Vec<_> = (0..TRACE_TABLES).filter_map(|index| data.table(index)).collect();
        let origin = Origin { instance, generation: 0 };
        Some(Self {
            data,
            rotation: Rotation::start_at(&tables, &data.control().active, origin),
            instances,
            tables,
            checkers: Vec::new(),
            live: PreserveSet::new(),
            kept: Collection::default(),
            next: Collection::default(),
            in_standby: None,
            is_rotated: false,
            stats: Stats::default(),
        })
    }

    /// Adds a checker. What the first ones mark is preserved first if there is no room for all.
    pub(crate) fn register(&mut self, checker: Box<dyn LivenessChecker>) {
        self.checkers.push(checker);
    }

    /// The heaviest traces, if the user asked for them.
    pub(crate) fn heaviest(&self) -> Vec<Heavy> {
        self.checkers.iter().flat_map(|checker| checker.heaviest()).collect()
    }

    /// An upper half for the ids of traces that the recorder itself finds.
    pub(crate) fn take_instance(&self) -> Option<u32> {
        self.instances.take()
    }

    /// There are no more ids to give to traces than those that the end needs.
    pub(crate) fn is_ending(&self) -> bool {
        self.instances.is_ending()
    }

    /// The tables that must be populated before the next rotation.
    pub(crate) fn roles(&self) -> [usize; 3] {
        self.rotation.roles()
    }

    /// The ACTIVE table asked to be rotated.
    pub(crate) fn is_wanted(&self) -> bool {
        // Relaxed: a hint.
        self.data.control().rotate_wanted.load(Ordering::Relaxed) != 0
    }

    /// One rotation, up to the collecting; [`Self::preserve`] is its other half.
    /// `is_gone` says whether the owner of a hazard has ended.
    pub(crate) fn rotate(&mut self, batch: &mut Batch, is_gone: &dyn Fn(u32) -> bool) -> Drained {
        let begin = Instant::now();
        let hazards = self.data.hazards();
        let control: &ControlBlock = self.data.control();
        // Relaxed: cleared before the swap; a handler that sets it again means the new table.
        control.rotate_wanted.store(0, Ordering::Relaxed);
        let first = batch.samples.len();
        if !self.rotation.is_drained() {
            self.stats.reclaimed += reclaim(hazards, is_gone);
        }
        while let Some(table) = self.rotation.released(hazards) {
            self.collect(table, batch);
            self.tables[table].reset(0);
            self.rotation.restore(table);
            self.stats.released += 1;
        }
        self.collect_standby(batch);
        let outcome = self.swap(is_gone);
        self.is_rotated = matches!(outcome, Collected::Ready(_) | Collected::Quarantined(_));
        match outcome {
            Collected::Ready(table) => self.collect(table, batch),
            Collected::Quarantined(_) => self.stats.quarantines += 1,
            Collected::Blocked => self.stats.blocked += 1,
            // The recording ends before it comes to this; see `is_ending`.
            Collected::Exhausted => {}
        }
        batch.traces.seal();
        self.count_orphans(batch, first);
        if self.is_rotated {
            self.stats.rotations += 1;
            // Relaxed: stack windows verified before are verified anew; see `StackMemory`.
            control.window_epoch.fetch_add(1, Ordering::Relaxed);
        }
        let took_ns = begin.elapsed().as_nanos() as u64;
        let (sum, most) = self.stats.rotation_ns;
        self.stats.rotation_ns = (sum + took_ns, most.max(took_ns));
        Drained { all: self.is_rotated && self.rotation.is_drained() }
    }

    /// Makes STANDBY ACTIVE and waits until no thread is inside the old one.
    fn swap(&mut self, is_gone: &dyn Fn(u32) -> bool) -> Collected {
        let hazards = self.data.hazards();
        let active = &self.data.control().active;
        let mut waiting: Option<Instant> = None;
        let mut reclaimed = 0;
        self.rotation.share_instance(self.instances.take());
        let outcome = self.rotation.rotate(&self.tables, active, hazards, || {
            let since = *waiting.get_or_insert_with(Instant::now);
            let freed = reclaim(hazards, is_gone);
            reclaimed += freed;
            // Asked before the sleep, which may be long on a busy machine: whoever left meanwhile,
            // or was found dead just now, is looked for once more.
            let goes_on = freed > 0 || since.elapsed() < PATIENCE;
            std::thread::sleep(Duration::from_micros(50));
            goes_on
        });
        self.stats.reclaimed += reclaimed;
        if let Some(since) = waiting {
            self.stats.hazard_waits += 1;
            self.stats.hazard_wait_ns += since.elapsed().as_nanos() as u64;
        }
        outcome
    }

    /// Reads what is left when the target is gone or sampling has stopped for good: also tables
    /// that a dead thread still holds, whose committed records are whole all the same.
    pub(crate) fn finish(&mut self, batch: &mut Batch) {
        // Quarantined tables are released by it, so that neither rotation is blocked.
        self.stats.reclaimed += reclaim(self.data.hazards(), &|_| true);
        for _ in 0..2 {
            // Nobody is left whose samples could be missing.
            let Drained { .. } = self.rotate(batch, &|_| true);
        }
    }

    /// The preserved traces are in every collection. They are looked up in STANDBY, and counted if
    /// they are not there as they were put: the target has written to the table.
    fn collect_standby(&mut self, batch: &mut Batch) {
        if let Some(put) = self.in_standby.take() {
            let same = |trace: &Trace<'_>| {
                let Some(entry) = self.kept.get(trace.id) else { return false };
                // Relaxed: no thread is inside the table, and this side has filled it.
                let frames = trace.frames.iter().map(|frame| frame.load(Ordering::Relaxed));
                entry.flags == trace.flags && frames.eq(self.kept.frames_of(entry).iter().copied())
            };
            let found = self.tables[self.rotation.standby()].traces().filter(same).count();
            self.stats.preserve_damaged += put.saturating_sub(found) as u64;
        }
        for entry in self.kept.entries() {
            batch.traces.copy(&self.kept, entry.as_preserved());
        }
    }

    fn collect(&mut self, index: usize, batch: &mut Batch) {
        let table = self.tables[index];
        // Entries of an honest table do not overlap, so their words are no more than the arena's.
        let mut room = table.arena.len();
        // No handler writes a longer one; of those that the target scribbled none is taken.
        for trace in table.traces().filter(|trace| trace.frames.len() <= DEPTH_MAX) {
            let Some(left) = room.checked_sub(trace.frames.len()) else { continue };
            room = left;
            if trace_end(trace.flags) == ATTRIBUTES {
                // Relaxed: as below.
                let words = trace.frames.iter().map(|frame| frame.load(Ordering::Relaxed));
                batch.attributes.extend(contexts::unpack(words).map(|bytes| (trace.id, bytes)));
                continue;
            }
            let entry = TraceEntry::new(trace.id, trace.flags, trace.weight);
            // Relaxed: no thread is inside the table.
            let frames = trace.frames.iter().map(|frame| frame.load(Ordering::Relaxed));
            batch.traces.push(entry, frames);
        }
        let slices = self.data.slices(index);
        // Relaxed: no thread is inside the table.
        let instance = table.header.instance.load(Ordering::Relaxed) as u32;
        let sliced = batch.slices.take(slices.into_iter().flat_map(|it| it.all(instance)));
        for (place, sample) in table.samples().enumerate() {
            match sample {
                Some(sample) if sample.slot as usize >= THREAD_SLOTS => self.stats.unreadable += 1,
                Some(sample) => {
                    batch.slices.place(&sliced, place, batch.samples.len());
                    batch.samples.push(sample);
                }
                None => self.stats.holes += 1,
            }
        }
        if let Some(slices) = slices {
            slices.reset();
        }
    }

    fn count_orphans(&mut self, batch: &Batch, first: usize) {
        let is_orphan = |id: u64| id != DROPPED_TRACE_ID && batch.traces.get(id).is_none();
        let orphans = batch.samples[first..].iter().filter(|sample| is_orphan(sample.trace_id));
        self.stats.orphans += orphans.count() as u64;
    }

    /// After all of the batch is known: asks the checkers, and puts the live traces into the new
    /// STANDBY under the ids they have. What does not fit there, or finds it quarantined, is in the
    /// next collection all the same, and is put again then.
    pub(crate) fn preserve(&mut self, batch: &Batch) {
        self.live.clear();
        for checker in &mut self.checkers {
            checker.mark(batch, &mut self.live);
        }
        self.stats.preserve_full += self.live.refused();
        self.next.clear();
        for entry in batch.traces.entries().iter().filter(|entry| self.live.contains(entry.id)) {
            let fits = self.next.words() + entry.depth() <= ARENA_WORDS;
            if !fits || !self.next.copy(&batch.traces, *entry) {
                self.stats.preserve_full += 1;
            }
        }
        std::mem::swap(&mut self.kept, &mut self.next);
        let count = self.kept.entries().len() as u64;
        self.stats.preserved = (self.stats.preserved.0 + count, self.stats.preserved.1.max(count));
        let standby = self.rotation.standby();
        // Not rotated: STANDBY is as it was, and the thread inside it may still be there.
        let may_write = self.is_rotated && !self.rotation.is_quarantined(standby);
        self.is_rotated = false;
        if may_write {
            self.fill(standby);
        } else {
            self.stats.preserve_spilled += count;
        }
    }

    fn fill(&mut self, standby: usize) {
        let table = &self.tables[standby];
        table.reset(0);
        let mut put = 0;
        for entry in self.kept.entries() {
            let frames = self.kept.frames_of(entry);
            match table.put_preserved(frames, entry.flags, entry.id, entry.weight) {
                Put::New(_) => put += 1,
                _ => self.stats.preserve_spilled += 1,
            }
        }
        self.in_standby = Some(put);
    }
}

/// Frees the hazards of threads that died inside a table: nobody else ever would. How many it were.
fn reclaim(hazards: HazardSlots<'_>, is_gone: &dyn Fn(u32) -> bool) -> u64 {
    let dead = hazards.claims().filter(|claim| is_gone(claim.owner));
    dead.map(|claim| u64::from(hazards.reclaim(claim))).sum()
}

#[cfg(test)]
mod tests;
