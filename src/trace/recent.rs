//! A set of recently seen ids.
//!
//! Ids of call traces are never reused for another trace, but an old id may come back at any time:
//! preserved traces keep theirs, and kernel mode has epochs of its own that alternate with those of
//! user mode. So the set keeps ids by the time when they were last seen, whatever their epoch.
//!
//! # Invariants
//! - The set has the latest [`KEPT`] distinct ids, and at most twice as many.

use std::collections::HashSet;

/// The number of distinct ids that are certain to be in the set.
const KEPT: usize = 32_768;

/// A set that forgets ids that were not seen for long.
#[derive(Debug, Default)]
pub(super) struct Recent {
    young: HashSet<u64>,
    old: HashSet<u64>,
}

impl Recent {
    /// Adds an id; returns true if it was not in the set.
    pub(super) fn insert(&mut self, id: u64) -> bool {
        if self.young.contains(&id) {
            return false;
        }
        // Removed before the old ids are dropped, since this id may be among them.
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
            assert!(!recent.insert(always), "it was just seen");
            assert!(!recent.insert(id.saturating_sub(KEPT as u64 / 3)), "{id}");
            assert!(recent.young.len() + recent.old.len() <= 2 * KEPT);
        }
        assert!(recent.insert(0), "not seen for long");
    }
}
