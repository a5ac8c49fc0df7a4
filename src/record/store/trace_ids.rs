//! Allocates instances: the upper halves of call-trace ids.
//!
//! Each table of a storage has one instance at a time. No two tables of a recording ever have the
//! same instance, even in different processes.
//!
//! # Invariants
//! - No instance is allocated twice, and none is 0. Once all are allocated, there are no more.

use std::sync::atomic::{AtomicU32, Ordering};

/// The number of instances that are left when [`Instances::is_ending`] becomes true: enough for the
/// last rotations of all processes.
const RESERVED: u32 = 1 << 16;

/// The instances that are left.
#[derive(Debug)]
pub(crate) struct Instances {
    /// The next instance; 0 once all have been allocated.
    next: AtomicU32,
}

impl Default for Instances {
    fn default() -> Self {
        Self::from(1)
    }
}

impl Instances {
    /// Makes an allocator that starts at this instance.
    pub(crate) fn from(next: u32) -> Self {
        Self { next: AtomicU32::new(next) }
    }

    /// Allocates an instance; `None` if none is left.
    pub(crate) fn take(&self) -> Option<u32> {
        let after = |next: u32| (next != 0).then(|| next.wrapping_add(1));
        // Relaxed, both: only the number itself must be unique; it publishes no other memory.
        self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, after).ok()
    }

    /// Returns whether the instances are about to run out: sampling must stop, so that the
    /// remaining samples can be collected.
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
    fn several_threads_never_get_the_same_instance() {
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
    fn instances_run_out_before_one_is_allocated_twice() {
        let instances = Instances::from(u32::MAX - 1);
        assert!(instances.is_ending(), "what is left is for the last rotations");
        let given: Vec<_> = (0..4).map(|_| instances.take()).collect();
        assert_eq!(given, [Some(u32::MAX - 1), Some(u32::MAX), None, None]);
        assert!(instances.is_ending());
    }
}
