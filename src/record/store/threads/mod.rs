//! The target's threads as the recorder knows them: their names, lives and slots.
//!
//! A sample names a slot, the slot's generation and a thread id. [`Registry::attribute`] replaces
//! them with the number of a life. New threads are sampled without help: they inherit their events
//! and claim their slots themselves.
//!
//! # Invariants
//! - A slot is recycled only if its thread was known to have exited before a rotation, and that
//!   rotation has read all earlier samples.
//! - The key of an attributed sample, `(life, 0)`, names one thread for the complete recording,
//!   even if its id and its slot are reused.

mod attribution;
mod first_samples;
mod list;
mod lives;
mod reports;
mod slots;

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use traceprof_abi::event::EventWord;
use traceprof_abi::segment::DataSegment;
use traceprof_abi::storage::hazard;
use traceprof_abi::sync::Ordering;

use self::first_samples::StartedThreads;
use self::list::ThreadList;
pub(crate) use self::list::ThreadTurn;
use self::lives::Life;
use self::slots::SlotHolders;
use crate::proc;
use crate::record::batch::mapped::Mapped;
use crate::record::batch::threads::{ThreadChange, ThreadKey};
use crate::record::source::machine_tasks::MachineTasks;
use crate::record::source::program::TargetThreads;
use crate::record::source::wall::LiveThread;

/// The life number of samples that may belong to either of two threads.
const NOBODY: u32 = u32::MAX;
/// The slack of a start that is only known to be before the first sample.
const UNKNOWN_NS: u64 = u64::MAX;

/// A thread that has exited and whose last sample has been read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exit {
    /// The key of its samples.
    pub(crate) key: ThreadKey,
    /// The thread id as the recorder saw it.
    pub(crate) tid: i32,
    /// The latest possible time of the exit, in CLOCK_MONOTONIC nanoseconds.
    pub(crate) time_ns: u64,
    /// The CPU time that the thread used while it was sampled, in nanoseconds, if the kernel
    /// reports it.
    pub(crate) cpu_ns: Option<u64>,
}

/// The CPU time of a thread that is alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Usage {
    /// The key of its samples.
    pub(crate) key: ThreadKey,
    /// The thread id as the recorder sees it.
    pub(crate) tid: i32,
    /// The CPU time that the thread has used since its sampling began, in nanoseconds.
    pub(crate) cpu_ns: u64,
}

/// A thread that is alive and may get a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NamedThread {
    /// The key of its samples.
    pub(crate) key: ThreadKey,
    /// The thread id as the target sees it.
    pub(crate) inner_tid: u32,
}

/// Counts of threads and slots.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ThreadMetrics {
    /// The number of threads that existed at some time.
    pub(crate) seen: usize,
    /// The number of slots that threads hold.
    pub(crate) slots_held: usize,
    /// The largest number of slots held at one time.
    pub(crate) slots_held_max: usize,
    /// The number of threads with the id of an earlier thread that was still remembered.
    pub(crate) ids_reused: u64,
    /// The number of samples that may belong to either of two threads.
    pub(crate) ambiguous: u64,
    /// The number of lost side-band reports.
    pub(crate) reports_lost: u64,
    /// The number of lost side-band reports of mappings.
    pub(crate) mappings_lost: u64,
    /// How soon threads that started were sampled.
    pub(crate) started: StartedThreads,
}

impl ThreadMetrics {
    /// Adds the counts of a later program.
    pub(crate) fn add(&mut self, later: Self) {
        *self = Self {
            seen: self.seen + later.seen,
            slots_held: later.slots_held,
            slots_held_max: self.slots_held_max.max(later.slots_held_max),
            ids_reused: self.ids_reused + later.ids_reused,
            ambiguous: self.ambiguous + later.ambiguous,
            reports_lost: self.reports_lost + later.reports_lost,
            mappings_lost: self.mappings_lost + later.mappings_lost,
            started: {
                let mut started = self.started;
                started.add(&later.started);
                started
            },
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
    pub(crate) fn new(
        pid: i32,
        data: DataSegment,
        first: u32,
        machine: &Arc<MachineTasks>,
    ) -> io::Result<Self> {
        let (list, slots) = (ThreadList::new(pid, first, machine)?, SlotHolders::new(data));
        Ok(Self { list, slots, ambiguous: 0 })
    }

    /// Processes the kernel's reports, and scans the threads when a scan is due.
    ///
    /// The recorder calls it in each turn of its loop.
    pub(crate) fn turn(&mut self, now: Instant) -> ThreadTurn {
        self.list.turn(now)
    }

    /// Scans the threads of the process; with `names` it also reads the names of all threads,
    /// unless the kernel reports them.
    pub(crate) fn scan(&mut self, names: bool) {
        self.list.scan(names);
    }

    /// Reads names of threads for this long, unless the kernel reports them.
    pub(crate) fn read_names(&mut self, time: Duration) {
        self.list.read_names(time);
    }

    /// Ends the lives of all threads, since the process has executed another program.
    ///
    /// Returns the time of the exec, as exactly as it is known.
    pub(crate) fn end_all(&mut self) -> u64 {
        self.list.end_all()
    }

    /// Returns the reported mappings of code, for the caller to take.
    pub(crate) fn mapped(&mut self) -> &mut Vec<Mapped> {
        &mut self.list.mapped
    }

    /// Returns the changes to threads that hold slots, when a rotation begins.
    pub(crate) fn take_changes(&mut self) -> Vec<ThreadChange> {
        self.slots.take_changes(&mut self.list)
    }

    /// Returns the threads that are about to be forgotten, each once; see [`SlotHolders::exits`].
    pub(crate) fn exits(&self, drained: bool) -> Vec<Exit> {
        self.slots.exits(&self.list, drained)
    }

    /// Forgets threads that exited before the rotation; see [`SlotHolders::retire`].
    pub(crate) fn retire(&mut self, drained: bool, changes: &mut Vec<ThreadChange>) {
        self.slots.retire(&mut self.list, drained, changes);
    }

    /// Returns the number of threads that are alive, as far as is known.
    pub(crate) fn count(&self) -> usize {
        self.list.lives.alive().count()
    }

    /// Returns the number of threads that ever existed.
    pub(crate) fn count_ever(&self) -> usize {
        self.list.lives.count_ever()
    }

    /// Returns the number of the next life, which is the first life of the next program.
    pub(crate) fn next(&self) -> u32 {
        self.list.lives.next()
    }

    /// Returns the counts of threads and slots.
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
            started: self.list.started,
        }
    }

    /// Returns up to `most` threads that have started others, oldest first, with their CPU time.
    ///
    /// If the kernel does not report starts, these are the threads that existed at the start. The
    /// clock of a thread is read only if `is_due` returns true for it.
    pub(crate) fn parents(
        &self,
        most: usize,
        mut is_due: impl FnMut(ThreadKey) -> bool,
    ) -> Vec<Usage> {
        let has_reports = self.list.watch.has_events();
        let alive = self.list.lives.alive().filter(|(_, life)| match has_reports {
            true => life.is_parent,
            false => life.start_ns < self.list.started_ns,
        });
        let due = alive.take(most).filter(|(number, _)| is_due((*number, 0)));
        due.filter_map(|(number, life)| self.usage(number, life)).collect()
    }

    /// Returns the CPU time of the thread with this key, if it is alive.
    pub(crate) fn usage_of(&self, key: ThreadKey) -> Option<Usage> {
        let life = self.list.lives.get(key.0).filter(|life| life.end_ns.is_none())?;
        self.usage(key.0, life)
    }

    fn usage(&self, number: u32, life: &Life) -> Option<Usage> {
        let now_ns = proc::task_cpu_or_ticks_ns(self.list.pid, life.tid).ok()?;
        let cpu_ns = now_ns.saturating_sub(life.cpu_before_ns);
        Some(Usage { key: (number, 0), tid: life.tid, cpu_ns })
    }

    /// Returns the threads that are alive, and that the writer thread knows.
    pub(crate) fn announced(&self) -> impl Iterator<Item = NamedThread> {
        let alive = self.list.lives.alive();
        let announced = alive.filter(|(_, life)| life.is_announced && life.inner != 0);
        announced.map(|(number, life)| NamedThread { key: (number, 0), inner_tid: life.inner })
    }

    /// Returns the id of the process as the target sees it.
    pub(crate) fn inner_pid(&self) -> u32 {
        self.list.inner_pid()
    }

    /// Returns whether the thread with this key is alive now, and no other one with its id.
    pub(crate) fn is_still(&self, key: ThreadKey) -> bool {
        let Some(life) = self.list.lives.get(key.0) else { return false };
        let stat = proc::task_stat(self.list.pid, life.tid);
        stat.is_ok_and(|stat| life.is_of(stat.start_time))
    }

    /// Returns whether the thread with this id as the target sees it is alive now, and no other one
    /// with its id.
    pub(crate) fn is_alive(&self, inner_tid: u32) -> bool {
        let number = self.list.lives.living_inner(inner_tid);
        number.is_some_and(|number| self.is_still((number, 0)))
    }

    /// Returns whether the owner of a hazard ([`hazard::owner`]) is gone: its slot has another
    /// generation, or its thread does not exist.
    pub(crate) fn is_owner_gone(&self, owner: u32) -> bool {
        let slots = self.slots.data.threads().slots;
        let owned = hazard::slot_of(owner)
            .and_then(|(index, _)| Some((index, slots.get(index as usize)?)))
            // Relaxed: the claim was read with Acquire, which makes the slot's first values
            // visible. Only the recorder changes them later.
            .filter(|(index, slot)| {
                owner == hazard::owner(*index, slot.generation.load(Ordering::Relaxed))
            });
        let Some((_, slot)) = owned else { return true };
        // A retired slot is not enough: the next thread with the same id may have found the slot
        // just before, and be inside the table with it.
        self.is_gone(slot.tid.load(Ordering::Relaxed))
    }

    /// Returns whether no thread with this id, as the target sees it, exists.
    pub(crate) fn is_gone(&self, inner: u32) -> bool {
        // Only "not found" counts. If the recorder ran out of descriptors and took a handler for
        // dead, it would clear the table that the handler uses.
        let not_found = |error: io::Error| error.kind() == io::ErrorKind::NotFound;
        if self.list.same_namespace {
            return proc::task_stat(self.list.pid, inner as i32).err().is_some_and(not_found);
        }
        // A new reading: the thread may have started after the last scan.
        let tids = match proc::tasks(self.list.pid) {
            Ok(tids) => tids,
            Err(error) => return not_found(error),
        };
        tids.into_iter().all(|tid| match proc::task_status(self.list.pid, tid) {
            Ok(status) => status.inner_pid as u32 != inner,
            Err(error) => not_found(error),
        })
    }

    /// Claims slots for threads that have their own event.
    pub(crate) fn prime(&mut self, threads: impl Iterator<Item = (i32, EventWord)>) {
        for (tid, event) in threads {
            let Some(number) = self.list.lives.living(tid) else { continue };
            let Some(inner) = self.list.lives.get(number).map(|life| life.inner) else { continue };
            let registry = self.slots.data.threads();
            let Some(index) = registry.claim(inner).index() else { continue };
            let Some(slot) = registry.slots.get(index) else { continue };
            // Relaxed on both: the event is published to the handlers by the Release with which
            // sampling is turned on, and only the recorder raises the generation.
            slot.event.store(event.0.wrapping_add(1), Ordering::Relaxed);
            registry.prime(index, slot.generation.load(Ordering::Relaxed));
        }
    }

    /// Starts the CPU time of all threads: their sampling is about to begin.
    pub(crate) fn start_clocks(&mut self) {
        let alive: Vec<u32> = self.list.lives.alive().map(|(number, _)| number).collect();
        for number in alive {
            let Some(life) = self.list.lives.get_mut(number) else { continue };
            life.cpu_before_ns = proc::task_cpu_or_ticks_ns(self.list.pid, life.tid).unwrap_or(0);
        }
    }

    /// Returns the indices of events that are the younger of two on one thread, as the handlers
    /// noted in the slots.
    ///
    /// Events of an earlier family do not count, since they are closed already.
    pub(crate) fn younger_events(&self) -> BTreeSet<u32> {
        let threads = self.slots.data.threads();
        // Relaxed, all: the handlers' notes may be read late; only the recorder sets the family.
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
