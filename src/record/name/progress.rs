//! The progress of naming addresses.
//!
//! At the end of a recording, the recorder waits for names in code that has no observer. So all
//! processes of a recording share one count, which another thread can read.

use std::sync::atomic::{AtomicU64, Ordering};

static ASKED: AtomicU64 = AtomicU64::new(0);
static NAMED: AtomicU64 = AtomicU64::new(0);

/// Returns the number of named addresses, and the number of requested addresses.
pub fn addresses_named() -> (u64, u64) {
    // Relaxed, both: counts for display. `NAMED` is read first, and `max` hides the remaining race,
    // so that it never appears to exceed `ASKED`.
    let named = NAMED.load(Ordering::Relaxed);
    (named, ASKED.load(Ordering::Relaxed).max(named))
}

/// Counts addresses that were sent to a symbolizer.
pub(crate) fn note_asked(addresses: usize) {
    // Relaxed, as in `addresses_named`.
    ASKED.fetch_add(addresses as u64, Ordering::Relaxed);
}

/// Counts addresses that a symbolizer has named.
pub(crate) fn note_named(addresses: usize) {
    // Relaxed, as in `addresses_named`.
    NAMED.fetch_add(addresses as u64, Ordering::Relaxed);
}
