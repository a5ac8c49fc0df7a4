//! Attributes samples, which name a slot and a thread id, to lives of threads.

use std::collections::BTreeSet;

use traceprof_abi::storage::log::Sample;

use crate::record::batch::threads::{ThreadChange, ThreadKey};
use crate::record::contract::clock::monotonic_now_ns;
use crate::record::store::threads::list::Id;
use crate::record::store::threads::lives::Owner;
use crate::record::store::threads::{NOBODY, Registry};

impl Registry {
    /// Attributes each sample to the thread that had its id at its time, which must be in
    /// nanoseconds: `slot` becomes the number of the life, and `generation` becomes 0.
    ///
    /// The caller must have collected the samples before: the kernel has then reported everything
    /// that happened before them.
    pub(crate) fn attribute(&mut self, samples: &mut [Sample], changes: &mut Vec<ThreadChange>) {
        self.list.listen();
        if !self.list.watch.has_events() {
            self.read_sampled(samples);
        }
        for sample in samples {
            let owner = self.list.lives.owner_inner(sample.tid, sample.time);
            sample.slot = self.number(owner, Id::Inner(sample.tid), sample.time, changes);
            self.note_sample(sample.slot, sample.time, true);
            sample.generation = 0;
        }
    }

    /// Returns the key of the thread that had this id, as the recorder sees it, at that time.
    pub(crate) fn key_of(
        &mut self,
        tid: i32,
        time_ns: u64,
        changes: &mut Vec<ThreadChange>,
    ) -> ThreadKey {
        let owner = self.list.lives.owner_tid(tid, time_ns);
        let number = self.number(owner, Id::Outer(tid), time_ns, changes);
        self.note_sample(number, time_ns, false);
        (number, 0)
    }

    fn note_sample(&mut self, number: u32, time_ns: u64, by_handler: bool) {
        if let Some(life) = self.list.lives.get_mut(number) {
            self.list.started.note_sample(life, time_ns, by_handler);
        }
    }

    /// Adds a thread that has no samples yet to the changes.
    pub(crate) fn announce(&mut self, key: ThreadKey, changes: &mut Vec<ThreadChange>) {
        self.list.announce(key, monotonic_now_ns(), changes);
    }

    fn number(
        &mut self,
        owner: Owner,
        id: Id,
        time_ns: u64,
        changes: &mut Vec<ThreadChange>,
    ) -> u32 {
        let number = match owner {
            Owner::Life(number) => number,
            Owner::Ambiguous => {
                self.ambiguous += 1;
                return NOBODY;
            }
            Owner::Unknown => self.list.find_or_begin(id, time_ns),
        };
        self.list.announce((number, 0), time_ns, changes);
        number
    }

    /// Reads sampled threads again: without reports of exits, the id may belong to another thread
    /// than at the last scan.
    fn read_sampled(&mut self, samples: &[Sample]) {
        let sampled: BTreeSet<u32> = samples.iter().map(|sample| sample.tid).collect();
        for inner in sampled {
            let tid =
                self.list.lives.living_inner(inner).and_then(|number| self.list.lives.get(number));
            if let Some(tid) = tid.map(|life| life.tid) {
                self.list.read(tid);
            }
        }
    }
}
