//! The walk over a thread's frames, from the innermost one to the outermost one.

use super::lists::{FrameList, FrameLists};
use super::{ABSENT, FRAMES_MAX, Lost, Reader, SKIPPED_MAX};
use crate::runtime::WordReader;
use crate::runtime::word::{EMPTY, ENTRY, FOREIGN, FRAME_WORDS, ManagedFrame, SectionEnd};
use crate::sync::{AtomicU64, Ordering};

/// The frames that were stored.
pub(super) struct Walk<'w> {
    pairs: &'w [[AtomicU64; FRAME_WORDS]],
    /// Number of frames.
    pub(super) count: usize,
    /// Number of frames whose object was not of the expected type.
    pub(super) foreign: usize,
    /// Number of frames that only mark a call from native code.
    skipped: usize,
    /// Whether a frame is one of the program.
    pub(super) has_code: bool,
}

impl<'w> Walk<'w> {
    /// Makes a walk that stores frames in these words.
    pub(super) fn into(words: &'w [AtomicU64]) -> Self {
        let (pairs, _) = words.as_chunks::<FRAME_WORDS>();
        Self { pairs, count: 0, foreign: 0, skipped: 0, has_code: false }
    }

    /// Stores the frames of all lists, and returns why it ended.
    pub(super) fn run(
        &mut self,
        reader: &mut Reader<'_, impl WordReader>,
        lists: &mut FrameLists,
    ) -> SectionEnd {
        let mut end = match (lists.is_cut, lists.is_outer) {
            (true, _) => SectionEnd::Unlinked,
            (false, true) => SectionEnd::Outer,
            (false, false) => SectionEnd::Root,
        };
        while let Some(list) = lists.innermost() {
            match self.segment(reader, list) {
                Ok(()) => {}
                Err(SectionEnd::Unlinked) => end = SectionEnd::Unlinked,
                Err(other) => return other,
            }
            if lists.advance(reader).is_err() {
                return SectionEnd::Unreadable;
            }
        }
        end
    }

    /// Stores the next frames of a list, up to one that native code called. The list is shorter by
    /// these afterwards.
    fn segment(
        &mut self,
        reader: &mut Reader<'_, impl WordReader>,
        list: &mut FrameList,
    ) -> Result<(), SectionEnd> {
        let before = self.count;
        while list.frame != 0 {
            let (previous, managed) =
                step(reader, list.frame).map_err(|_| SectionEnd::Unreadable)?;
            let Some(managed) = managed else {
                // The call that the shim marks is that of the frame before it.
                self.skipped = self.skipped.wrapping_add(1);
                if self.skipped > SKIPPED_MAX {
                    return Err(SectionEnd::Depth);
                }
                if self.count == before {
                    self.push(ManagedFrame { flags: EMPTY | list.flags, ..ManagedFrame::NONE })?;
                }
                self.mark_entry();
                list.frame = previous;
                return Ok(());
            };
            self.push(ManagedFrame { flags: managed.flags | list.flags, ..managed })?;
            self.has_code = true;
            self.foreign = self.foreign.wrapping_add(usize::from(managed.flags & FOREIGN != 0));
            list.frame = previous;
            if managed.flags & ENTRY != 0 {
                return Ok(());
            }
        }
        // Native code called the last frame. Since 3.12, a frame marks that call.
        if reader.layout.frame_owner != ABSENT {
            return Err(SectionEnd::Unlinked);
        }
        self.mark_entry();
        Ok(())
    }

    fn push(&mut self, frame: ManagedFrame) -> Result<(), SectionEnd> {
        let pair = self.pairs.get(self.count).filter(|_| self.count < FRAMES_MAX);
        for (to, word) in pair.ok_or(SectionEnd::Depth)?.iter().zip(frame.words()) {
            // Relaxed: the words are the caller's own until it publishes them.
            to.store(word, Ordering::Relaxed);
        }
        self.count = self.count.wrapping_add(1);
        Ok(())
    }

    /// Marks the last frame as one that native code called.
    fn mark_entry(&mut self) {
        if let Some([first, _]) = self.pairs.get(self.count.wrapping_sub(1)) {
            let marked = first.load(Ordering::Relaxed) | ManagedFrame::ENTRY_WORD;
            first.store(marked, Ordering::Relaxed);
        }
    }
}

/// Returns a frame's caller, and the frame itself unless it only marks a call from native code.
fn step(
    reader: &mut Reader<'_, impl WordReader>,
    frame: u64,
) -> Result<(u64, Option<ManagedFrame>), Lost> {
    let previous = reader.field(frame, reader.layout.frame_previous)?;
    let code = reader.field(frame, reader.layout.frame_code)? & reader.layout.code_mask;
    if reader.is_shim(frame)? {
        return Ok((previous, None));
    }
    Ok((previous, Some(reader.managed_frame(frame, code)?)))
}
