//! Entries that dead threads left in their tables.
//!
//! A thread that ends returns its entry. One that the application ends by a bare system call does
//! not. A later thread with its id that never sets a context would then seem to work on the dead
//! one's span. Nothing is known of threads that ended before the recording.

use std::collections::HashMap;

use traceprof_abi::storage::log::Sample;

use crate::record::batch::contexts::ThreadContext;
use crate::record::batch::threads::{Key, ThreadNews};
use crate::record::name::contexts::ContextReader;

/// The entries of dead threads.
#[derive(Debug, Default)]
pub(super) struct StaleEntries {
    /// The outer and inner ids of living threads.
    tids: HashMap<Key, (u32, u32)>,
    /// Former owner and content of entries, by either id.
    entries: HashMap<u32, (Key, ThreadContext)>,
}

impl StaleEntries {
    /// Notes threads that came and went.
    pub(super) fn note_threads(&mut self, news: &[ThreadNews], outside: &ContextReader) {
        for news in news {
            match news {
                ThreadNews::Seen { key, life } => {
                    self.tids.insert(*key, (life.tid as u32, life.inner.1));
                }
                ThreadNews::Gone { key, .. } => {
                    let Some((tid, inner_tid)) = self.tids.remove(key) else { continue };
                    if let Some(context) = outside.read_entry(inner_tid) {
                        self.entries.extend([tid, inner_tid].map(|tid| (tid, (*key, context))));
                    }
                }
                ThreadNews::Renamed { .. } => {}
            }
        }
    }

    /// Removes a context from a sample if a dead thread left it.
    pub(super) fn take_from(&mut self, sample: &mut Sample) {
        if self.entries.is_empty() {
            return;
        }
        let Some((dead, context)) = self.entries.get(&sample.tid) else { return };
        if *dead == (sample.slot, sample.generation) {
            return;
        }
        if ThreadContext::of(sample) == *context {
            ThreadContext::default().give(sample);
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
    fn a_thread_has_nothing_of_a_dead_one_with_its_id() {
        let dead = ThreadContext::of(&sample(1, 7));
        let mut stale = StaleEntries::default();
        let context_of = |stale: &mut StaleEntries, slot, span| {
            let mut sample = sample(slot, span);
            stale.take_from(&mut sample);
            (sample.source, sample.span)
        };
        assert_eq!(context_of(&mut stale, 2, 7), (1, 7));
        stale.entries.insert(9, ((1, 0), dead));
        assert_eq!(context_of(&mut stale, 1, 7), (1, 7), "its own last samples");
        assert_eq!(context_of(&mut stale, 2, 7), (0, 0));
        assert_eq!(context_of(&mut stale, 2, 8), (1, 8), "it sets its own context");
        assert_eq!(context_of(&mut stale, 2, 7), (1, 7), "and may set that one as well");
    }
}
