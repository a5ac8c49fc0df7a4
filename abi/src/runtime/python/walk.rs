//! The walk over a thread's frames, from the innermost one to the outermost one.

use super::lists::{FrameList, FrameLists};
use super::{ABSENT, FrameWriter, Lost, Reader, SKIPPED_MAX};
use crate::runtime::WordReader;
use crate::runtime::word::{EMPTY, ENTRY, ManagedFrame, SectionEnd};

/// The walk over the frames of a thread.
pub(super) struct Walk<'w> {
    /// The frames that were stored.
    pub(super) frames: FrameWriter<'w>,
    /// Number of frames that only mark a call from native code.
    skipped: usize,
    /// Whether a frame is one of the program.
    pub(super) has_code: bool,
}

impl<'w> Walk<'w> {
    /// Makes a walk that stores frames.
    pub(super) fn into(frames: FrameWriter<'w>) -> Self {
        Self { frames, skipped: 0, has_code: false }
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
        let before = self.frames.count;
        while list.frame != 0 {
            let (previous, managed) =
                step(reader, list.frame).map_err(|_| SectionEnd::Unreadable)?;
            let Some(managed) = managed else {
                // The call that the shim marks is that of the frame before it.
                self.skipped = self.skipped.wrapping_add(1);
                if self.skipped > SKIPPED_MAX {
                    return Err(SectionEnd::Depth);
                }
                if self.frames.count == before {
                    self.frames
                        .push(ManagedFrame { flags: EMPTY | list.flags, ..ManagedFrame::NONE })?;
                }
                self.frames.mark_entry(true);
                list.frame = previous;
                return Ok(());
            };
            self.frames.push(ManagedFrame { flags: managed.flags | list.flags, ..managed })?;
            self.has_code = true;
            list.frame = previous;
            if managed.flags & ENTRY != 0 {
                return Ok(());
            }
        }
        // Native code called the last frame. Since 3.12, a frame marks that call.
        if reader.layout.frame_owner != ABSENT {
            return Err(SectionEnd::Unlinked);
        }
        self.frames.mark_entry(true);
        Ok(())
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
