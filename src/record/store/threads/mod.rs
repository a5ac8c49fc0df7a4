//! The target's threads as the recorder knows them: names, lives, and their slots.
//!
//! A sample names a slot, the slot's generation and a thread id; [`Registry::attribute`] makes the
//! number of a life of them. New threads need no help to be sampled: their events are inherited and
//! their slots claimed by themselves.
//!
//! # Invariants
//! - A slot is recycled only when its thread was known to be gone before a rotation, and that
//!   rotation has read all of the samples that were taken before it.
//! - The key of an attributed sample, `(life, 0)`, names one thread for the whole recording,
//!   whatever became of its id and its slot.

mod attribution;
mod list;
mod lives;
mod reports;
mod slots;

use std::collections::BTreeSet;
use std::io;
use std::time::{Duration, Instant};

use traceprof_abi::event::EventWord;
use traceprof_abi::segment::DataSegment;
use traceprof_abi::storage::hazard;
use traceprof_abi::sync::Ordering;

use self::list::ThreadList;
pub(crate) use self::list::ThreadTurn;
use self::lives::Life;
use self::slots::SlotHolders;
use crate::proc;
use crate::record::batch::mapped::Mapped;
use crate::record::batch::threads::{Key, ThreadNews};
use crate::record::source::program::TargetThreads;
use crate::record::source::wall::LiveThread;

/// The key of samples that cannot be given to one of two threads.
const NOBODY: u32 = u32::MAX;
/// The slack of a start of which nothing is known but that it was before the first sample.
const UNKNOWN_NS: u64 = u64::MAX;

/// A thread that has ended and whose last sample has been read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exit {
    /// The key of its samples.
    pub(crate) key: Key,
    /// As the recorder saw it.
    pub(crate) tid: i32,
    /// When it ended, at the latest.
    pub(crate) time_ns: u64,
    /// CPU time that it used while it was sampled, where the kernel tells of it.
    pub(crate) cpu_ns: Option<u64>,
}

/// What a thread that is still there has used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Usage {
    /// The key of its samples.
    pub(crate) key: Key,
    /// As the recorder sees it.
    pub(crate) tid: i32,
    /// CPU time that it has used while it was sampled.
    pub(crate) cpu_ns: u64,
}

/// What is known of threads and slots in numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ThreadMetrics {
    /// Threads that were there at some time.
    pub(crate) seen: usize,
    /// Slots that threads hold.
    pub(crate) slots_held: usize,
    /// The most at one time.
    pub(crate) slots_held_max: usize,
    /// Threads that were given the id of one that is gone, while that one was remembered.
    pub(crate) ids_reused: u64,
    /// Samples that may be of either of two threads.
    pub(crate) ambiguous: u64,
    /// Reports of the side band that were lost.
    pub(crate) reports_lost: u64,
    /// The same of mappings.
    pub(crate) mappings_lost: u64,
}

impl ThreadMetrics {
    /// Adds those of a later program.
    pub(crate) fn add(&mut self, later: Self) {
        *self = Self {
            seen: self.seen + later.seen,
            slots_held: later.slots_held,
            slots_held_max: self.slots_held_max.max(later.slots_held_max),
            ids_reused: self.ids_reused + later.ids_reused,
            ambiguous: self.ambiguous + later.ambiguous,
            reports_lost: self.reports_lost + later.reports_lost,
            mappings_lost: self.mappings_lost + later.mappings_lost,
        };
    }
}

/// All threads of one target.
pub(crate) struct Registry {
    list: ThreadList,
    slots: SlotHolders,
    ambiguous: u64,
}

impl Registry {
    /// Makes the registry of the process `pid`, whose slots are in `data`; the first thread's key
    /// is `(first, 0)`.
    pub(crate) fn new(pid: i32, data: DataSegment, first: u32) -> io::Result<Self> {
        let (list, slots) = (ThreadList::new(pid, first)?, SlotHolders::new(data));
        Ok(Self { list, slots, ambiguous: 0 })
    }

    /// Takes in reports, and reads the list of threads when that is due. To be called in each turn
    /// of the loop.
    pub(crate) fn turn(&mut self, now: Instant) -> ThreadTurn {
        self.list.turn(now)
    }

    /// Reads the list of threads anew; with `names` the names of all, too, unless they are
    /// reported.
    pub(crate) fn scan(&mut self, names: bool) {
        self.list.scan(names);
    }

    /// Reads the names of threads for this time, unless they are reported.
    pub(crate) fn read_names(&mut self, time: Duration) {
        self.list.read_names(time);
    }

    /// Ends all threads, since the process has executed another program. Returns when that was, as
    /// exactly as it is known.
    pub(crate) fn end_all(&mut self) -> u64 {
        self.list.end_all()
    }

    /// Returns the code that was mapped since the last call.
    pub(crate) fn mapped(&mut self) -> &mut Vec<Mapped> {
        &mut self.list.mapped
    }

    /// Returns news of the threads that hold slots, when a rotation begins.
    pub(crate) fn news(&mut self) -> Vec<ThreadNews> {
        self.slots.news(&mut self.list)
    }

    /// Returns threads that are about to be forgotten, each once; see [`SlotHolders::exits`].
    pub(crate) fn exits(&self, drained: bool) -> Vec<Exit> {
        self.slots.exits(&self.list, drained)
    }

    /// Forgets threads that were gone before the rotation; see [`SlotHolders::retire`].
    pub(crate) fn retire(&mut self, drained: bool, news: &mut Vec<ThreadNews>) {
        self.slots.retire(&mut self.list, drained, news);
    }

    /// Returns the number of live threads, as far as is known.
    pub(crate) fn count(&self) -> usize {
        self.list.lives.alive().count()
    }

    /// Returns the number of threads that ever existed.
    pub(crate) fn count_ever(&self) -> usize {
        self.list.lives.count_ever()
    }

    /// The number of the next thread: the first one of the next program.
    pub(crate) fn next(&self) -> u32 {
        self.list.lives.next()
    }

    /// What is known in numbers.
    pub(crate) fn metrics(&self) -> ThreadMetrics {
        let (slots_held, slots_held_max) = self.slots.held();
        ThreadMetrics {
            seen: self.list.lives.count_ever(),
            slots_held,
            slots_held_max,
            ids_reused: self.list.ids_reused,
            ambiguous: self.ambiguous,
            reports_lost: self.list.watch.lost(),
            mappings_lost: self.list.watch.code_lost(),
        }
    }

    /// The first so many threads that have started others. Where nobody tells who did, those that
    /// were there at the beginning.
    ///
    /// Of each that is not due nothing is read.
    pub(crate) fn parents(&self, most: usize, mut is_due: impl FnMut(Key) -> bool) -> Vec<Usage> {
        let is_told = self.list.watch.has_events();
        let alive = self.list.lives.alive().filter(|(_, life)| match is_told {
            true => life.is_parent,
            false => life.start_ns < self.list.started_ns,
        });
        let due = alive.take(most).filter(|(number, _)| is_due((*number, 0)));
        due.filter_map(|(number, life)| self.usage(number, life)).collect()
    }

    /// What the thread with this key has used by now, if it is still there.
    pub(crate) fn usage_of(&self, key: Key) -> Option<Usage> {
        let life = self.list.lives.get(key.0).filter(|life| life.end_ns.is_none())?;
        self.usage(key.0, life)
    }

    fn usage(&self, number: u32, life: &Life) -> Option<Usage> {
        let now_ns = proc::task_cpu_or_ticks_ns(self.list.pid, life.tid).ok()?;
        let cpu_ns = now_ns.saturating_sub(life.cpu_before_ns);
        Some(Usage { key: (number, 0), tid: life.tid, cpu_ns })
    }

    /// Whether the owner of a hazard ([`hazard::owner`]) is gone: its slot lives another life, or
    /// its thread is not there.
    pub(crate) fn is_owner_gone(&self, owner: u32) -> bool {
        let slots = self.slots.data.threads().slots;
        let owned = hazard::slot_of(owner)
            .and_then(|(index, _)| Some((index, slots.get(index as usize)?)))
            // Relaxed: the claim was acquired, and with it the slot's first values; the rest is
            // changed by this side only.
            .filter(|(index, slot)| {
                owner == hazard::owner(*index, slot.generation.load(Ordering::Relaxed))
            });
        let Some((_, slot)) = owned else { return true };
        // That the slot is retired is not enough: the next thread with the same id may have found
        // it just before, and be inside with it.
        self.is_gone(slot.tid.load(Ordering::Relaxed))
    }

    /// Whether the thread with this id (as the target sees it) is gone.
    pub(crate) fn is_gone(&self, inner: u32) -> bool {
        // Only a plain "not there" counts: a handler that was taken for dead because the recorder
        // ran out of descriptors would have its table cleared under it.
        let not_found = |error: io::Error| error.kind() == io::ErrorKind::NotFound;
        if self.list.same_namespace {
            return proc::task_stat(self.list.pid, inner as i32).err().is_some_and(not_found);
        }
        // Read anew: the thread may be younger than the last scan.
        let tids = match proc::tasks(self.list.pid) {
            Ok(tids) => tids,
            Err(error) => return not_found(error),
        };
        tids.into_iter().all(|tid| match proc::task_status(self.list.pid, tid) {
            Ok(status) => status.inner_pid as u32 != inner,
            Err(error) => not_found(error),
        })
    }

    /// Claims slots for threads that have an event of their own.
    pub(crate) fn prime(&mut self, threads: impl Iterator<Item = (i32, EventWord)>) {
        for (tid, event) in threads {
            let Some(number) = self.list.lives.last(tid) else { continue };
            let Some(life) = self.list.lives.get_mut(number) else { continue };
            life.cpu_before_ns = proc::task_cpu_or_ticks_ns(self.list.pid, tid).unwrap_or(0);
            let inner = life.inner;
            let registry = self.slots.data.threads();
            let Some(index) = registry.claim(inner).index() else { continue };
            let Some(slot) = registry.slots.get(index) else { continue };
            // Relaxed on both: published to the handlers by the Release with which sampling is
            // turned on; the generation is raised by this side only.
            slot.event.store(event.0.wrapping_add(1), Ordering::Relaxed);
            registry.prime(index, slot.generation.load(Ordering::Relaxed));
        }
    }

    /// The indices of events that are the younger of two on one thread, from the slots' notes.
    /// Those of a family that is over are closed.
    pub(crate) fn younger_events(&self) -> BTreeSet<u32> {
        let threads = self.slots.data.threads();
        // Relaxed, all: notes of the handlers, read at leisure; the family is this side's.
        let family = self.slots.data.control().event_family.load(Ordering::Relaxed);
        let is_on = |noted: u32| noted != 0 && EventWord(noted - 1).family() == family;
        let used = threads.next.load(Ordering::Relaxed) as usize;
        let pairs = threads.slots.iter().take(used).map(|slot| {
            (slot.event.load(Ordering::Relaxed), slot.other_event.load(Ordering::Relaxed))
        });
        let both = pairs.filter(|(event, other)| is_on(*event) && is_on(*other));
        both.map(|(event, other)| EventWord(event.max(other) - 1).index()).collect()
    }
}

impl TargetThreads for Registry {
    fn alive(&self) -> impl Iterator<Item = (i32, u32)> {
        let alive = self.list.lives.alive().map(|(_, life)| (life.tid, life.inner));
        alive.filter(|(_, inner)| *inner != 0)
    }

    fn named(&self) -> impl Iterator<Item = (i32, u32, &str)> {
        self.list.lives.alive().map(|(_, life)| (life.tid, life.inner, life.name.as_str()))
    }

    fn lives(&self) -> impl Iterator<Item = LiveThread> {
        let born_ns = |life: &Life| {
            let is_known =
                life.start_slack_ns != UNKNOWN_NS && life.start_ns > self.list.started_ns;
            is_known.then_some(life.start_ns)
        };
        let alive = self.list.lives.alive();
        alive.map(move |(number, life)| LiveThread {
            life: number,
            tid: life.tid,
            born_ns: born_ns(life),
        })
    }

    fn version(&self) -> (usize, usize) {
        (self.count_ever(), self.count())
    }

    fn end_of(&self, life: u32) -> Option<(u64, Option<u64>)> {
        let life = self.list.lives.get(life)?;
        Some((life.end_ns?, life.cpu_ns))
    }

    fn is_program_gone(&self) -> bool {
        self.list.is_program_gone()
    }
}

#[cfg(test)]
mod tests;
