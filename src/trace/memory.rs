//! The memory limit of this process's work on traces.
//!
//! A trace is compressed, and its texts are referred to many times, so a small file can describe
//! contents of any size. No recorder writes such a file: the limits are far above what traces of
//! its size take. As for the [`meter`](super::meter), there is one limit for the process, because
//! most memory is held by views, far above the code that reads.
//!
//! # Invariants
//! - Without a call of [`allow`] there is no limit.
//! - Memory is looked up after each `UNCHECKED_BYTES` that a reader has counted, so it exceeds
//!   the limit by the contents of a few frames.

use std::sync::atomic::{AtomicU64, Ordering};

use super::TraceError;
use crate::proc::anonymous_bytes;

/// What may be held whatever the size of the files: frames in flight, caches.
const BASE_BYTES: u64 = 128 << 20;
/// What may be held for each byte of the files. A call with distinct callers takes more than a byte
/// in a file, and a hundred in the tree of a view. The view takes up to four times as much when it
/// is shown, after everything is read.
const PER_FILE_BYTE: u64 = 200;
/// What the objects and their texts may take whatever the size of the files.
const OBJECTS_BASE_BYTES: u64 = 32 << 20;
/// What the objects and their texts may take for each byte of the files. A location takes about ten
/// bytes in a file, and with its texts 200 bytes in memory.
const OBJECTS_PER_FILE_BYTE: u64 = 32;
/// The counted bytes between two looks at the memory of the process.
const UNCHECKED_BYTES: u64 = 1 << 20;

/// What this process held before its work on traces; `u64::MAX` without a limit.
static BEFORE: AtomicU64 = AtomicU64::new(u64::MAX);
/// The size of the files of all traces.
static FILE_BYTES: AtomicU64 = AtomicU64::new(0);
static COUNTED: AtomicU64 = AtomicU64::new(0);

/// Limits this process's memory in proportion to the files of a trace, which have `file_bytes`
/// bytes. Each further trace, or growth of one, adds to the limit.
pub fn allow(file_bytes: u64) {
    // Relaxed, here and below: the numbers carry nothing with them.
    if BEFORE.load(Ordering::Relaxed) == u64::MAX {
        // Without /proc there is no way to know.
        let Some(held) = anonymous_bytes() else { return };
        BEFORE.store(held, Ordering::Relaxed);
    }
    FILE_BYTES.fetch_add(file_bytes, Ordering::Relaxed);
}

/// Adds what a trace has grown by, if there is a limit.
pub(super) fn grown(file_bytes: u64) {
    FILE_BYTES.fetch_add(file_bytes, Ordering::Relaxed);
}

/// Returns the bytes that work on traces may take; `None` without a limit.
fn limit(base: u64, per_file_byte: u64) -> Option<u64> {
    let is_limited = BEFORE.load(Ordering::Relaxed) < u64::MAX;
    let for_files = FILE_BYTES.load(Ordering::Relaxed).saturating_mul(per_file_byte);
    is_limited.then(|| base.saturating_add(for_files))
}

/// Returns the bytes that the thread-neutral objects of a trace may take with their texts; `None`
/// without a limit.
pub(super) fn for_objects() -> Option<u64> {
    limit(OBJECTS_BASE_BYTES, OBJECTS_PER_FILE_BYTE)
}

/// Counts bytes that were decoded, or that a view may hold.
///
/// # Errors
/// [`TraceError::TooMuchMemory`] if the process has more memory than its limit.
pub(super) fn note(bytes: u64) -> Result<(), TraceError> {
    let before = COUNTED.fetch_add(bytes, Ordering::Relaxed);
    if before / UNCHECKED_BYTES == before.wrapping_add(bytes) / UNCHECKED_BYTES {
        return Ok(());
    }
    let Some(limit) = limit(BASE_BYTES, PER_FILE_BYTE) else { return Ok(()) };
    let most = limit.saturating_add(BEFORE.load(Ordering::Relaxed));
    match anonymous_bytes() {
        Some(held) if held > most => Err(TraceError::TooMuchMemory { limit }),
        _ => Ok(()),
    }
}
