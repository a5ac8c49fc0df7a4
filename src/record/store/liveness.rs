//! Which call traces outlive the collection that they came with: each checker marks those that it
//! still needs, and they are in every later collection, under the same id, until none does.
//!
//! # Invariants
//! - Marking takes no memory: the set has the size that it began with. What does not fit is
//!   counted, and is forgotten by the storage while whoever needs it may still own a copy.

use std::cmp::Reverse;

use traceprof_abi::layout::THREAD_SLOTS;
use traceprof_abi::segment::DataSegment;
use traceprof_abi::storage::DROPPED_TRACE_ID;
use traceprof_abi::sync::Ordering;

use crate::record::batch::rotation::Batch;

/// Traces that can be preserved at once: one for each thread slot, and twice as many besides.
const PRESERVED_MAX: usize = 3 * THREAD_SLOTS;

/// Decides which traces are kept over a rotation.
pub(crate) trait LivenessChecker: Send {
    /// Marks the traces that it needs. `collected` is what the rotation has brought, with all
    /// traces preserved so far; other ids are of no effect.
    fn mark(&mut self, collected: &Batch, live: &mut PreserveSet);

    /// Traces that the user asked for, heaviest first.
    fn heaviest(&self) -> Vec<Heavy> {
        Vec::new()
    }
}

/// A trace that is preserved for its weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Heavy {
    /// Its id, which it has kept since it was first among the heaviest.
    pub(crate) id: u64,
    /// Weight of all samples with its stack, in periods.
    pub(crate) weight: u64,
    /// How much of that may be other stacks'.
    pub(crate) excess: u64,
}

/// The heaviest traces of two programs, one after the other: no trace of one is the other's.
pub(crate) fn heaviest(before: &[Heavy], later: Vec<Heavy>, wanted: usize) -> Vec<Heavy> {
    let mut all = later;
    all.extend_from_slice(before);
    all.sort_by_key(|heavy| (Reverse(heavy.weight), heavy.id));
    all.truncate(wanted);
    all
}

/// Ids of traces that are needed: open addressing in memory that never grows.
pub(crate) struct PreserveSet {
    /// Ids, or 0. The length is a power of two.
    words: Box<[u64]>,
    len: usize,
    limit: usize,
    /// Marks that found the set full.
    refused: u64,
}

impl PreserveSet {
    /// With room for `limit` ids.
    pub(crate) fn with_room(limit: usize) -> Self {
        let words = vec![0; (limit.max(1) * 4 / 3).next_power_of_two()];
        Self { words: words.into_boxed_slice(), len: 0, limit, refused: 0 }
    }

    /// With the room that a recording needs.
    pub(crate) fn new() -> Self {
        Self::with_room(PRESERVED_MAX)
    }

    /// Adds an id. Ids that name no trace are left out.
    pub(crate) fn insert(&mut self, id: u64) {
        if id <= DROPPED_TRACE_ID {
            return;
        }
        let place = self.place(id);
        if self.words[place] == id {
            return;
        }
        if self.len == self.limit {
            self.refused += 1;
            return;
        }
        self.words[place] = id;
        self.len += 1;
    }

    /// Whether an id was added.
    pub(crate) fn contains(&self, id: u64) -> bool {
        id != 0 && self.words[self.place(id)] == id
    }

    /// Marks that found the set full, since it was cleared.
    pub(crate) fn refused(&self) -> u64 {
        self.refused
    }

    /// Forgets all ids.
    pub(crate) fn clear(&mut self) {
        if self.len > 0 {
            self.words.fill(0);
            self.len = 0;
        }
        self.refused = 0;
    }

    /// Where the id is, or where it would go. A quarter of the words is empty, so this ends.
    fn place(&self, id: u64) -> usize {
        let mask = self.words.len() - 1;
        let hash = id.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        let mut place = hash as usize & mask;
        while self.words[place] != 0 && self.words[place] != id {
            place = (place + 1) & mask;
        }
        place
    }
}

/// The last trace of every thread that is there, for as long as it does not run: what an idle
/// thread is doing is what it did last.
pub(crate) struct LastOfThreads {
    data: DataSegment,
}

impl LastOfThreads {
    /// Of the threads whose slots are in `data`.
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
            // Relaxed on both: of a thread that runs meanwhile the newer trace is in the ACTIVE
            // table, and its mark has no effect. A thread is idle from its last sample on, so those
            // that ran since the last rotation count as well: theirs is the first collection that
            // has the trace.
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
    fn a_set_takes_what_it_has_room_for_and_counts_the_rest() {
        let mut set = PreserveSet::with_room(100);
        let ids = || (1..=150u64).map(|number| 5 << 32 | number);
        for id in ids().chain(ids()) {
            set.insert(id);
        }
        assert_eq!(ids().filter(|id| set.contains(*id)).count(), 100);
        assert_eq!(set.refused(), 2 * 50, "each time that it is asked for");
        set.insert(0);
        set.insert(DROPPED_TRACE_ID);
        assert!(!set.contains(0) && !set.contains(DROPPED_TRACE_ID));
        set.clear();
        assert!(ids().all(|id| !set.contains(id)));
        set.insert(7 << 32);
        assert!(set.contains(7 << 32));
    }

    #[test]
    fn the_heaviest_of_two_programs_are_as_many_as_were_asked_for() {
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
    fn threads_that_are_there_keep_their_last_trace() {
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
