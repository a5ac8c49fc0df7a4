//! The upper halves of call-trace ids: each table of a storage has one at a time, and no two tables
//! of a recording ever have the same, whichever process they are of.
//!
//! # Invariants
//! - None is given twice, and none is 0: when they run out, nothing is given any more.

use std::sync::atomic::{AtomicU32, Ordering};

/// Those that are left when [`Instances::is_ending`] begins to say so: enough for the rotations
/// that collect what is there, of all processes.
const RESERVED: u32 = 1 << 16;

/// The ones that are left.
#[derive(Debug)]
pub(crate) struct Instances {
    /// The next one; 0 when all have been given.
    next: AtomicU32,
}

impl Default for Instances {
    fn default() -> Self {
        Self::from(1)
    }
}

impl Instances {
    /// This one and all that come after it.
    pub(crate) fn from(next: u32) -> Self {
        Self { next: AtomicU32::new(next) }
    }

    /// One that no table has had or will have; `None` when all have been given.
    pub(crate) fn take(&self) -> Option<u32> {
        let after = |next: u32| (next != 0).then(|| next.wrapping_add(1));
        // Relaxed, both: a number, which carries nothing with it.
        self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, after).ok()
    }

    /// They are about to run out: time to stop sampling and to collect what is there.
    pub(crate) fn is_ending(&self) -> bool {
        // Relaxed: as above.
        self.next.load(Ordering::Relaxed).wrapping_neg() <= RESERVED
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn several_processes_never_get_the_same() {
        let instances = Instances::default();
        let some = || (0..1000).filter_map(|_| instances.take()).collect::<Vec<_>>();
        let given = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(some)).collect();
            threads.into_iter().flat_map(|it| it.join().unwrap()).collect::<BTreeSet<_>>()
        });
        assert_eq!((given.len(), given.first(), given.last()), (4000, Some(&1), Some(&4000)));
        assert!(!instances.is_ending());
    }

    #[test]
    fn they_end_before_one_is_given_twice() {
        let instances = Instances::from(u32::MAX - 1);
        assert!(instances.is_ending(), "what is left is for the last rotations");
        let given: Vec<_> = (0..4).map(|_| instances.take()).collect();
        assert_eq!(given, [Some(u32::MAX - 1), Some(u32::MAX), None, None]);
        assert!(instances.is_ending());
    }
}
