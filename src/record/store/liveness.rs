//! Decides which call traces outlive the collection in which they arrived.
//!
//! Each checker marks the traces that it still needs. A marked trace is in every later collection,
//! under the same id, until no checker marks it.
//!
//! # Invariants
//! - Marking allocates no memory: the set keeps its initial size. Marks that do not fit are
//!   counted, and the storage forgets those traces, even if a user of the trace still has a copy.

use std::cmp::Reverse;

use traceprof_abi::layout::THREAD_SLOTS;
use traceprof_abi::segment::DataSegment;
use traceprof_abi::storage::DROPPED_TRACE_ID;
use traceprof_abi::sync::Ordering;

use crate::record::batch::Batch;

/// The largest number of traces that are preserved at once: three for each thread slot.
const PRESERVED_MAX: usize = 3 * THREAD_SLOTS;

/// Decides which traces a rotation preserves.
pub(crate) trait LivenessChecker: Send {
    /// Marks the traces that it needs.
    ///
    /// `collected` contains the rotation's traces and all traces preserved so far. Marks of other
    /// ids have no effect.
    fn mark(&mut self, collected: &Batch, live: &mut PreserveSet);

    /// Returns the heaviest traces, heaviest first, if the user requested them.
    fn heaviest(&self) -> Vec<Heavy> {
        Vec::new()
    }
}

/// A trace that is preserved for its weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Heavy {
    /// Its id, which stays the same from the time when the trace became one of the heaviest.
    pub(crate) id: u64,
    /// The weight of all samples with its stack, in periods.
    pub(crate) weight: u64,
    /// The part of that weight that may belong to other stacks.
    pub(crate) excess: u64,
}

/// Returns the heaviest traces of two consecutive programs, which have no traces in common.
pub(crate) fn heaviest(before: &[Heavy], later: Vec<Heavy>, wanted: usize) -> Vec<Heavy> {
    let mut all = later;
    all.extend_from_slice(before);
    all.sort_by_key(|heavy| (Reverse(heavy.weight), heavy.id));
    all.truncate(wanted);
    all
}

/// A set of ids of traces to preserve, with open addressing in memory that never grows.
pub(crate) struct PreserveSet {
    /// The ids, or 0 for an empty entry. The length is a power of two.
    words: Box<[u64]>,
    len: usize,
    limit: usize,
    /// The number of marks that found the set full.
    refused: u64,
}

impl PreserveSet {
    /// Makes a set with room for `limit` ids.
    pub(crate) fn with_room(limit: usize) -> Self {
        let words = vec![0; (limit.max(1) * 4 / 3).next_power_of_two()];
        Self { words: words.into_boxed_slice(), len: 0, limit, refused: 0 }
    }

    /// Makes a set with the room that a recording needs.
    pub(crate) fn new() -> Self {
        Self::with_room(PRESERVED_MAX)
    }

    /// Adds an id. Ids that name no trace are ignored.
    pub(crate) fn insert(&mut self, id: u64) {
        if id <= DROPPED_TRACE_ID {
            return;
        }
        let position = self.position(id);
        if self.words[position] == id {
            return;
        }
        if self.len == self.limit {
            self.refused += 1;
            return;
        }
        self.words[position] = id;
        self.len += 1;
    }

    /// Returns whether the set contains an id.
    pub(crate) fn contains(&self, id: u64) -> bool {
        id != 0 && self.words[self.position(id)] == id
    }

    /// Returns the number of marks that found the set full since it was last cleared.
    pub(crate) fn refused(&self) -> u64 {
        self.refused
    }

    /// Removes all ids.
    pub(crate) fn clear(&mut self) {
        if self.len > 0 {
            self.words.fill(0);
            self.len = 0;
        }
        self.refused = 0;
    }

    /// Returns the position of the id, or the empty position for it. A quarter of the words is
    /// empty, so the search ends.
    fn position(&self, id: u64) -> usize {
        let mask = self.words.len() - 1;
        let hash = id.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        let mut position = hash as usize & mask;
        while self.words[position] != 0 && self.words[position] != id {
            position = (position + 1) & mask;
        }
        position
    }
}

/// Preserves the last trace of every thread while the thread is idle: an idle thread is still where
/// its last sample found it.
pub(crate) struct LastOfThreads {
    data: DataSegment,
}

impl LastOfThreads {
    /// Makes the checker of the threads whose slots are in `data`.
    pub(crate) fn new(data: DataSegment) -> Self {
        Self { data }
    }
}

impl LivenessChecker for LastOfThreads {
    fn mark(&mut self, _collected: &Batch, live: &mut PreserveSet) {
        let threads = self.data.threads();
        // Relaxed: a slot that is claimed later has its traces in a later collection.
        let used = threads.next.load(Ordering::Relaxed) as usize;
        for slot in threads.slots.iter().take(used) {
            // Relaxed on both: if the thread runs meanwhile, its newer trace is in the ACTIVE table
            // and the mark has no effect. A thread is idle from its last sample on. So threads that
            // ran since the last rotation are marked as well: this is the first collection with
            // their trace.
            if slot.tid.load(Ordering::Relaxed) != 0 {
                live.insert(slot.last_trace.load(Ordering::Relaxed));
            }
        }
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::record::target::shm::own_data;

    #[test]
    fn a_set_takes_ids_while_it_has_room_and_counts_the_others() {
        let mut set = PreserveSet::with_room(100);
        let ids = || (1..=150u64).map(|number| 5 << 32 | number);
        for id in ids().chain(ids()) {
            set.insert(id);
        }
        assert_eq!(ids().filter(|id| set.contains(*id)).count(), 100);
        assert_eq!(set.refused(), 2 * 50, "each attempt counts");
        set.insert(0);
        set.insert(DROPPED_TRACE_ID);
        assert!(!set.contains(0) && !set.contains(DROPPED_TRACE_ID));
        set.clear();
        assert!(ids().all(|id| !set.contains(id)));
        set.insert(7 << 32);
        assert!(set.contains(7 << 32));
    }

    #[test]
    fn the_heaviest_of_two_programs_are_as_many_as_requested() {
        let heavy = |id, weight| Heavy { id, weight, excess: 0 };
        let before = [heavy(1, 9), heavy(2, 5), heavy(3, 2)];
        let later = vec![heavy(11, 7), heavy(12, 5)];
        let ids = |wanted| {
            let all = heaviest(&before, later.clone(), wanted);
            all.into_iter().map(|it| it.id).collect::<Vec<_>>()
        };
        assert_eq!(ids(3), [1, 11, 2]);
        assert_eq!(ids(9), [1, 11, 2, 12, 3]);
    }

    #[test]
    fn living_threads_keep_their_last_trace() {
        let data = own_data();
        data.control().slots_limit.store(8, Ordering::Relaxed);
        let threads = data.threads();
        for tid in 1..=3u32 {
            let slot = threads.claim(tid).index().unwrap();
            threads.slots[slot].last_trace.store(9 << 32 | u64::from(tid), Ordering::Relaxed);
        }
        threads.slots[1].tid.store(0, Ordering::Relaxed);
        let mut live = PreserveSet::new();
        LastOfThreads::new(data).mark(&Batch::default(), &mut live);
        assert_eq!([1, 2, 3].map(|tid| live.contains(9 << 32 | tid)), [true, false, true]);
    }
}
