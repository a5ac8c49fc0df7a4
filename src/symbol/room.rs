//! The memory that debug files may take, all together: what of them is unpacked or copied.
//!
//! What is mapped is not counted: the kernel takes it back when it likes. Nor is what parsers make of the
//! units that were asked for.
//!
//! # Invariants
//! - Who comes first keeps what it took. Nobody waits for room: who comes too late goes without.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::proc;

/// The part of the memory that this process may have.
const MEMORY_SHARE: u64 = 8;

/// Bytes that are left.
#[derive(Debug)]
pub struct Room {
    left: AtomicU64,
    len: u64,
}

/// Some of them, until it is dropped.
#[derive(Debug)]
pub(super) struct Taken {
    room: Arc<Room>,
    len: u64,
}

impl Default for Room {
    /// An eighth of the memory that this process may have.
    fn default() -> Self {
        Self::new(proc::memory_len().map_or(u64::MAX, |len| len / MEMORY_SHARE))
    }
}

impl Room {
    /// So many bytes.
    pub(super) fn new(len: u64) -> Self {
        Self { left: AtomicU64::new(len), len }
    }

    /// Why something of a file was not read, for people.
    pub(super) fn lack(&self) -> String {
        format!("without what did not fit in the {} MiB for debug files", self.len >> 20)
    }

    /// Takes bytes, if so many are left.
    pub(super) fn take(self: &Arc<Self>, len: u64) -> Option<Taken> {
        // Relaxed, both: a count, by which nothing else is made visible.
        let taken = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(len));
        taken.ok().map(|_| Taken { room: Arc::clone(self), len })
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        // Relaxed: as in `Room::take`.
        self.room.left.fetch_add(self.len, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_comes_back() {
        let room = Arc::new(Room::new(10));
        let first = room.take(6);
        assert!(first.is_some() && room.take(5).is_none());
        let second = room.take(4);
        assert!(second.is_some() && room.take(1).is_none() && room.take(0).is_some());
        drop(first);
        assert!(room.take(7).is_none() && room.take(6).is_some());
    }

    #[test]
    fn part_of_the_memory_is_left_for_others() {
        let len = Room::default().len;
        assert!(len > 1 << 20 && len < proc::memory_len().unwrap() / 4, "{len}");
    }
}
