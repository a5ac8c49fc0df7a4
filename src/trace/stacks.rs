//! Predicts the call-trace id of a sample from its stack: that of the last sample with the same
//! stack, or a new one.
//!
//! Call traces are numbered in the order in which they are found. So each sample of a thread either
//! repeats the id of its stack, or has an id larger than all before; neither needs to be stored.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::LocationId;

/// The factor of the hash of a stack, applied for each call. It is a part of the format.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// The stacks of a block with their ids.
#[derive(Debug, Clone, Default)]
pub(super) struct Stacks {
    /// The last stack.
    locations: Vec<LocationId>,
    /// The hash of the last stack up to each call.
    hashes: Vec<u64>,
    /// The last id by the hash of the stack.
    ids: HashMap<u64, u64, BuildHasherDefault<IdentityHasher>>,
    highest: u64,
}

impl Stacks {
    /// Returns the hash of a stack. Hashes only the part that differs from the last stack.
    pub(super) fn hash(&mut self, stack: &[LocationId]) -> u64 {
        let pairs = self.locations.iter().zip(stack);
        let same = pairs.take_while(|(old, new)| old == new).count();
        self.locations.truncate(same);
        self.hashes.truncate(same);
        let mut hash = self.hashes.last().copied().unwrap_or(0);
        for location in &stack[same..] {
            hash = hash.wrapping_add(u64::from(location.0) + 1).wrapping_mul(FACTOR);
            self.locations.push(*location);
            self.hashes.push(hash);
        }
        hash
    }

    /// Returns the lower half of the id of a sample whose slot is absent.
    pub(super) fn expected(&self, hash: u64, epoch: u32) -> u32 {
        match self.ids.get(&hash) {
            Some(id) if epoch_of(*id) == epoch => *id as u32,
            _ => self.next(epoch),
        }
    }

    /// Returns the lower half of the next new id.
    pub(super) fn next(&self, epoch: u32) -> u32 {
        if epoch_of(self.highest) == epoch { (self.highest as u32).wrapping_add(1) } else { 0 }
    }

    /// Records the id of a stack.
    pub(super) fn note(&mut self, hash: u64, id: u64) {
        self.ids.insert(hash, id);
        self.highest = self.highest.max(id);
    }
}

/// Returns the upper half of a call-trace id.
pub(super) fn epoch_of(id: u64) -> u32 {
    (id >> 32) as u32
}

/// A hasher that uses hashes unchanged, with the halves exchanged: the upper bits of a product are
/// the better ones.
#[derive(Debug, Default)]
struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash.rotate_left(32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(stacks: &mut Stacks, ids: &[u32]) -> u64 {
        let stack: Vec<_> = ids.iter().map(|id| LocationId(*id)).collect();
        stacks.hash(&stack)
    }

    #[test]
    fn the_hash_is_that_of_the_specification() {
        let mut stacks = Stacks::default();
        let step = |hash: u64, id: u64| (hash + id + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        assert_eq!(hash(&mut stacks, &[]), 0);
        assert_eq!(hash(&mut stacks, &[7]), step(0, 7));
        assert_eq!(hash(&mut stacks, &[7, 8, 9]), step(step(step(0, 7), 8), 9));
        for ids in [&[7, 9][..], &[7, 8], &[7, 8, 9, 9], &[1, 8, 9, 9], &[], &[2]] {
            assert_eq!(hash(&mut stacks, ids), hash(&mut Stacks::default(), ids), "{ids:?}");
        }
    }

    #[test]
    fn an_id_is_that_of_the_stack_or_the_next() {
        let mut stacks = Stacks::default();
        assert_eq!(stacks.expected(5, 1), 0);
        stacks.note(5, 1 << 32 | 100);
        assert_eq!((stacks.expected(5, 1), stacks.expected(6, 1)), (100, 101));
        stacks.note(6, 1 << 32 | 50);
        assert_eq!((stacks.expected(6, 1), stacks.expected(7, 1)), (50, 101));
        assert_eq!((stacks.expected(5, 2), stacks.expected(7, 2)), (0, 0));
        stacks.note(5, 2 << 32 | 3);
        assert_eq!((stacks.expected(5, 2), stacks.expected(6, 2)), (3, 4));
        assert_eq!((stacks.expected(6, 1), stacks.expected(5, 1)), (50, 0));
    }
}
