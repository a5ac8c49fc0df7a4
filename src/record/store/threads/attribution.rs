//! From what a sample says, a slot and a thread id, to the life of a thread.

use std::collections::BTreeSet;

use traceprof_abi::storage::log::Sample;

use crate::record::batch::threads::Key;
use crate::record::contract::clock::monotonic_now_ns;
use crate::record::store::threads::lives::{Life, Owner};
use crate::record::store::threads::{NOBODY, Registry, ThreadLife, ThreadNews, UNKNOWN_NS};

impl Registry {
    /// Gives each sample, whose time is in nanoseconds by now, to the thread that had its id at
    /// that time: `slot` becomes the number of its life and `generation` 0. To be called after the
    /// samples were collected: whatever happened before they were taken is told by then.
    pub(crate) fn attribute(&mut self, samples: &mut [Sample], news: &mut Vec<ThreadNews>) {
        self.listen();
        if !self.watch.has_events() {
            self.look_at_sampled(samples);
        }
        for sample in samples {
            let owner = self.lives.owner_inner(sample.tid, sample.time);
            sample.slot = self.number(owner, Id::Inner(sample.tid), sample.time, news);
            sample.generation = 0;
        }
    }

    /// The key of the thread that had this id, as the recorder sees it, at that time.
    pub(crate) fn key_of(&mut self, tid: i32, time_ns: u64, news: &mut Vec<ThreadNews>) -> Key {
        let owner = self.lives.owner_tid(tid, time_ns);
        (self.number(owner, Id::Outer(tid), time_ns, news), 0)
    }

    /// Has a thread told of that has no samples yet.
    pub(crate) fn tell(&mut self, key: Key, news: &mut Vec<ThreadNews>) {
        self.tell_at(key, monotonic_now_ns(), news);
    }

    pub(super) fn tell_at(&mut self, key: Key, time_ns: u64, news: &mut Vec<ThreadNews>) {
        let (inner_pid, started_ns) = (self.inner_pid, self.started_ns);
        let Some(life) = self.lives.get_mut(key.0).filter(|life| !life.is_told) else { return };
        life.is_told = true;
        // Threads that were there before the recording began with it, as far as it can tell.
        let start_ns = if life.start_slack_ns == UNKNOWN_NS { time_ns } else { life.start_ns };
        let told = ThreadLife {
            tid: life.tid,
            inner: (inner_pid, life.inner),
            name: life.name.clone(),
            start_ns: start_ns.max(started_ns),
        };
        news.push(ThreadNews::Seen { key, life: told });
    }

    fn number(&mut self, owner: Owner, id: Id, time_ns: u64, news: &mut Vec<ThreadNews>) -> u32 {
        let number = match owner {
            Owner::Life(number) => number,
            Owner::Ambiguous => {
                self.ambiguous += 1;
                return NOBODY;
            }
            Owner::Unknown => self.meet(id, time_ns),
        };
        self.tell_at((number, 0), time_ns, news);
        number
    }

    /// A thread of which nothing but a sample is known, unless a look at the list finds it.
    pub(super) fn meet(&mut self, id: Id, time_ns: u64) -> u32 {
        let known = |registry: &Self| match id {
            Id::Inner(inner) => registry.lives.last_inner(inner),
            Id::Outer(tid) => registry.lives.last(tid),
        };
        if known(self).is_none() {
            match id {
                Id::Outer(tid) => self.look(tid),
                Id::Inner(inner) if self.same_namespace => self.look(inner as i32),
                Id::Inner(_) => self.scan(false),
            }
        }
        known(self).unwrap_or_else(|| {
            // What it is called, and in another namespace its id, died with it.
            let (tid, inner) = match id {
                Id::Inner(inner) => (inner as i32, inner),
                Id::Outer(tid) => (tid, if self.same_namespace { tid as u32 } else { 0 }),
            };
            let before = self.lives.latest(tid).and_then(|number| self.lives.get(number));
            let start_ns = before.and_then(|life| life.end_ns).unwrap_or(0);
            let start_ns = start_ns.min(time_ns);
            let start_slack_ns = UNKNOWN_NS;
            self.begin(Life { tid, inner, start_ns, start_slack_ns, ..Life::default() })
        })
    }

    /// Nobody tells of ends: a thread that has samples may be another one than the last scan saw.
    fn look_at_sampled(&mut self, samples: &[Sample]) {
        let sampled: BTreeSet<u32> = samples.iter().map(|sample| sample.tid).collect();
        for inner in sampled {
            let tid = self.lives.last_inner(inner).and_then(|number| self.lives.get(number));
            if let Some(tid) = tid.map(|life| life.tid) {
                self.look(tid);
            }
        }
    }
}

/// A thread's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Id {
    /// As the target sees it.
    Inner(u32),
    /// As the recorder sees it.
    Outer(i32),
}
