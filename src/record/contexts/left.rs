//! What threads left behind in their tables.
//!
//! A thread that ends gives its entry back. One that the application ends by a bare system call does not,
//! and a later thread with its id, if it never tells anything itself, would be found to work on what the
//! dead one did. (Of threads that were gone before the recording nothing is known.)

use std::collections::HashMap;

use traceprof_abi::storage::log::Sample;

use super::super::batch::ThreadNews;
use super::super::threads::Key;
use super::{Outside, ThreadContext};

/// Entries of dead threads.
#[derive(Debug, Default)]
pub(super) struct LeftBehind {
    /// The ids of threads that are there: as the recorder sees them, and their own.
    tids: HashMap<Key, (u32, u32)>,
    /// By either id: whose it was, and what is in it.
    entries: HashMap<u32, (Key, ThreadContext)>,
}

impl LeftBehind {
    /// Hears of threads that came and went.
    pub(super) fn hear(&mut self, news: &[ThreadNews], outside: &Outside) {
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

    /// Takes from a sample what another thread has left behind.
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
            // It is somebody else's now.
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
        let mut left = LeftBehind::default();
        let told = |left: &mut LeftBehind, slot, span| {
            let mut sample = sample(slot, span);
            left.take_from(&mut sample);
            (sample.source, sample.span)
        };
        assert_eq!(told(&mut left, 2, 7), (1, 7));
        left.entries.insert(9, ((1, 0), dead));
        assert_eq!(told(&mut left, 1, 7), (1, 7), "its own last samples");
        assert_eq!(told(&mut left, 2, 7), (0, 0));
        assert_eq!(told(&mut left, 2, 8), (1, 8), "it tells by itself");
        assert_eq!(told(&mut left, 2, 7), (1, 7), "and may tell that as well");
    }
}
