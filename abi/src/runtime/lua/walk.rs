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
/// Maximum number of native frames.
const NATIVES_MAX: usize = 256;
/// Maximum number of threads of Lua that go on only where another one has ended.
const WAITING_MAX: usize = 4;
/// Maximum number of places on the native stack that are searched for frames of other threads.
const PLACES_MAX: u64 = 4096;
/// What stands for the function that a foreign library calls back, before the link.
const CALLBACK: u64 = 1;

/// Stores the frames of a thread.
///
/// A native frame of a thread of Lua may be above one of another thread that it has resumed: native
/// code of that one has called a function in the first. So the threads take turns, and the native
/// stack tells which one is next.
pub(super) struct LuaWalk<'w> {
    pub(super) frames: FrameWriter<'w>,
    thread: CapturedThread,
    /// The prototype of the last frame, and its cookie.
    last: (u64, Option<u32>),
    /// The number of frames before those of the native frame whose frames are stored.
    entered: usize,
    steps_left: usize,
    places_left: u64,
    /// The threads of Lua that go on above others, the next one last.
    waiting: [Option<Waiting>; WAITING_MAX],
}

/// A frame of a thread of Lua.
#[derive(Debug, Clone, Copy)]
struct Step {
    entry: Entry,
    bases: Bases,
    place: Place,
    /// Whether the frame is that of the call before it.
    is_same_call: bool,
}

/// A thread of Lua that goes on at a native frame: what a step has of it. A handler has little
/// stack.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    entry: Entry,
    link: u64,
    position: u32,
    is_same_call: bool,
}

impl Waiting {
    /// Returns the step at which the thread of Lua goes on.
    fn step(self, reader: &mut Reader<'_, impl WordReader>) -> Result<Step, Lost> {
        let step = Step::of(reader, self.entry, Place::at(self.link, self.position))?;
        Ok(Step { is_same_call: self.is_same_call, ..step })
    }
}

impl Step {
    /// Makes the innermost one of a thread of Lua.
    fn of(
        reader: &mut Reader<'_, impl WordReader>,
        entry: Entry,
        place: Place,
    ) -> Result<Self, Lost> {
        Ok(Self { entry, bases: entry.bases(reader)?, place, is_same_call: false })
    }
}

impl<'w> LuaWalk<'w> {
    /// Makes a walk that stores frames of a thread.
    pub(super) fn into(frames: FrameWriter<'w>, thread: CapturedThread) -> Self {
        Self {
            frames,
            thread,
            last: (0, None),
            entered: 0,
            steps_left: STEPS_MAX,
            places_left: PLACES_MAX,
            waiting: [None; WAITING_MAX],
        }
    }

    /// Stores the frames of all threads of Lua on the native stack.
    pub(super) fn run(
        &mut self,
        reader: &mut Reader<'_, impl WordReader>,
        innermost: Entry,
    ) -> Result<(), SectionEnd> {
        let place = position::innermost(reader, innermost, self.thread)?;
        let Some(place) = place else { return Err(self.unknown()) };
        let mut step = Step::of(reader, innermost, place)?;
        for _ in 0..NATIVES_MAX {
            let left = step.entry;
            let has_ended = self.of_native(reader, &mut step)?;
            let other = match has_ended {
                false => self.other_below(reader, left, step.entry.stack())?,
                true => match self.waiting_stack() {
                    Some(stack) => self.other_below(reader, left, stack)?,
                    None => self.next(reader, left)?,
                },
            };
            step = match other {
                Some(other) => {
                    if !has_ended {
                        self.wait(step)?;
                    }
                    let Some(place) = position::outer(reader, other)? else {
                        return Err(self.unknown());
                    };
                    Step::of(reader, other, place)?
                }
                None if !has_ended => step,
                None => match self.waiting.iter_mut().rev().find_map(Option::take) {
                    Some(waiting) => waiting.step(reader)?,
                    None => return Ok(()),
                },
            };
        }
        Err(SectionEnd::Depth)
    }

    /// Returns the frame of another thread of Lua between a native frame and one above it.
    fn other_below(
        &mut self,
        reader: &mut Reader<'_, impl WordReader>,
        left: Entry,
        above: u64,
    ) -> Result<Option<Entry>, SectionEnd> {
        let places = left.places_below(above);
        self.places_left = self.places_left.checked_sub(places).ok_or(SectionEnd::Depth)?;
        Ok(left.other_below(reader, above))
    }

    /// Returns the frame of the thread of Lua above the outermost native frame of another one.
    fn next(
        &mut self,
        reader: &mut Reader<'_, impl WordReader>,
        left: Entry,
    ) -> Result<Option<Entry>, SectionEnd> {
        let next = left.next(reader, self.thread.lua.outermost, self.places_left)?;
        let places = next.map_or(0, |next| left.places_below(next.stack()));
        self.places_left = self.places_left.saturating_sub(places);
        Ok(next)
    }

    /// Lets a thread of Lua wait until the others below its native frame have ended.
    fn wait(&mut self, step: Step) -> Result<(), SectionEnd> {
        let Step { entry, place: Place { link, position, .. }, is_same_call, .. } = step;
        let free = self.waiting.iter_mut().find(|it| it.is_none());
        *free.ok_or(SectionEnd::Depth)? = Some(Waiting { entry, link, position, is_same_call });
        Ok(())
    }

    /// Returns the stack pointer in the native frame of the next thread of Lua that waits.
    fn waiting_stack(&self) -> Option<u64> {
        self.waiting.iter().rev().find_map(Option::as_ref).map(|it| it.entry.stack())
    }

    /// Ends the list where the innermost frame of a thread of Lua is not known.
    fn unknown(&mut self) -> SectionEnd {
        let frame = ManagedFrame { flags: FOREIGN | ENTRY, ..ManagedFrame::NONE };
        self.frames.push(frame).err().unwrap_or(SectionEnd::Unlinked)
    }

    /// Stores the frames of a native frame, from one on, and moves to the native frame before of
    /// the same thread of Lua. Returns whether there is none.
    fn of_native(
        &mut self,
        reader: &mut Reader<'_, impl WordReader>,
        step: &mut Step,
    ) -> Result<bool, SectionEnd> {
        let left = step.entry.stack();
        while let Some(steps_left) = self.steps_left.checked_sub(1) {
            self.steps_left = steps_left;
            let Step { entry, bases, place, .. } = *step;
            let has_ended = if entry.is_without_frame(reader, place.link, bases)? {
                self.leave_native(reader, step)?
            } else if place.link == bases.first_link() {
                true
            } else if place.link < bases.first_link() {
                return Err(Lost.into());
            } else {
                self.leave(reader, step)?
            };
            if has_ended || step.entry.stack() != left {
                return Ok(has_ended);
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
