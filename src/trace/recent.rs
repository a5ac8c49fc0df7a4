//! Ids that were met lately.
//!
//! Ids of call traces are never used again for another one, but an old one may come back at any
//! time: preserved traces keep theirs, and kernel mode has epochs of its own that alternate with
//! those of user mode. So ids are kept by when they were met last, whatever their epoch.
//!
//! # Invariants
//! - The latest [`KEPT`] different ids are known, and no more than twice as many.

use std::collections::HashSet;

/// Different ids that are known for certain.
const KEPT: usize = 32_768;

/// A set that forgets what was not met for long.
#[derive(Debug, Default)]
pub(super) struct Recent {
    young: HashSet<u64>,
    old: HashSet<u64>,
}

impl Recent {
    /// Notes an id; true if it was not known.
    pub(super) fn insert(&mut self, id: u64) -> bool {
        if self.young.contains(&id) {
            return false;
        }
        // Before the old ones are forgotten, of which it may be one.
        let is_known = self.old.remove(&id);
        if self.young.len() == KEPT {
            std::mem::swap(&mut self.young, &mut self.old);
            self.young.clear();
        }
        self.young.insert(id);
        !is_known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_two_epochs_in_turns_are_new_once() {
        let mut recent = Recent::default();
        let new = (0..1000u64).filter(|turn| recent.insert(((turn % 2) << 32) | (turn % 10)));
        assert_eq!(new.count(), 10);
    }

    #[test]
    fn the_latest_are_known_and_others_take_no_memory() {
        let mut recent = Recent::default();
        let always = u64::MAX;
        assert!(recent.insert(always));
        for id in 0..10 * KEPT as u64 {
            assert!(recent.insert(id));
            assert!(!recent.insert(always), "it was met just now");
            assert!(!recent.insert(id.saturating_sub(KEPT as u64 / 3)), "{id}");
            assert!(recent.young.len() + recent.old.len() <= 2 * KEPT);
        }
        assert!(recent.insert(0), "not met for long");
    }
}
