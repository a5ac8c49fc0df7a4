//! The walk over the frames of a process, from the innermost one to the outermost one.

use super::{ABSENT, FUNCTION_KIND, FUNCTION_NAME, FunctionKind, Lost, Reader, cookie, line};
use crate::runtime::frames::FrameWriter;
use crate::runtime::word::{ENTRY, FOREIGN, ManagedFrame, SectionEnd, UNPROVEN};
use crate::runtime::{CapturedThread, FRAMES_MAX, WordReader};

/// Offsets in a frame: of its function, the object of its method, the flags of its call, and its
/// caller.
const FUNCTION: u16 = 24;
const THIS: u16 = 32;
const CALL: u16 = 40;
const PREVIOUS: u16 = 48;
/// The flag of a call from native code.
const FROM_NATIVE: u32 = 1 << 17;
/// The flag of the frame of a generator, which another function resumes.
const OF_GENERATOR: u32 = 1 << 24;
/// Maximum number of steps: of frames with a function, and of those without one between them.
const STEPS_MAX: usize = 2 * FRAMES_MAX;
/// A frame at most this far behind an object is a part of it.
const GENERATOR_SIZE: u64 = 512;

/// The walk over the frames.
pub(super) struct PhpWalk<'w> {
    /// The frames that were stored.
    pub(super) frames: FrameWriter<'w>,
    thread: CapturedThread,
    /// The flags of all frames: 0 or [`UNPROVEN`].
    flags: u8,
    /// The function of the last frame, and its cookie.
    last: (u64, Option<u32>),
    /// The last frame that has a function.
    last_frame: u64,
    /// The number of generators that may still be followed.
    generators_left: usize,
}

impl<'w> PhpWalk<'w> {
    /// Makes a walk that stores frames of a thread.
    pub(super) fn into(
        frames: FrameWriter<'w>,
        reader: &mut Reader<'_, impl WordReader>,
        thread: CapturedThread,
    ) -> Result<Self, Lost> {
        // Another thread than the one that runs PHP code finds the same list.
        let is_own = thread.has_on_stack(reader.word(reader.layout.bailout)?);
        let flags = if is_own { 0 } else { UNPROVEN };
        let (last, last_frame, generators_left) = ((0, None), 0, STEPS_MAX);
        Ok(Self { frames, thread, flags, last, last_frame, generators_left })
    }

    /// Stores the frames of a list, and returns why it ended.
    pub(super) fn run(
        &mut self,
        reader: &mut Reader<'_, impl WordReader>,
        leaf: u64,
    ) -> SectionEnd {
        let mut frame = leaf;
        for _ in 0..STEPS_MAX {
            if frame == 0 {
                self.frames.mark_entry(true);
                return SectionEnd::Root;
            }
            match self.step(reader, frame, frame == leaf) {
                Ok(previous) => frame = previous,
                Err(end) => return end,
            }
        }
        SectionEnd::Depth
    }

    /// Stores a frame, and returns its caller or 0.
    fn step(
        &mut self,
        reader: &mut Reader<'_, impl WordReader>,
        frame: u64,
        is_leaf: bool,
    ) -> Result<u64, SectionEnd> {
        let function = reader.field(frame, FUNCTION)?;
        let previous = reader.field(frame, PREVIOUS)?;
        if function == 0 {
            // The interpreter inserts such frames between others, for itself.
            let object = reader.field(frame, THIS)?;
            let is_of_generator = frame.wrapping_sub(object) < GENERATOR_SIZE;
            if is_of_generator {
                self.delegating(reader, object, frame)?;
            }
            return if is_of_generator && previous == 0 {
                Err(self.unlinked())
            } else {
                Ok(previous)
            };
        }
        let kind = FunctionKind::of(reader.word(function.wrapping_add(FUNCTION_KIND))?);
        let mut is_unlinked = false;
        let (flags, line) = match kind {
            // The bottom of a fiber's list, which is linked to the rest while the fiber runs.
            Some(FunctionKind::Internal) if reader.field(function, FUNCTION_NAME)? == 0 => {
                return if previous == 0 { Err(self.unlinked()) } else { Ok(previous) };
            }
            Some(FunctionKind::Internal) => (0, 0),
            Some(_) => {
                let call = reader.half(frame, CALL)?;
                is_unlinked = call & OF_GENERATOR != 0 && previous == 0;
                let flags = if call & FROM_NATIVE != 0 { ENTRY } else { 0 };
                let line = match is_leaf {
                    true => line::of_innermost(reader, (frame, function), self.thread)?,
                    false => line::of_caller(reader, frame, function)?,
                };
                (flags, line)
            }
            None => (FOREIGN, 0),
        };
        self.push(reader, function, (flags, line))?;
        self.last_frame = frame;
        if is_unlinked { Err(self.unlinked()) } else { Ok(previous) }
    }

    /// Ends the list where the interpreter has not linked it yet, or no longer.
    fn unlinked(&mut self) -> SectionEnd {
        self.push_unknown().err().unwrap_or(SectionEnd::Unlinked)
    }

    /// Stores what stands for callers that are not known.
    fn push_unknown(&mut self) -> Result<(), SectionEnd> {
        let flags = FOREIGN | ENTRY | self.flags;
        self.frames.push(ManagedFrame { flags, ..ManagedFrame::NONE })
    }

    fn push(
        &mut self,
        reader: &mut Reader<'_, impl WordReader>,
        function: u64,
        (flags, line): (u8, u32),
    ) -> Result<(), SectionEnd> {
        if self.last.0 != function {
            self.last = (function, cookie(reader.layout, function, reader.memory));
        }
        let (foreign, cookie) = self.last.1.map_or((FOREIGN, 0), |cookie| (0, cookie));
        let flags = flags | foreign | self.flags;
        self.frames.push(ManagedFrame { object: function, flags, position: line, cookie })
    }

    /// Stores the frames of the generators that have delegated to the one whose frame was the last.
    /// They run no code, and are called with it. `outermost` is the generator whose frame stands
    /// for all of them.
    fn delegating(
        &mut self,
        reader: &mut Reader<'_, impl WordReader>,
        outermost: u64,
        placeholder: u64,
    ) -> Result<(), SectionEnd> {
        self.frames.mark_entry(false);
        let Some(count) = self.delegating_count(reader, outermost, placeholder)? else {
            // They are unknown, but not left out.
            return self.push_unknown();
        };
        let (room, first) = (self.frames.room(), self.frames.count);
        if let Err(end) = self.push_delegating(reader, (outermost, count), room) {
            // Some are there, in the wrong order.
            self.frames.count = first;
            return Err(end);
        }
        self.frames.reverse_from(first);
        if count > room {
            return Err(SectionEnd::Depth);
        }
        self.frames.mark_entry(true);
        Ok(())
    }

    /// Stores this number of generators, as far as there is room for the innermost ones. They lead
    /// inwards, and frames are stored outwards: the caller reverses them.
    fn push_delegating(
        &mut self,
        reader: &mut Reader<'_, impl WordReader>,
        (outermost, count): (u64, usize),
        room: usize,
    ) -> Result<(), SectionEnd> {
        let mut generator = outermost;
        for left in (1..=count).rev() {
            if left <= room {
                let frame = reader.field(generator, reader.layout.generator_frame)?;
                let function = reader.field(frame, FUNCTION)?;
                let line = line::of_caller(reader, frame, function)?;
                self.push(reader, function, (0, line))?;
            }
            generator = reader.field(generator, reader.layout.generator_inner)?;
        }
        Ok(())
    }

    /// Counts the generators that delegate, from the outermost one to the one whose frame was the
    /// last, without that one. `None` if they are unknown.
    fn delegating_count(
        &mut self,
        reader: &mut Reader<'_, impl WordReader>,
        outermost: u64,
        placeholder: u64,
    ) -> Result<Option<usize>, Lost> {
        let layout = reader.layout;
        let start = outermost.wrapping_add(u64::from(layout.generator_placeholder));
        if layout.generator_frame == ABSENT || start != placeholder {
            return Ok(None);
        }
        let (mut generator, mut count) = (outermost, 0usize);
        // The one that runs may just be about to delegate, too.
        while reader.field(generator, layout.generator_frame)? != self.last_frame {
            let Some(left) = self.generators_left.checked_sub(1) else { return Ok(None) };
            self.generators_left = left;
            generator = reader.field(generator, layout.generator_inner)?;
            if generator == 0 {
                return Ok(None);
            }
            count = count.wrapping_add(1);
        }
        Ok(Some(count))
    }
}
