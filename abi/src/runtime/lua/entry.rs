//! The native frames in which the interpreter runs.
//!
//! The frame of a thread of Lua and the thread refer to each other. What is left over of a frame
//! that has ended has no such thread: it has another frame, or none.

use super::prototype::KIND;
use super::slot::{KIND_THREAD, SLOT};
use super::trace;
use super::{LuaStacks, Reader};
use crate::runtime::reader::Lost;
use crate::runtime::{CapturedThread, WordReader};

/// Offsets in a thread of Lua: of the variables of its program, the base of its innermost frame,
/// the end and the start of its slots, and its innermost native frame.
const VARIABLES: u16 = 16;
const BASE: u16 = 32;
const END: u16 = 48;
const START: u16 = 56;
const NATIVE: u16 = 80;
/// The lengths of a thread of Lua, behind which the first one of a program has its variables: that
/// of LuaJIT, and of its branch for OpenResty.
const THREAD_LENGTHS: [u64; 2] = [96, 112];
/// Slots behind the end that frames may use.
const EXTRA: u64 = 16 * SLOT;
/// Flags in the address of a native frame. The first one says that the thread of Lua has begun in
/// it.
const FLAGS: u64 = 3;
const BEGUN: u64 = 1;

/// Offsets in a native frame: of a number that is negative if there is no frame of Lua, the thread
/// of Lua, the position, the frame before, and the return address.
const RESULTS: u64 = 8;
const THREAD: u64 = 16;
const POSITION: u64 = 24;
const BEFORE: u64 = 32;
const RETURN: u64 = 72;
/// What the variable of what runs has while instructions are interpreted, and while memory is
/// freed. While compiled code runs, it has the number of the trace.
const INTERPRETING: u32 = !0;
const FREEING: u32 = !2;
/// Largest number of a trace.
const TRACE_MAX: u32 = 0xffff;
/// Size of a native frame, and its alignment.
const FRAME: u64 = 80;
const ALIGNMENT: u64 = 16;
/// Maximum number of places where the innermost frame is searched: native code that it has called
/// may have buffers. And that where another one is.
const INNERMOST_MAX: u32 = 1024;
const NEXT_MAX: u32 = 256;
/// As above, where the outermost frame is known.
const PLACES_MAX: u32 = 4096;
/// As above, of the frame on top of which compiled code runs: it has at most 256 places of 4 bytes,
/// and all registers are saved at its end.
const NEAR_MAX: u32 = 128;

/// A frame of the interpreter on the native stack, with its thread of Lua.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    /// The stack pointer in it, and flags.
    tagged: u64,
    /// The thread of Lua.
    pub(super) thread: u64,
    /// The variables of the program.
    pub(super) variables: u64,
}

/// Returns the innermost frame of the interpreter on a thread's stack.
pub(super) fn innermost(
    reader: &mut Reader<'_, impl WordReader>,
    thread: CapturedThread,
) -> Option<Entry> {
    if thread.stack == 0 || thread.lua == LuaStacks::WITHOUT {
        return None;
    }
    let from = thread.stack.max(thread.lua.innermost);
    let most = match thread.lua.outermost {
        0 => INNERMOST_MAX,
        outermost => places(from, outermost),
    };
    search(reader, from, most)
}

/// Returns the frame of the interpreter above an address of the stack, if it is near.
pub(super) fn above(reader: &mut Reader<'_, impl WordReader>, stack: u64) -> Option<Entry> {
    search(reader, stack, NEAR_MAX)
}

/// Returns the number of places from an address of the stack to that of a frame.
fn places(from: u64, frame: u64) -> u32 {
    let between = frame.saturating_sub(from) / ALIGNMENT;
    between.saturating_add(1).min(u64::from(PLACES_MAX)) as u32
}

/// Searches the first frame at or above an address of the stack.
fn search(reader: &mut Reader<'_, impl WordReader>, from: u64, most: u32) -> Option<Entry> {
    let mut at = from.wrapping_add(ALIGNMENT.wrapping_sub(1)) & !ALIGNMENT.wrapping_sub(1);
    for _ in 0..most {
        // The stack ends where nothing is readable.
        let thread = reader.word(at.wrapping_add(THREAD)).ok()?;
        if let Ok(Some(entry)) = Entry::of(reader, at, thread) {
            return Some(entry);
        }
        at = at.wrapping_add(ALIGNMENT);
    }
    None
}

impl Entry {
    /// Returns the frame at this address, if it is that of this thread of Lua.
    fn of(
        reader: &mut Reader<'_, impl WordReader>,
        frame: u64,
        thread: u64,
    ) -> Result<Option<Self>, Lost> {
        const LOWEST: u64 = 4096;
        if thread & 7 != 0 || !(LOWEST..1 << 47).contains(&thread) {
            return Ok(None);
        }
        let tagged = reader.field(thread, NATIVE)?;
        if tagged & !FLAGS != frame || reader.byte(thread, KIND)? != KIND_THREAD {
            return Ok(None);
        }
        let variables = reader.field(thread, VARIABLES)?;
        let is_program = has_program(reader, variables);
        Ok(is_program.then_some(Self { tagged, thread, variables }))
    }

    /// Returns the stack pointer in the frame.
    pub(super) fn stack(&self) -> u64 {
        self.tagged & !FLAGS
    }

    /// Whether the thread of Lua has begun in the frame.
    pub(super) fn is_begin(&self) -> bool {
        self.tagged & BEGUN != 0
    }

    /// Returns the position that the interpreter has saved.
    pub(super) fn saved(&self, reader: &mut Reader<'_, impl WordReader>) -> Result<u64, Lost> {
        reader.word(self.stack().wrapping_add(POSITION))
    }

    /// Returns the address to which what the frame has called returns.
    pub(super) fn called_from(
        &self,
        reader: &mut Reader<'_, impl WordReader>,
    ) -> Result<u64, Lost> {
        reader.word(self.stack().wrapping_sub(8))
    }

    /// Returns the slots that frames of the thread of Lua may have as their base.
    pub(super) fn bases(&self, reader: &mut Reader<'_, impl WordReader>) -> Result<Bases, Lost> {
        let start = reader.field(self.thread, START)?;
        let end = reader.field(self.thread, END)?.wrapping_add(EXTRA);
        Ok(Bases { start, end })
    }

    /// Returns the base that the thread of Lua has.
    pub(super) fn base(&self, reader: &mut Reader<'_, impl WordReader>) -> Result<u64, Lost> {
        reader.field(self.thread, BASE)
    }

    /// Returns the base of the frame in which compiled code began, or 0 if none runs.
    pub(super) fn compiled_base(
        &self,
        reader: &mut Reader<'_, impl WordReader>,
    ) -> Result<u64, Lost> {
        let layout = reader.layout;
        if reader.field(self.variables, layout.current)? != self.thread {
            return Ok(0);
        }
        reader.field(self.variables, layout.compiled_base)
    }

    /// Whether the code at an address is what the thread of Lua has compiled and runs.
    ///
    /// Other code in memory without a file is none: regular expressions, for example, are compiled
    /// as well, and functions in C that compiled code calls may run them.
    pub(super) fn runs_compiled(
        &self,
        reader: &mut Reader<'_, impl WordReader>,
        avma: u64,
        is_exact: bool,
    ) -> Result<bool, Lost> {
        if self.compiled_base(reader)? == 0 {
            return Ok(false);
        }
        let trace = reader.half(self.variables, reader.layout.state)?;
        if trace == FREEING {
            // Compiled code has called it, and it calls no other code of such a kind.
            return Ok(!is_exact);
        }
        if trace > TRACE_MAX {
            return Ok(false);
        }
        let traces = reader.field(self.variables, reader.layout.traces)?;
        trace::has_code(reader, (traces, trace as u16), avma)
    }

    /// Whether the program says that it interprets instructions.
    pub(super) fn is_interpreting(
        &self,
        reader: &mut Reader<'_, impl WordReader>,
    ) -> Result<bool, Lost> {
        Ok(reader.half(self.variables, reader.layout.state)? == INTERPRETING)
    }

    /// Whether the frame has no frame of Lua above this one: it is that of a call of native code
    /// alone.
    pub(super) fn is_without_frame(
        &self,
        reader: &mut Reader<'_, impl WordReader>,
        link: u64,
        bases: Bases,
    ) -> Result<bool, Lost> {
        let results = reader.word(self.stack().wrapping_add(RESULTS))? as u32 as i32;
        let top = bases.start.wrapping_add(u64::from(results.unsigned_abs()));
        Ok(results < 0 && link < top)
    }

    /// Returns the frame before, of the same thread of Lua.
    pub(super) fn before(
        &self,
        reader: &mut Reader<'_, impl WordReader>,
    ) -> Result<Option<Self>, Lost> {
        let tagged = reader.word(self.stack().wrapping_add(BEFORE))?;
        if tagged == 0 {
            return Ok(None);
        }
        let before = Self { tagged, ..*self };
        // The stack grows down, so the frames before are above.
        let is_above = before.stack() >= self.stack().wrapping_add(FRAME);
        let is_same = reader.word(before.stack().wrapping_add(THREAD))? == self.thread;
        if is_above && is_same { Ok(Some(before)) } else { Err(Lost) }
    }

    /// Returns the number of places between this frame and one above it.
    pub(super) fn places_below(&self, above: u64) -> u64 {
        above.saturating_sub(self.stack().wrapping_add(FRAME)) / ALIGNMENT
    }

    /// Returns the frame of another thread of Lua between this one and one above it.
    pub(super) fn other_below(
        &self,
        reader: &mut Reader<'_, impl WordReader>,
        above: u64,
    ) -> Option<Self> {
        search(reader, self.stack().wrapping_add(FRAME), self.places_below(above) as u32)
    }

    /// Returns the frame of the thread of Lua that has resumed this one, or that runs below it.
    /// `outermost` is as [`LuaStacks`] says, and at most so many places are searched.
    pub(super) fn next(
        &self,
        reader: &mut Reader<'_, impl WordReader>,
        outermost: u64,
        places_left: u64,
    ) -> Result<Option<Self>, Lost> {
        let caller = self.stack().wrapping_add(FRAME);
        let returns_to = reader.word(self.stack().wrapping_add(RETURN))?;
        let is_direct = reader.layout.has_code(returns_to);
        let most = match outermost {
            _ if is_direct => 1,
            0 => NEXT_MAX,
            outermost if outermost < caller => return Ok(None),
            outermost => places(caller, outermost),
        };
        let next = search(reader, caller, most.min(places_left as u32));
        let is_expected = is_direct || outermost != 0;
        if is_expected && next.is_none() { Err(Lost) } else { Ok(next) }
    }
}

/// Whether an address is that of a program's variables, which are behind its first thread of Lua,
/// and the program runs in this interpreter.
fn has_program(reader: &mut Reader<'_, impl WordReader>, variables: u64) -> bool {
    let layout = reader.layout;
    let code = reader.field(variables, layout.dispatch);
    if !code.is_ok_and(|code| layout.has_code(code)) {
        return false;
    }
    THREAD_LENGTHS.into_iter().any(|length| {
        let first = variables.wrapping_sub(length);
        let is_thread = reader.byte(first, KIND).is_ok_and(|kind| kind == KIND_THREAD);
        is_thread && reader.field(first, VARIABLES).is_ok_and(|it| it == variables)
    })
}

/// The slots of a thread of Lua.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bases {
    start: u64,
    end: u64,
}

impl Bases {
    /// Returns the slot of the link of the frame with this base, if it can be one.
    pub(super) fn link(self, base: u64) -> Option<u64> {
        let is_there = self.first_link() < base && base <= self.end && base.is_multiple_of(SLOT);
        is_there.then(|| base.wrapping_sub(SLOT))
    }

    /// Returns the slot of the link of what is below all frames.
    pub(super) fn first_link(self) -> u64 {
        self.start.wrapping_add(SLOT)
    }
}
