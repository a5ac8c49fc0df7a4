//! Selects the unread samples of a growing trace.
//!
//! # Invariants
//! - Each sample of a thread is read once, in time order. Samples that wait for a name are read in
//!   a later interval.

use std::collections::{BTreeMap, BTreeSet};

use crate::trace::{LazyTrace, ThreadId, Window};

/// For each thread, the time up to which its samples were read.
#[derive(Debug, Default)]
pub struct UnreadSamples {
    taken_ns: BTreeMap<ThreadId, u64>,
}

impl UnreadSamples {
    /// Returns windows with the unread samples up to a time. All threads that continue share one
    /// window, however many they are.
    pub fn windows(&mut self, trace: &LazyTrace, until_ns: u64) -> Vec<Window> {
        let mut windows: BTreeMap<(u64, u64), BTreeSet<ThreadId>> = BTreeMap::new();
        for thread in trace.threads() {
            let (Some(first_ns), Some(last_ns)) = (thread.first_ns, thread.last_ns) else {
                continue;
            };
            let taken_ns = self.taken_ns.get(&thread.id);
            let from_ns = taken_ns.map_or(first_ns, |taken_ns| taken_ns.saturating_add(1));
            // If the thread has no later samples, samples with that time may still arrive.
            let to_ns = until_ns.min(last_ns);
            if from_ns <= to_ns {
                self.taken_ns.insert(thread.id, to_ns);
                windows.entry((from_ns, to_ns)).or_default().insert(thread.id);
            }
        }
        let window =
            |((from_ns, to_ns), threads)| Window { threads: Some(threads), from_ns, to_ns };
        windows.into_iter().map(window).collect()
    }
}
