//! The walk along the frames of threads of Lua, and their native frames.

use super::entry::{Bases, Entry};
use super::position::{self, Place};
use super::prototype::of_prototype;
use super::slot::{Link, LuaCode, SLOT, code_at, distance_of_call, instruction_before};
use super::{NOWHERE, Reader};
use crate::runtime::frames::FrameWriter;
use crate::runtime::reader::Lost;
use crate::runtime::word::{EMPTY, ENTRY, FOREIGN, ManagedFrame, SectionEnd};
use crate::runtime::{CapturedThread, FRAMES_MAX, WordReader};

/// Maximum number of frames of all kinds, of which a call may have several.
const STEPS_MAX: usize = 4 * FRAMES_MAX;
/// Maximum number of threads of Lua on one native stack.
const THREADS_MAX: usize = 64;
/// What stands for the function that a foreign library calls back, before the link.
const CALLBACK: u64 = 1;

/// Stores the frames of a thread.
pub(super) struct LuaWalk<'w> {
    pub(super) frames: FrameWriter<'w>,
    thread: CapturedThread,
    /// The prototype of the last frame, and its cookie.
    last: (u64, Option<u32>),
    /// The number of frames before those of the native frame whose frames are stored.
    entered: usize,
    steps_left: usize,
}

/// A frame of a thread of Lua.
struct Step {
    entry: Entry,
    bases: Bases,
    place: Place,
    /// Whether the frame is that of the call before it.
    is_same_call: bool,
}

impl<'w> LuaWalk<'w> {
    /// Makes a walk that stores frames of a thread.
    pub(super) fn into(frames: FrameWriter<'w>, thread: CapturedThread) -> Self {
        Self { frames, thread, last: (0, None), entered: 0, steps_left: STEPS_MAX }
    }

    /// Stores the frames of all threads of Lua on the native stack.
    pub(super) fn run(
        &mut self,
        reader: &mut Reader<'_, impl WordReader>,
        innermost: Entry,
    ) -> Result<(), SectionEnd> {
        let mut entry = innermost;
        for number in 0..THREADS_MAX {
            let place = match number {
                0 => position::innermost(reader, entry, self.thread)?,
                _ => position::outer(reader, entry)?,
            };
            let Some(place) = place else { return Err(self.unknown()) };
            let outermost = self.of_thread(reader, (entry, place))?;
            match outermost.next(reader)? {
                Some(next) => entry = next,
                None => return Ok(()),
            }
        }
        Err(SectionEnd::Depth)
    }

    /// Ends the list where the innermost frame of a thread of Lua is not known.
    fn unknown(&mut self) -> SectionEnd {
        let frame = ManagedFrame { flags: FOREIGN | ENTRY, ..ManagedFrame::NONE };
        self.frames.push(frame).err().unwrap_or(SectionEnd::Unlinked)
    }

    /// Stores the frames of a thread of Lua, from one on. Returns its outermost native frame.
    fn of_thread(
        &mut self,
        reader: &mut Reader<'_, impl WordReader>,
        (entry, place): (Entry, Place),
    ) -> Result<Entry, SectionEnd> {
        let bases = entry.bases(reader)?;
        let mut step = Step { entry, bases, place, is_same_call: false };
        while let Some(left) = self.steps_left.checked_sub(1) {
            self.steps_left = left;
            let Step { entry, bases, place, .. } = step;
            let has_ended = if entry.is_without_frame(reader, place.link, bases)? {
                self.leave_native(reader, &mut step)?
            } else if place.link == bases.first_link() {
                return Ok(entry);
            } else if place.link < bases.first_link() {
                return Err(Lost.into());
            } else {
                self.leave(reader, &mut step)?
            };
            if has_ended {
                return Ok(entry);
            }
        }
        Err(SectionEnd::Depth)
    }

    /// Stores a frame and moves to its caller. Returns whether the thread of Lua has no other one.
    fn leave(
        &mut self,
        reader: &mut Reader<'_, impl WordReader>,
        step: &mut Step,
    ) -> Result<bool, SectionEnd> {
        let Place { link: at, position, left } = step.place;
        let link = match left {
            Some(link) => link,
            None => {
                let code = code_at(reader, at)?;
                if let LuaCode::Lua(prototype) = code
                    && !step.is_same_call
                {
                    self.push(reader, prototype, position)?;
                }
                reader.word(at)?
            }
        };
        step.is_same_call = false;
        let below = |distance: u64| Place::at(at.wrapping_sub(distance), NOWHERE);
        match Link::of(link) {
            Link::Lua(goes_on) => {
                let link = at.wrapping_sub(distance_of_call(reader, goes_on)?);
                let LuaCode::Lua(caller) = code_at(reader, link)? else { return Err(Lost.into()) };
                let number = instruction_before(reader, caller, goes_on)?;
                step.place = Place::at(link, number.ok_or(Lost)?);
            }
            Link::Continued(distance) => {
                let slot = |number: u64| at.wrapping_sub(number.wrapping_mul(SLOT));
                step.place = below(distance);
                if reader.word(slot(3))? == CALLBACK {
                    return self.leave_native(reader, step);
                }
                let goes_on = reader.word(slot(2))?;
                step.place.position = position::saved_in(reader, step.place.link, goes_on)?;
            }
            Link::Arguments(distance) => {
                (step.place, step.is_same_call) = (below(distance), true);
            }
            Link::Catching(distance) => step.place = below(distance),
            Link::Protected(distance) if step.entry.is_begin() => {
                step.place = below(distance);
                self.end_segment()?;
                return Ok(true);
            }
            Link::Native(distance) | Link::Protected(distance) => {
                step.place = below(distance);
                return self.leave_native(reader, step);
            }
        }
        // The frames below are at lower addresses.
        if step.place.link < at { Ok(false) } else { Err(Lost.into()) }
    }

    /// Moves from a native frame to the one before, of the same thread of Lua. Returns whether
    /// there is none.
    fn leave_native(
        &mut self,
        reader: &mut Reader<'_, impl WordReader>,
        step: &mut Step,
    ) -> Result<bool, SectionEnd> {
        self.end_segment()?;
        let Some(before) = step.entry.before(reader)? else { return Ok(true) };
        step.entry = before;
        let link = step.place.link;
        if link > step.bases.first_link() && !step.is_same_call {
            // The interpreter has called native code for an instruction.
            let saved = before.saved(reader)?;
            step.place.position = position::saved_in(reader, link, saved)?;
        }
        Ok(false)
    }

    /// Ends the frames of a native frame.
    fn end_segment(&mut self) -> Result<(), SectionEnd> {
        if self.frames.count > self.entered {
            self.frames.mark_entry(true);
        } else {
            self.frames.push(ManagedFrame { flags: EMPTY | ENTRY, ..ManagedFrame::NONE })?;
        }
        self.entered = self.frames.count;
        Ok(())
    }

    fn push(
        &mut self,
        reader: &mut Reader<'_, impl WordReader>,
        prototype: u64,
        position: u32,
    ) -> Result<(), SectionEnd> {
        if self.last.0 != prototype {
            self.last = (prototype, of_prototype(reader, prototype).ok());
        }
        let (flags, cookie) = self.last.1.map_or((FOREIGN, 0), |cookie| (0, cookie));
        self.frames.push(ManagedFrame { object: prototype, flags, position, cookie })
    }
}
