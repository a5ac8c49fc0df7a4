//! Detects entries that dead threads left in their context tables.
//!
//! A thread that exits normally returns its entry. A thread that exits by a bare system call does
//! not. A later thread with the same id that never sets a context would then seem to work on the
//! dead thread's span. Entries of threads that exited before the recording are not detected.

use std::collections::HashMap;

use traceprof_abi::storage::log::Sample;

use crate::record::batch::contexts::ThreadContext;
use crate::record::batch::threads::{ThreadChange, ThreadKey};
use crate::record::name::contexts::ContextReader;

/// The entries of dead threads.
#[derive(Debug, Default)]
pub(super) struct StaleEntries {
    /// The outer and inner ids of living threads.
    tids: HashMap<ThreadKey, (u32, u32)>,
    /// The former owner and the content of each entry, by both thread ids.
    entries: HashMap<u32, (ThreadKey, ThreadContext)>,
}

impl StaleEntries {
    /// Notes threads that started or exited.
    pub(super) fn note_threads(&mut self, changes: &[ThreadChange], outside: &ContextReader) {
        for change in changes {
            match change {
                ThreadChange::Seen { key, life } => {
                    self.tids.insert(*key, (life.tid as u32, life.inner.1));
                }
                ThreadChange::Exited { key, .. } => {
                    let Some((tid, inner_tid)) = self.tids.remove(key) else { continue };
                    // A living thread with this id owns the entry. The check comes before the read:
                    // a thread that exits in between returns its entry.
                    if outside.is_alive(tid as i32) {
                        continue;
                    }
                    if let Some(context) = outside.read_entry(inner_tid) {
                        self.entries.extend([tid, inner_tid].map(|tid| (tid, (*key, context))));
                    }
                }
                ThreadChange::Renamed { .. } | ThreadChange::NamedInRuntime { .. } => {}
            }
        }
    }

    /// Removes the context from a sample if a dead thread left it.
    pub(super) fn take_from(&mut self, sample: &mut Sample) {
        if self.entries.is_empty() {
            return;
        }
        let Some((dead, context)) = self.entries.get(&sample.tid) else { return };
        if *dead == (sample.slot, sample.generation) {
            return;
        }
        // An entry does not tell the task, which is the thread's own.
        let found = ThreadContext::of(sample);
        let task = found.task;
        if (ThreadContext { task: 0, ..found }) == *context {
            ThreadContext { task, ..ThreadContext::default() }.give(sample);
        } else {
            // The entry belongs to another thread now.
            self.entries.remove(&sample.tid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(slot: u32, span: u64) -> Sample {
        Sample { slot, tid: 9, span, source: 1, ..Sample::default() }
    }

    #[test]
    fn a_thread_gets_no_context_of_a_dead_thread_with_its_id() {
        let dead = ThreadContext::of(&sample(1, 7));
        let mut stale = StaleEntries::default();
        let context_of = |stale: &mut StaleEntries, slot, span| {
            let mut sample = sample(slot, span);
            stale.take_from(&mut sample);
            (sample.source, sample.span)
        };
        assert_eq!(context_of(&mut stale, 2, 7), (1, 7));
        stale.entries.insert(9, ((1, 0), dead));
        assert_eq!(context_of(&mut stale, 1, 7), (1, 7), "the dead thread's own last samples");
        assert_eq!(context_of(&mut stale, 2, 7), (0, 0));
        assert_eq!(context_of(&mut stale, 2, 8), (1, 8), "the new thread sets its own context");
        assert_eq!(context_of(&mut stale, 2, 7), (1, 7), "and may set the old context as well");
    }

    #[test]
    fn a_thread_that_runs_a_task_gets_no_context_of_a_dead_thread_either() {
        let mut stale = StaleEntries::default();
        stale.entries.insert(9, ((1, 0), ThreadContext::of(&sample(1, 7))));
        for task in [3, 4] {
            let mut sample = Sample { task, ..sample(2, 7) };
            stale.take_from(&mut sample);
            assert_eq!((sample.source, sample.span, sample.task), (0, 0, task));
        }
    }
}
