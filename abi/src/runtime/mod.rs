//! Managed frames: the frames of language runtimes that keep them in memory of their own.
//!
//! The recorder finds a runtime in the target and publishes a [`RuntimeBlock`] with the offsets of
//! its structures. For each sample, the handler follows the runtime's list of frames and appends a
//! section to the frame words ([`word`]). The section holds identities: addresses of code objects,
//! positions in them, and cookies. The recorder reads the names later, when it drains the sample.
//! The recorder uses the same code to read the frames of a thread that it does not sample.
//!
//! # Invariants
//! - No panic, no allocation, and a bound on every loop: this code runs in a signal handler of
//!   another program, whose memory may hold anything.
//! - All reads of the runtime's memory go through [`WordReader`].
//!
//! # Does not
//! - name anything, or align managed frames with native frames: the recorder does both.

mod block;
pub mod python;
pub mod word;

pub use block::{BLOCK_BYTES, BLOCK_WORDS, RUNTIMES_MAX, RuntimeBlock};

use crate::sync::AtomicU64;
use word::SectionEnd;

/// The memory of the process that has the runtime.
pub trait WordReader {
    /// Loads the eight bytes at a multiple of 8 and never faults. `None` if they are unreadable.
    fn load(&mut self, avma: u64) -> Option<u64>;
}

/// The result of a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Captured {
    /// The runtime does not know the thread, or the thread runs none of its code. Nothing was
    /// written.
    Nothing,
    /// A section was written.
    Section {
        /// Number of words, with the header.
        words: usize,
        /// Why the section ended.
        end: SectionEnd,
        /// Number of frames whose object was not of the expected type.
        foreign: usize,
    },
    /// The way from the thread to its frames was unreadable. Nothing was written.
    Unreadable,
    /// There was no room for a section.
    Refused,
}

/// Writes the section of a thread's frames in a runtime, leaf first. `index` is the block's number
/// in the snapshot, and `thread_pointer` is the thread's.
pub fn capture(
    (index, block): (usize, &RuntimeBlock),
    thread_pointer: u64,
    memory: &mut impl WordReader,
    words: &[AtomicU64],
) -> Captured {
    match block.python() {
        Some(layout) => python::capture(index, layout, thread_pointer, memory, words),
        None => Captured::Nothing,
    }
}

/// Whether the thread with this thread pointer holds the lock that a thread must hold to run the
/// functions of a runtime. False if the runtime has no such lock, or does not tell who holds it.
pub fn holds_lock(block: &RuntimeBlock, thread_pointer: u64, memory: &mut impl WordReader) -> bool {
    block.python().is_some_and(|layout| python::holds_lock(layout, thread_pointer, memory))
}
