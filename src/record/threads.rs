//! The target's threads as the recorder knows them: names, lives, and their slots.
//!
//! inotify reports nothing for `/proc/PID/task` (measured), so this is a scan; new threads need no
//! help from it, since their events are inherited and their slots claimed by themselves.
//!
//! # Invariants
//! - A slot is retired only when a scan had missed its thread before the rotation that collected
//!   its last samples.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use traceprof_abi::layout::THREAD_SLOTS;
use traceprof_abi::segment::DataSegment;
use traceprof_abi::storage::hazard;
use traceprof_abi::storage::log::Sample;
use traceprof_abi::sync::Ordering;
use traceprof_abi::thread::SlotState;

use super::batch::ThreadNews;
use super::clock::monotonic_now_ns;
use crate::proc;

/// Slot and generation: a thread's name within a recording.
pub(super) type Key = (u32, u32);

/// A thread that the last scan saw.
#[derive(Debug, Clone)]
struct Known {
    name: String,
    start_time: u64,
    /// Kernel thread id as the target itself sees it.
    inner: u32,
}

/// All threads of one target.
pub(super) struct Registry {
    pid: i32,
    data: DataSegment,
    same_namespace: bool,
    alive: BTreeMap<i32, Known>,
    /// The last scan saw all threads.
    is_scanned: bool,
    /// Threads with a slot, by key: thread id as the recorder sees it, and the name last told.
    keys: BTreeMap<Key, (i32, u32, String)>,
    /// Keys that the last scan missed; they are retired after the next rotation.
    leaving: Vec<Key>,
    /// Threads seen with the sampling signal blocked: name, and the CPU time they had then.
    blocked: BTreeMap<i32, (String, u64)>,
    seen: BTreeSet<i32>,
    /// Numbers of threads that were met before they claimed a slot.
    without_slot: BTreeMap<i32, u32>,
    /// Thread ids that belong to another thread since the last news.
    reused: BTreeSet<i32>,
}

impl Registry {
    /// Of the process `pid`, whose slots are in `data`.
    pub(super) fn new(pid: i32, data: DataSegment) -> io::Result<Self> {
        let same_namespace = proc::status(pid)?.inner_pid == pid;
        Ok(Self {
            pid,
            data,
            same_namespace,
            alive: BTreeMap::new(),
            is_scanned: false,
            keys: BTreeMap::new(),
            leaving: Vec::new(),
            blocked: BTreeMap::new(),
            seen: BTreeSet::new(),
            without_slot: BTreeMap::new(),
            reused: BTreeSet::new(),
        })
    }

    /// Threads alive at the last scan.
    pub(super) fn count(&self) -> usize {
        self.alive.len()
    }

    /// Threads alive at some scan.
    pub(super) fn count_ever(&self) -> usize {
        self.seen.len()
    }

    /// Threads alive at the last scan: id here, id in the target.
    pub(super) fn alive(&self) -> impl Iterator<Item = (i32, u32)> {
        self.alive.iter().map(|(tid, known)| (*tid, known.inner))
    }

    /// Whether the owner of a hazard ([`hazard::owner`]) is gone: its slot lives another life, or its
    /// thread is not there.
    pub(super) fn is_owner_gone(&self, owner: u32) -> bool {
        let slots = self.data.threads().slots;
        let owned = hazard::slot_of(owner)
            .and_then(|(index, _)| Some((index, slots.get(index as usize)?)))
            // Relaxed: the claim was acquired, and with it the slot's first values; the rest is
            // changed by this side only.
            .filter(|(index, slot)| {
                owner == hazard::owner(*index, slot.generation.load(Ordering::Relaxed))
            });
        let Some((_, slot)) = owned else { return true };
        slot.state.load(Ordering::Relaxed) == SlotState::Retired as u32
            || self.is_gone(slot.tid.load(Ordering::Relaxed))
    }

    /// Whether the thread with this id (as the target sees it) is gone.
    pub(super) fn is_gone(&self, inner: u32) -> bool {
        // Only a plain "not there" counts: a handler that was taken for dead because the recorder
        // ran out of descriptors would have its table cleared under it.
        let not_found = |error: io::Error| error.kind() == io::ErrorKind::NotFound;
        if self.same_namespace {
            return proc::task_stat(self.pid, inner as i32).err().is_some_and(not_found);
        }
        // Read anew: the thread may be younger than the last scan.
        let tids = match proc::tasks(self.pid) {
            Ok(tids) => tids,
            Err(error) => return not_found(error),
        };
        tids.into_iter().all(|tid| match proc::task_status(self.pid, tid) {
            Ok(status) => status.inner_pid as u32 != inner,
            Err(error) => not_found(error),
        })
    }

    /// Claims slots for threads that have an event of their own, before sampling starts.
    pub(super) fn prime(&mut self, threads: impl Iterator<Item = (i32, u32)>) {
        for (tid, event) in threads {
            let Some(inner) = self.alive.get(&tid).map(|thread| thread.inner) else { continue };
            let registry = self.data.threads();
            let Some(index) = registry.find(inner).or_else(|| registry.claim(inner).index()) else {
                continue;
            };
            let Some(slot) = registry.slots.get(index) else { continue };
            // Relaxed: published to the handlers by the Release with which sampling is turned on.
            slot.event.store(event.wrapping_add(1), Ordering::Relaxed);
            slot.state.store(SlotState::Primed as u32, Ordering::Relaxed);
        }
    }

    /// The key of a thread by its id as the recorder sees it: its slot, or one beyond all slots
    /// for a thread that has not claimed any.
    pub(super) fn key_of(&mut self, tid: i32, news: &mut Vec<ThreadNews>) -> Key {
        let inner = self.alive.get(&tid).map_or(tid as u32, |known| known.inner);
        let threads = self.data.threads();
        let slot = threads.find(inner).and_then(|index| Some((index, threads.slots.get(index)?)));
        let key = match slot {
            // Relaxed: raised by this side only.
            Some((index, slot)) => (index as u32, slot.generation.load(Ordering::Relaxed)),
            None => {
                let next = self.without_slot.len() as u32;
                let number = *self.without_slot.entry(tid).or_insert(next);
                (THREAD_SLOTS as u32 + number, 0)
            }
        };
        if !self.keys.contains_key(&key) {
            self.meet(key, inner, news);
        }
        key
    }

    /// Reads the thread list anew. New threads are found by the difference; with `names` the names
    /// of all are read again.
    pub(super) fn scan(&mut self, names: bool) {
        let tids = match proc::tasks(self.pid) {
            Ok(tids) => tids,
            Err(error) => {
                // Any other failure is ours (no descriptor left) and says nothing of the threads:
                // to take them for gone would retire slots that are in use.
                self.is_scanned = error.kind() == io::ErrorKind::NotFound;
                if self.is_scanned {
                    self.alive.clear();
                }
                return;
            }
        };
        self.is_scanned = true;
        let tids: BTreeSet<i32> = tids.into_iter().collect();
        self.alive.retain(|tid, _| tids.contains(tid));
        for tid in tids {
            if names || !self.alive.contains_key(&tid) {
                match self.look(tid) {
                    Ok(known) => self.note(tid, known),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {
                        self.alive.remove(&tid);
                    }
                    Err(_) => self.is_scanned = false,
                }
            }
        }
    }

    fn note(&mut self, tid: i32, known: Known) {
        self.seen.insert(tid);
        let start_time = known.start_time;
        let before = self.alive.insert(tid, known);
        if before.is_some_and(|before| before.start_time != start_time) {
            // The kernel gave the id to another thread between two scans.
            self.reused.insert(tid);
        }
    }

    fn look(&self, tid: i32) -> io::Result<Known> {
        let stat = proc::task_stat(self.pid, tid)?;
        let inner =
            if self.same_namespace { tid } else { proc::task_status(self.pid, tid)?.inner_pid };
        Ok(Known { name: stat.name, start_time: stat.start_time, inner: inner as u32 })
    }

    /// Reads which threads block `signal`.
    pub(super) fn note_blocked(&mut self, signal: i32) {
        for (tid, known) in &self.alive {
            let blocks = |status: proc::Status| status.blocked >> (signal - 1) & 1 == 1;
            if proc::task_status(self.pid, *tid).is_ok_and(blocks) {
                let cpu_ns = proc::task_cpu_or_ticks_ns(self.pid, *tid).unwrap_or(0);
                self.blocked.entry(*tid).or_insert((known.name.clone(), cpu_ns));
            }
        }
    }

    /// Threads seen with the signal blocked, by id, with their names.
    pub(super) fn blocked(&self) -> Vec<(i32, String)> {
        self.blocked.iter().map(|(tid, (name, _))| (*tid, name.clone())).collect()
    }

    /// The same threads: id here, id in the target.
    pub(super) fn blocked_threads(&self) -> impl Iterator<Item = (i32, u32)> {
        let inner = |tid: &i32| Some((*tid, self.alive.get(tid)?.inner));
        self.blocked.keys().filter_map(inner)
    }

    /// CPU time that those threads have used since, in nanoseconds, of those still there.
    pub(super) fn blocked_ns(&self) -> u64 {
        let used = |(tid, (_, before)): (&i32, &(String, u64))| {
            let now = proc::task_cpu_or_ticks_ns(self.pid, *tid).ok()?;
            Some(now.saturating_sub(*before))
        };
        self.blocked.iter().filter_map(used).sum()
    }

    /// News of the threads that have slots, before a rotation.
    pub(super) fn news(&mut self) -> Vec<ThreadNews> {
        self.leaving = self.missed();
        let mut news = Vec::new();
        let threads = self.data.threads();
        // Relaxed: counts; a slot that is claimed later comes with its samples.
        let used = threads.next.load(Ordering::Relaxed) as usize;
        for (index, slot) in threads.slots.iter().enumerate().take(used) {
            let inner = slot.tid.load(Ordering::Relaxed);
            if inner != 0 {
                let key = (index as u32, slot.generation.load(Ordering::Relaxed));
                self.meet(key, inner, &mut news);
            }
        }
        let reused = std::mem::take(&mut self.reused);
        for (key, (tid, _, name)) in self.keys.iter().filter(|(_, known)| reused.contains(&known.0))
        {
            news.push(ThreadNews::Seen { key: *key, tid: *tid, name: name.clone() });
        }
        news
    }

    /// Keys whose threads the last scan missed. Only those met before that scan count: a thread
    /// that has claimed its slot since is younger than the scan, not gone.
    fn missed(&self) -> Vec<Key> {
        if !self.is_scanned {
            return Vec::new();
        }
        let is_missed = |(tid, inner): (&i32, &u32)| {
            self.alive.get(tid).is_none_or(|known| known.inner != *inner)
        };
        let missed = self.keys.iter().filter(|(_, (tid, inner, _))| is_missed((tid, inner)));
        missed.map(|(key, _)| *key).collect()
    }

    /// Samples may come from threads that claimed their slot after [`Self::news`].
    pub(super) fn meet_samples(&mut self, samples: &[Sample], news: &mut Vec<ThreadNews>) {
        for sample in samples {
            let key = (sample.slot, sample.generation);
            if !self.keys.contains_key(&key) {
                self.meet(key, sample.tid, news);
            }
        }
    }

    fn meet(&mut self, key: Key, inner: u32, news: &mut Vec<ThreadNews>) {
        let alive = if self.same_namespace {
            self.alive.get_key_value(&(inner as i32))
        } else {
            self.alive.iter().find(|(_, known)| known.inner == inner)
        };
        let (tid, name) = match alive {
            Some((tid, known)) => (*tid, known.name.clone()),
            None => (inner as i32, String::new()),
        };
        match self.keys.get_mut(&key) {
            None => {
                self.seen.insert(tid);
                self.keys.insert(key, (tid, inner, name.clone()));
                news.push(ThreadNews::Seen { key, tid, name });
            }
            Some((_, _, told)) if !name.is_empty() && *told != name => {
                told.clone_from(&name);
                news.push(ThreadNews::Renamed { key, name });
            }
            Some(_) => {}
        }
    }

    /// After a rotation: retires the slots of threads that were gone before it.
    pub(super) fn retire(&mut self, news: &mut Vec<ThreadNews>) {
        let time_ns = monotonic_now_ns();
        for key in std::mem::take(&mut self.leaving) {
            if let Some((_, inner, _)) = self.keys.remove(&key) {
                self.data.threads().retire(inner, key.0 as usize, key.1);
                news.push(ThreadNews::Gone { key, time_ns });
            }
        }
    }

    /// Events that are the younger of two on one thread, from the slots' notes.
    pub(super) fn younger_events(&self) -> BTreeSet<u32> {
        let threads = self.data.threads();
        // Relaxed: notes of the handlers, read at leisure.
        let used = threads.next.load(Ordering::Relaxed) as usize;
        let pairs = threads.slots.iter().take(used).map(|slot| {
            (slot.event.load(Ordering::Relaxed), slot.other_event.load(Ordering::Relaxed))
        });
        pairs.filter(|(one, other)| *one != 0 && *other != 0).map(|(a, b)| a.max(b) - 1).collect()
    }
}

#[cfg(test)]
mod tests {
    use traceprof_abi::layout;

    use super::*;
    use crate::record::shm::Shared;

    fn registry() -> Registry {
        let user = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
        let data = Shared::create(layout::DATA_LEN, user).unwrap().as_data();
        data.control().slots_limit.store(8, Ordering::Relaxed);
        Registry::new(std::process::id() as i32, data).unwrap()
    }

    #[test]
    fn only_a_thread_that_is_not_there_is_gone() {
        for same_namespace in [true, false] {
            let mut registry = registry();
            registry.same_namespace &= same_namespace;
            // Not scanned: a thread that is younger than the last scan is not gone.
            let own = proc::status(registry.pid).unwrap().inner_pid as u32;
            assert!(!registry.is_gone(own));
            assert!(registry.is_gone(u32::MAX >> 1));
        }
    }

    #[test]
    fn a_slot_is_retired_one_rotation_after_its_thread_was_missed() {
        let mut registry = registry();
        registry.scan(true);
        let own = *registry.alive.keys().next().unwrap();
        let threads = registry.data.threads();
        let claim = |tid| threads.claim(tid).index();
        let inner = registry.alive[&own].inner;
        let (mine, dead) = (claim(inner).unwrap(), claim(1 << 30).unwrap());
        let mut news = registry.news();
        assert_eq!(news.len(), 2, "{news:?}");
        news.clear();
        registry.retire(&mut news);
        assert!(news.is_empty(), "claimed after the scan, for all that is known: {news:?}");
        registry.scan(false);
        registry.news();
        registry.retire(&mut news);
        let key = (dead as u32, 0);
        assert!(
            matches!(news[..], [ThreadNews::Gone { key: gone, .. }] if gone == key),
            "{news:?}"
        );
        assert_eq!((threads.find(inner), threads.find(1 << 30)), (Some(mine), None));
        // A late sample of the dead thread meets a slot that has another owner, born after the scan.
        assert_eq!(claim(inner + 1), Some(dead));
        let late = Sample { slot: key.0, tid: 1 << 30, ..Sample::default() };
        registry.meet_samples(&[late], &mut news);
        registry.news();
        registry.retire(&mut news);
        assert_eq!(threads.find(inner + 1), Some(dead));
    }

    #[test]
    fn the_owner_of_a_hazard_is_gone_with_its_slot_or_its_thread() {
        let registry = registry();
        let threads = registry.data.threads();
        let claim = |tid: u32| threads.claim(tid).index().unwrap();
        let (own, dead) = (claim(nix::unistd::gettid().as_raw() as u32), claim(u32::MAX >> 1));
        let slot = &threads.slots[own];
        let owner = threads.owner(own);
        assert!(!registry.is_owner_gone(owner));
        assert!(registry.is_owner_gone(threads.owner(dead)), "no such thread");
        assert!(registry.is_owner_gone(9) && registry.is_owner_gone(u32::MAX), "no such slot");
        slot.state.store(SlotState::Retired as u32, Ordering::Relaxed);
        assert!(registry.is_owner_gone(owner), "its thread id may be another's by now");
        slot.state.store(SlotState::Claimed as u32, Ordering::Relaxed);
        slot.generation.fetch_add(1, Ordering::Relaxed);
        assert!(registry.is_owner_gone(owner), "the slot is in its next life");
        assert!(!registry.is_owner_gone(threads.owner(own)));
    }

    #[test]
    fn the_younger_of_two_events_is_closed() {
        let registry = registry();
        let threads = registry.data.threads();
        for (tid, event, other) in [(1, 8, 3), (2, 4, 9), (3, 6, 0)] {
            let slot = &threads.slots[threads.claim(tid).index().unwrap()];
            slot.event.store(event, Ordering::Relaxed);
            slot.other_event.store(other, Ordering::Relaxed);
        }
        assert_eq!(registry.younger_events(), BTreeSet::from([7, 8]));
    }
}
