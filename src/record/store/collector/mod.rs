//! Rotates the tables of the call-trace storage and copies their content.
//!
//! A rotation has the six steps of the call-trace storage document. It collects STANDBY, clears it
//! and gives it a new instance, makes it ACTIVE, and collects the old ACTIVE. Then the recorder
//! processes the content of both, and preserves traces that are still needed in the new STANDBY.
//!
//! The document's five collections are [`Batch::traces`] (all traces, including those of the old
//! ACTIVE), `kept` (the traces of STANDBY), `live` (the ids to preserve) and `next` (the traces to
//! preserve). None of them allocates once it has grown to the size that a turn needs.
//!
//! # Invariants
//! - A table is read only when no hazard names it, and reset only after it was read.
//! - The target may have written anything to the tables. Ids, slots and lengths are checked against
//!   the storage's own bounds before anything is copied.
//! - A preserved trace is in every collection until no checker marks it, whatever happens to
//!   STANDBY: the recorder's own copy counts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use traceprof_abi::layout::{ControlBlock, FRAME_WORDS_MAX, THREAD_SLOTS, TRACE_TABLES};
use traceprof_abi::segment::DataSegment;
use traceprof_abi::storage::DROPPED_TRACE_ID;
use traceprof_abi::storage::hazard::HazardSlots;
use traceprof_abi::storage::rotation::{Collected, Origin, Rotation};
use traceprof_abi::storage::table::{ARENA_WORDS, Put, Trace, TraceTable};
use traceprof_abi::sync::Ordering;
use traceprof_abi::unwind::{ATTRIBUTES, trace_end};

use crate::record::batch::Batch;
use crate::record::batch::contexts;
use crate::record::batch::traces::{Collection, TraceEntry};
use crate::record::store::liveness::{Heavy, LivenessChecker, PreserveSet};
use crate::record::store::trace_ids::Instances;

/// How long a rotation waits for handlers inside the old table: much longer than a handler runs,
/// and longer than a time slice on a busy core.
const HAZARD_TIMEOUT: Duration = Duration::from_millis(20);

/// The recorder's side of the call-trace storage.
pub(crate) struct Collector {
    data: DataSegment,
    tables: Vec<TraceTable<'static>>,
    rotation: Rotation,
    /// The allocator of the upper halves of trace ids.
    instances: Arc<Instances>,
    checkers: Vec<Box<dyn LivenessChecker>>,
    /// The ids of the traces that the next rotation must preserve.
    live: PreserveSet,
    /// The traces that are preserved at present.
    kept: Collection,
    /// The traces to preserve in the next rotation, while they are gathered.
    next: Collection,
    /// The number of traces that were put into STANDBY, if it still holds them.
    in_standby: Option<usize>,
    /// Whether the last call of [`Self::rotate`] rotated, so that STANDBY may be written.
    is_rotated: bool,
    /// The counts of all rotations.
    pub(crate) stats: Stats,
}

/// Counts of rotations, and of the events during them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Stats {
    /// The number of rotations.
    pub(crate) rotations: u64,
    /// The time of rotations with their collections, in nanoseconds: the sum and the longest.
    pub(crate) rotation_ns: (u64, u64),
    /// The number of rotations that waited for a thread inside the old table.
    pub(crate) hazard_waits: u64,
    /// The total time of these waits, in nanoseconds.
    pub(crate) hazard_wait_ns: u64,
    /// The number of rotations whose wait timed out, so that the table was quarantined.
    pub(crate) quarantines: u64,
    /// The number of quarantined tables that were collected later.
    pub(crate) released: u64,
    /// The number of hazards of threads that died inside a handler.
    pub(crate) reclaimed: u64,
    /// The number of turns without a rotation, since a thread was inside the next table and no
    /// spare table was left.
    pub(crate) blocked: u64,
    /// The number of preserved traces, summed over all rotations, and the most at once.
    pub(crate) preserved: (u64, u64),
    /// The number of preserved traces that did not fit into STANDBY, summed over all rotations.
    /// Only the recorder kept them.
    pub(crate) preserve_spilled: u64,
    /// The number of marked traces that were not preserved for lack of room.
    pub(crate) preserve_full: u64,
    /// The number of preserved traces that had changed in STANDBY.
    pub(crate) preserve_damaged: u64,
    /// The number of log records that were reserved and never committed.
    pub(crate) holes: u64,
    /// The number of samples whose trace was not in the table. They are kept without a stack.
    pub(crate) orphans: u64,
    /// The number of records that name no valid slot: the target has overwritten them.
    pub(crate) unreadable: u64,
}

impl Stats {
    /// Adds the counts of a later program's storage.
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

/// Whether a rotation has read everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "remaining samples may name threads that have exited"]
pub(crate) struct DrainStatus {
    /// Whether every sample that was stored before the call has been read, and every handler that
    /// started before it has returned.
    pub(crate) is_complete: bool,
}

impl Collector {
    /// Starts to use the tables, of which the first becomes ACTIVE; `None` if no ids are left for
    /// its traces.
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

    /// Adds a checker. If there is no room for all marks, those of earlier checkers have priority.
    pub(crate) fn register(&mut self, checker: Box<dyn LivenessChecker>) {
        self.checkers.push(checker);
    }

    /// Returns the heaviest traces, if the user requested them.
    pub(crate) fn heaviest(&self) -> Vec<Heavy> {
        self.checkers.iter().flat_map(|checker| checker.heaviest()).collect()
    }

    /// Allocates an upper half for the ids of traces that the recorder itself makes.
    pub(crate) fn take_instance(&self) -> Option<u32> {
        self.instances.take()
    }

    /// Returns whether ids are left only for the last rotations.
    pub(crate) fn is_ending(&self) -> bool {
        self.instances.is_ending()
    }

    /// Returns the tables whose memory must be populated before the next rotation.
    pub(crate) fn roles(&self) -> [usize; 3] {
        self.rotation.roles()
    }

    /// Returns whether a handler has requested a rotation, since the ACTIVE table fills up.
    pub(crate) fn is_wanted(&self) -> bool {
        // Relaxed: a hint.
        self.data.control().rotate_wanted.load(Ordering::Relaxed) != 0
    }

    /// Does the first half of a rotation, which ends with the collection; [`Self::preserve`] is the
    /// second half.
    ///
    /// `is_gone` returns whether the thread that owns a hazard has exited.
    pub(crate) fn rotate(
        &mut self,
        batch: &mut Batch,
        is_gone: &dyn Fn(u32) -> bool,
    ) -> DrainStatus {
        let begin = Instant::now();
        let hazards = self.data.hazards();
        let control: &ControlBlock = self.data.control();
        // Relaxed: cleared before the swap, so a handler that sets it again means the new table.
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
            // The recording ends before the ids run out; see `is_ending`.
            Collected::Exhausted => {}
        }
        batch.traces.seal();
        self.count_orphans(batch, first);
        if self.is_rotated {
            self.stats.rotations += 1;
            // Relaxed: makes handlers verify their stack windows again; see `StackMemory`.
            control.window_epoch.fetch_add(1, Ordering::Relaxed);
        }
        let took_ns = begin.elapsed().as_nanos() as u64;
        let (sum, most) = self.stats.rotation_ns;
        self.stats.rotation_ns = (sum + took_ns, most.max(took_ns));
        DrainStatus { is_complete: self.is_rotated && self.rotation.is_drained() }
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
            // Decided before the sleep, which may be long on a busy machine. So the rotation checks
            // once more for a handler that left during it, or a hazard that was freed just now.
            let goes_on = freed > 0 || since.elapsed() < HAZARD_TIMEOUT;
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

    /// Reads everything that is left, once the target has exited or sampling has stopped for good.
    ///
    /// It also reads tables that a dead thread still holds: their committed records are complete.
    pub(crate) fn finish(&mut self, batch: &mut Batch) {
        // This releases quarantined tables, so that neither rotation is blocked.
        self.stats.reclaimed += reclaim(self.data.hazards(), &|_| true);
        for _ in 0..2 {
            // No thread is left whose samples could be missing.
            let DrainStatus { .. } = self.rotate(batch, &|_| true);
        }
    }

    /// Adds the preserved traces to the collection, from the recorder's own copy.
    ///
    /// It also compares them with STANDBY, and counts traces that have changed there: the target
    /// has written to the table.
    fn collect_standby(&mut self, batch: &mut Batch) {
        if let Some(put) = self.in_standby.take() {
            let same = |trace: &Trace<'_>| {
                let Some(entry) = self.kept.get(trace.id) else { return false };
                // Relaxed: no thread is inside the table, and the recorder has filled it.
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
        // The entries of an intact table do not overlap, so together they are no longer than the
        // arena.
        let mut room = table.arena.len();
        // No handler writes a longer trace, so the target must have overwritten it: it is skipped.
        for trace in table.traces().filter(|trace| trace.frames.len() <= FRAME_WORDS_MAX) {
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
                    batch.slices.note_sample(&sliced, place, batch.samples.len());
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

    /// Asks the checkers, once the batch is complete, and puts the traces that they mark into the
    /// new STANDBY under their present ids.
    ///
    /// A trace that does not fit, or that finds STANDBY quarantined, is in the next collection all
    /// the same, and is put into STANDBY then.
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
        // Without a rotation STANDBY is unchanged, and a thread may still be inside it.
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

/// Frees the hazards of threads that died inside a table, which would never be freed otherwise, and
/// returns their number.
fn reclaim(hazards: HazardSlots<'_>, is_gone: &dyn Fn(u32) -> bool) -> u64 {
    let dead = hazards.claims().filter(|claim| is_gone(claim.owner));
    dead.map(|claim| u64::from(hazards.reclaim(claim))).sum()
}

#[cfg(test)]
mod tests;
