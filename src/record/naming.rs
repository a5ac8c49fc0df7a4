//! How far the naming of addresses is.
//!
//! At the end of a recording names are all that is waited for, deep below what an observer is told of. So
//! there is one account for all processes of it, to be looked at from another thread.

use std::sync::atomic::{AtomicU64, Ordering};

static ASKED: AtomicU64 = AtomicU64::new(0);
static NAMED: AtomicU64 = AtomicU64::new(0);

/// How many addresses were named in this process, of how many that were asked for.
pub fn addresses_named() -> (u64, u64) {
    // Relaxed, both: counts for the eye. The named ones first, so that they are not more than the asked
    // ones, as far as that can be seen.
    let named = NAMED.load(Ordering::Relaxed);
    (named, ASKED.load(Ordering::Relaxed).max(named))
}

/// A symbolizer is asked for addresses.
pub(super) fn note_asked(addresses: usize) {
    // Relaxed, as in `addresses_named`.
    ASKED.fetch_add(addresses as u64, Ordering::Relaxed);
}

/// It has answered.
pub(super) fn note_named(addresses: usize) {
    // Relaxed, as in `addresses_named`.
    NAMED.fetch_add(addresses as u64, Ordering::Relaxed);
}
