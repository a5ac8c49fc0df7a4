//! The frames of a section, as they are stored.

use super::word::{FOREIGN, FRAME_WORDS, ManagedFrame, SectionEnd, header};
use super::{Captured, FRAMES_MAX};
use crate::sync::{AtomicU64, Ordering};

/// Stores the frames of a section, leaf first.
pub(super) struct FrameWriter<'w> {
    head: &'w AtomicU64,
    pairs: &'w [[AtomicU64; FRAME_WORDS]],
    /// Number of frames.
    pub(super) count: usize,
    /// Number of frames whose object was not of the expected type.
    foreign: usize,
}

impl<'w> FrameWriter<'w> {
    /// Makes a writer that stores a section in these words. `None` if there is no room.
    pub(super) fn into(words: &'w [AtomicU64]) -> Option<Self> {
        let (head, room) = words.split_first()?;
        let (pairs, _) = room.as_chunks::<FRAME_WORDS>();
        Some(Self { head, pairs, count: 0, foreign: 0 })
    }

    /// Stores the next frame, unless there is no room for it.
    pub(super) fn push(&mut self, frame: ManagedFrame) -> Result<(), SectionEnd> {
        let pair = self.pairs.get(self.count).filter(|_| self.count < FRAMES_MAX);
        for (to, word) in pair.ok_or(SectionEnd::Depth)?.iter().zip(frame.words()) {
            // Relaxed: the words are the caller's own until it publishes them.
            to.store(word, Ordering::Relaxed);
        }
        self.count = self.count.wrapping_add(1);
        self.foreign = self.foreign.wrapping_add(usize::from(frame.flags & FOREIGN != 0));
        Ok(())
    }

    /// Sets whether the last frame is one that native code called.
    pub(super) fn mark_entry(&mut self, is_entry: bool) {
        if let Some([first, _]) = self.pairs.get(self.count.wrapping_sub(1)) {
            let word = first.load(Ordering::Relaxed);
            let entry = if is_entry { ManagedFrame::ENTRY_WORD } else { 0 };
            first.store(word & !ManagedFrame::ENTRY_WORD | entry, Ordering::Relaxed);
        }
    }

    /// Returns the number of frames for which there is room.
    pub(super) fn room(&self) -> usize {
        self.pairs.len().min(FRAMES_MAX).saturating_sub(self.count)
    }

    /// Reverses the order of the frames from this one on.
    pub(super) fn reverse_from(&mut self, first: usize) {
        let stored = self.pairs.get(first..self.count).unwrap_or(&[]);
        let (inner, outer) = stored.split_at(stored.len() / 2);
        for (one, other) in inner.iter().zip(outer.iter().rev()) {
            for (one, other) in one.iter().zip(other) {
                // Relaxed: the words are the caller's own until it publishes them.
                let word = one.load(Ordering::Relaxed);
                one.store(other.load(Ordering::Relaxed), Ordering::Relaxed);
                other.store(word, Ordering::Relaxed);
            }
        }
    }

    /// Stores the header.
    pub(super) fn finish(self, index: usize, end: SectionEnd) -> Captured {
        // Relaxed: the words are the caller's own until it publishes them.
        self.head.store(header(index, end, self.count), Ordering::Relaxed);
        let words = self.count.wrapping_mul(FRAME_WORDS).wrapping_add(1);
        Captured::Section { words, end, foreign: self.foreign }
    }
}
