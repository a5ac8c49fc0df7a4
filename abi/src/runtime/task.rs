//! The name of the task that a thread runs in a runtime, as a capture writes it.
//!
//! The words are those of a set of attributes: the length in bytes, then the bytes. The first eight
//! bytes are the kind: [`TASK_NUMBER`], [`TASK_VIRTUAL`], or the number of bytes of a character,
//! perhaps with [`TASK_CUT`]. The number or the characters follow.

use crate::sync::{AtomicU64, Ordering};

/// Maximum number of bytes of a name. A longer one is cut.
pub(super) const TASK_NAME_MAX: usize = 128;
/// Maximum number of words of a captured name.
pub const TASK_WORDS: usize = 2 + TASK_NAME_MAX / 8;
/// The kind of a name that is a number.
pub const TASK_NUMBER: u64 = 0;
/// The bit of a kind that says that the name was cut.
pub const TASK_CUT: u64 = 1 << 8;
/// The bit of a kind that says that a virtual thread has the name. Alone: it has a number only.
pub const TASK_VIRTUAL: u64 = 1 << 9;

/// A thread runs a task without a readable name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamelessTask;

/// Writes a name of `len` bytes, and returns the number of words. `load` returns eight of the bytes
/// from an offset on. `None` if they are unreadable, or there is no room.
pub(super) fn write(
    words: &[AtomicU64],
    kind: u64,
    len: usize,
    mut load: impl FnMut(usize) -> Option<u64>,
) -> Option<usize> {
    let used = len.div_ceil(8).wrapping_add(2);
    let (head, rest) = words.get(..used)?.split_first_chunk::<2>()?;
    // Relaxed, here and below: the words are the caller's own until it publishes them.
    head[0].store(len.wrapping_add(8) as u64, Ordering::Relaxed);
    head[1].store(kind, Ordering::Relaxed);
    for (index, word) in rest.iter().enumerate() {
        let at = index.wrapping_mul(8);
        // What follows the last byte would make equal names different.
        let excess = at.wrapping_add(8).saturating_sub(len);
        let mask = u64::MAX >> (excess as u32).wrapping_mul(8);
        word.store(load(at)? & mask, Ordering::Relaxed);
    }
    Some(used)
}
