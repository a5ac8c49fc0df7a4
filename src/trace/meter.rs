//! How much of trace files this process has read.
//!
//! Reading a large trace takes a while, deep below what a view asks for, and what it comes to does
//! not depend on how far it is. So there is one count for all, to be looked at from another thread.

use std::sync::atomic::{AtomicU64, Ordering};

static READ: AtomicU64 = AtomicU64::new(0);

/// Bytes of data files that were read so far; what is read twice counts twice.
pub fn bytes_read() -> u64 {
    // Relaxed, as in `note_read`: the count carries nothing with it.
    READ.load(Ordering::Relaxed)
}

/// Notes some more.
pub(super) fn note_read(bytes: u64) {
    // Relaxed, as in `bytes_read`.
    READ.fetch_add(bytes, Ordering::Relaxed);
}
