//! The progress of naming addresses.
//!
//! At the end of a recording everything waits for names, in code that reaches no observer. So all
//! processes of a recording share one count, which another thread can read.

use std::sync::atomic::{AtomicU64, Ordering};

static ASKED: AtomicU64 = AtomicU64::new(0);
static NAMED: AtomicU64 = AtomicU64::new(0);

/// Returns the number of named addresses, and of those requested.
pub fn addresses_named() -> (u64, u64) {
    // Relaxed, both: counts for display. The named ones are read first, so that they do not exceed
    // the requested ones as far as that can be seen.
    let named = NAMED.load(Ordering::Relaxed);
    (named, ASKED.load(Ordering::Relaxed).max(named))
}

/// Counts addresses that were sent to a symbolizer.
pub(crate) fn note_asked(addresses: usize) {
    // Relaxed, as in `addresses_named`.
    ASKED.fetch_add(addresses as u64, Ordering::Relaxed);
}

/// Counts addresses that it has answered.
pub(crate) fn note_named(addresses: usize) {
    // Relaxed, as in `addresses_named`.
    NAMED.fetch_add(addresses as u64, Ordering::Relaxed);
}
