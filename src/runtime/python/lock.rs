//! The global interpreter lock (GIL), for which threads wait before they run Python code.

use std::ops::Range;

use crate::runtime::memory::{self, TargetMemory};

/// Size of the lock with its condition variables, with glibc and with musl.
const LEN: u64 = 208;
/// Offset of the word that is not 0 while a thread holds the lock; -1 before its first use.
const LOCKED: u64 = 16;
/// Longest time that a thread waits before it asks for the lock, in microseconds.
const INTERVAL_MAX: u64 = 3_600_000_000;

/// Where the lock is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::runtime) enum LockPlace {
    /// At this offset in the runtime's state.
    Runtime(u64),
    /// Each interpreter has a pointer to its lock at this offset.
    Interpreter(u64),
}

impl LockPlace {
    /// Returns the addresses of the locks (AVMAs), each once.
    pub(super) fn locks(
        self,
        runtime: u64,
        interpreters: &[u64],
        memory: &dyn TargetMemory,
    ) -> Vec<Range<u64>> {
        let word = |base: u64, at: u64| memory::word(memory, base.wrapping_add(at));
        let mut locks: Vec<u64> = match self {
            Self::Runtime(offset) => vec![runtime.wrapping_add(offset)],
            Self::Interpreter(offset) => {
                interpreters.iter().filter_map(|base| word(*base, offset)).collect()
            }
        };
        locks.retain(|lock| {
            let interval = word(*lock, 0).unwrap_or(0);
            let locked = word(*lock, LOCKED).map(|word| word as i32);
            (1..=INTERVAL_MAX).contains(&interval) && matches!(locked, Some(-1..=1))
        });
        locks.sort_unstable();
        locks.dedup();
        locks.into_iter().map(|lock| lock..lock.saturating_add(LEN)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Memory of two interpreters with one lock, from address 0x1000 on.
    struct Locked {
        interval: u64,
        locked: Cell<u64>,
    }

    impl TargetMemory for Locked {
        fn read(&self, avma: u64, into: &mut [u8]) -> usize {
            let word = match avma {
                0x1010 | 0x2010 => 0x4000,
                0x3010 => 0x5000,
                0x4000 => self.interval,
                0x4010 => self.locked.get(),
                _ => return 0,
            };
            into.copy_from_slice(&word.to_le_bytes());
            into.len()
        }
    }

    #[test]
    fn locks_are_those_of_all_interpreters() {
        let memory = Locked { interval: 5000, locked: Cell::new(1) };
        let find = |memory: &Locked| {
            LockPlace::Interpreter(0x10).locks(0, &[0x1000, 0x2000, 0x3000], memory)
        };
        let expected = vec![Range { start: 0x4000, end: 0x40d0 }];
        assert_eq!(find(&memory), expected);
        assert_eq!(LockPlace::Runtime(0x20).locks(0x3fe0, &[], &memory), expected);
        for free in [0, u64::from(u32::MAX)] {
            memory.locked.set(free);
            assert_eq!(find(&memory).len(), 1);
        }
        memory.locked.set(7);
        assert!(find(&memory).is_empty(), "no lock");
        assert!(find(&Locked { interval: 0, locked: Cell::new(1) }).is_empty(), "no lock");
        assert!(LockPlace::Interpreter(0x10).locks(0, &[u64::MAX, 0], &memory).is_empty());
    }
}
