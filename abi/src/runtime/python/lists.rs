//! The lists of a thread's frames: one for each interpreter of the process whose code it runs.
//!
//! Code of one interpreter may run code of another one on the same thread, and has no frames in the
//! latter's list. The thread has a state in each interpreter. The one that is known is the current
//! one (from 3.12 on) or the first one (before). The others are found in the interpreters' lists of
//! states, by the thread that they name. Before 3.13, such a state may be in use by another thread:
//! an interpreter lends the state of the thread that created it.
//!
//! The thread's stack tells whose a list is, and which list is the innermost one: each call from
//! native code that runs Python code has a structure there, from 3.10 on. Where the stack is
//! unknown, or the version older, frames that may be another thread's are [`UNPROVEN`].

use super::{ABSENT, CapturedThread, FRAMES_MAX, Lost, Reader};
use crate::runtime::WordReader;
use crate::runtime::word::UNPROVEN;

/// Maximum number of lists with frames. (Interpreters that run each other are rarely nested.)
const LISTS_MAX: usize = 4;
/// Maximum number of interpreters that are searched.
const INTERPRETERS_MAX: usize = 64;
/// Maximum number of states that are looked at.
const STATES_MAX: usize = 256;

/// The frames of a thread in one interpreter.
#[derive(Clone, Copy, Default)]
pub(super) struct FrameList {
    /// The innermost frame that is left, or 0.
    pub(super) frame: u64,
    /// Flags for its frames: 0 or [`UNPROVEN`].
    pub(super) flags: u8,
    /// The address of the structure on the thread's stack with the call from native code that runs
    /// the next frames. 0 if there is none.
    call: u64,
}

/// The lists of a thread.
#[derive(Default)]
pub(super) struct FrameLists {
    lists: [FrameList; LISTS_MAX],
    count: usize,
    /// The list that [`Self::innermost`] has returned last.
    current: usize,
    /// Whether a list is missing.
    pub(super) is_cut: bool,
    /// Whether the known state is the first one of the thread and may not be the current one.
    pub(super) is_outer: bool,
}

impl FrameLists {
    /// Finds the lists of a thread that have frames.
    pub(super) fn of(
        reader: &mut Reader<'_, impl WordReader>,
        thread: CapturedThread,
    ) -> Result<Self, Lost> {
        let mut lists = Self::default();
        let known = reader.thread_state(thread.pointer)?;
        if known == 0 {
            return Ok(lists);
        }
        lists.add(reader, known, 0)?;
        if lists.search(reader, (known, thread)).is_err() {
            lists.is_cut = true;
        }
        let others = lists.of_others().count();
        if others > 0 && lists.order(reader, thread).is_err() {
            lists.keep_known(others)?;
        }
        Ok(lists)
    }

    /// Returns the innermost list, if any has frames left.
    pub(super) fn innermost(&mut self) -> Option<&mut FrameList> {
        // Of lists whose calls are unknown, that of the known state is the outermost one.
        let left = self.lists.iter().enumerate().rev().filter(|(_, list)| list.frame != 0);
        self.current = left.min_by_key(|(_, list)| list.call)?.0;
        self.lists.get_mut(self.current)
    }

    /// Finds the next call from native code of the list that was returned last.
    pub(super) fn advance(&mut self, reader: &mut Reader<'_, impl WordReader>) -> Result<(), Lost> {
        let is_alone = self.count < 2;
        let Some(list) = self.lists.get_mut(self.current).filter(|_| !is_alone) else {
            return Ok(());
        };
        if list.frame == 0 || list.call == 0 {
            return Ok(());
        }
        list.call = if reader.layout.call_previous == ABSENT {
            next_shim(reader, list.frame)?
        } else {
            reader.field(list.call, reader.layout.call_previous)?
        };
        Ok(())
    }

    /// Leaves out the lists of the thread's other states, which are the last ones.
    fn keep_known(&mut self, others: usize) -> Result<(), Lost> {
        self.count = self.count.checked_sub(others).filter(|left| *left > 0).ok_or(Lost)?;
        self.lists.iter_mut().skip(self.count).for_each(|list| list.frame = 0);
        self.is_cut = true;
        Ok(())
    }

    fn of_others(&mut self) -> impl Iterator<Item = &mut FrameList> {
        self.lists.iter_mut().filter(|list| list.flags != 0)
    }

    /// Adds the list of a state, if it has frames. It keeps the state until [`Self::order`].
    fn add(
        &mut self,
        reader: &mut Reader<'_, impl WordReader>,
        state: u64,
        flags: u8,
    ) -> Result<(), Lost> {
        let frame = reader.leaf(state)?;
        if frame == 0 {
            return Ok(());
        }
        match self.lists.get_mut(self.count) {
            Some(list) => {
                *list = FrameList { frame, flags, call: state };
                self.count = self.count.wrapping_add(1);
            }
            None => self.is_cut = true,
        }
        Ok(())
    }

    /// Adds the lists of the thread's other states.
    fn search(
        &mut self,
        reader: &mut Reader<'_, impl WordReader>,
        (known, thread): (u64, CapturedThread),
    ) -> Result<(), Lost> {
        let layout = reader.layout;
        if layout.interpreters == 0 {
            return Ok(());
        }
        let mut interpreter = reader.word(layout.interpreters)?;
        if interpreter == 0 || reader.field(interpreter, layout.interpreter_next)? == 0 {
            return Ok(());
        }
        self.is_outer = layout.state_kind == 0;
        let mut states = 0;
        for _ in 0..INTERPRETERS_MAX {
            let mut state = reader.field(interpreter, layout.interpreter_threads)?;
            while state != 0 {
                if states >= STATES_MAX {
                    return Err(Lost);
                }
                states = states.wrapping_add(1);
                if state != known && is_of(reader, state, thread)? {
                    self.add(reader, state, UNPROVEN)?;
                }
                state = reader.field(state, layout.state_next)?;
            }
            interpreter = reader.field(interpreter, layout.interpreter_next)?;
            if interpreter == 0 {
                return Ok(());
            }
        }
        Err(Lost)
    }

    /// Finds the calls of the lists, and proves which ones are the thread's.
    fn order(
        &mut self,
        reader: &mut Reader<'_, impl WordReader>,
        thread: CapturedThread,
    ) -> Result<(), Lost> {
        let layout = reader.layout;
        let has_calls = layout.frame_owner != ABSENT || layout.state_call != ABSENT;
        for list in self.lists.iter_mut().take(self.count) {
            list.call = match has_calls {
                false => 0,
                true if layout.call_previous == ABSENT => next_shim(reader, list.frame)?,
                true => reader.field(list.call, layout.state_call)?,
            };
            if has_calls && thread.has_on_stack(list.call) {
                list.flags = 0;
            }
        }
        if !has_calls && self.count > 2 {
            // The order of the others is unknown.
            self.is_cut = true;
            self.of_others().for_each(|list| list.frame = 0);
        }
        Ok(())
    }
}

/// Whether a state may be one of a thread: it names the thread, or its innermost call from native
/// code is on the thread's stack.
fn is_of(
    reader: &mut Reader<'_, impl WordReader>,
    state: u64,
    thread: CapturedThread,
) -> Result<bool, Lost> {
    let layout = reader.layout;
    if reader.field(state, layout.state_pointer)? == thread.pointer {
        return Ok(true);
    }
    if layout.state_call == ABSENT {
        return Ok(false);
    }
    Ok(thread.has_on_stack(reader.field(state, layout.state_call)?))
}

/// Returns the next frame that only marks a call from native code, from a frame on.
fn next_shim(reader: &mut Reader<'_, impl WordReader>, mut frame: u64) -> Result<u64, Lost> {
    for _ in 0..=FRAMES_MAX {
        if reader.is_shim(frame)? {
            return Ok(frame);
        }
        frame = reader.field(frame, reader.layout.frame_previous)?;
        if frame == 0 {
            // A frame that is just being linked is the innermost one.
            return Ok(1);
        }
    }
    Err(Lost)
}
