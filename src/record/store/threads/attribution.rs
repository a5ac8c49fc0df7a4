//! From what a sample says, a slot and a thread id, to the life of a thread.

use std::collections::BTreeSet;

use traceprof_abi::storage::log::Sample;

use crate::record::batch::threads::{Key, ThreadNews};
use crate::record::contract::clock::monotonic_now_ns;
use crate::record::store::threads::list::Id;
use crate::record::store::threads::lives::Owner;
use crate::record::store::threads::{NOBODY, Registry};

impl Registry {
    /// Gives each sample, whose time is in nanoseconds by now, to the thread that had its id at
    /// that time: `slot` becomes the number of its life and `generation` 0. To be called after the
    /// samples were collected: by then everything before them has been reported.
    pub(crate) fn attribute(&mut self, samples: &mut [Sample], news: &mut Vec<ThreadNews>) {
        self.list.listen();
        if !self.list.watch.has_events() {
            self.read_sampled(samples);
        }
        for sample in samples {
            let owner = self.list.lives.owner_inner(sample.tid, sample.time);
            sample.slot = self.number(owner, Id::Inner(sample.tid), sample.time, news);
            sample.generation = 0;
        }
    }

    /// The key of the thread that had this id, as the recorder sees it, at that time.
    pub(crate) fn key_of(&mut self, tid: i32, time_ns: u64, news: &mut Vec<ThreadNews>) -> Key {
        let owner = self.list.lives.owner_tid(tid, time_ns);
        (self.number(owner, Id::Outer(tid), time_ns, news), 0)
    }

    /// Adds a thread to the news that has no samples yet.
    pub(crate) fn announce(&mut self, key: Key, news: &mut Vec<ThreadNews>) {
        self.list.announce(key, monotonic_now_ns(), news);
    }

    fn number(&mut self, owner: Owner, id: Id, time_ns: u64, news: &mut Vec<ThreadNews>) -> u32 {
        let number = match owner {
            Owner::Life(number) => number,
            Owner::Ambiguous => {
                self.ambiguous += 1;
                return NOBODY;
            }
            Owner::Unknown => self.list.meet(id, time_ns),
        };
        self.list.announce((number, 0), time_ns, news);
        number
    }

    /// Reads sampled threads again. Without reports of ends, such a thread may not be the one that
    /// the last scan found.
    fn read_sampled(&mut self, samples: &[Sample]) {
        let sampled: BTreeSet<u32> = samples.iter().map(|sample| sample.tid).collect();
        for inner in sampled {
            let tid =
                self.list.lives.last_inner(inner).and_then(|number| self.list.lives.get(number));
            if let Some(tid) = tid.map(|life| life.tid) {
                self.list.read(tid);
            }
        }
    }
}
