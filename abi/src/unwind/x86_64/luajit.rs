//! A step out of code that LuaJIT has compiled, and out of that with which the interpreter takes
//! over from it.
//!
//! Such code runs on top of a frame of the interpreter and uses as many bytes below as it needs.
//! The frame of the interpreter and its thread of Lua refer to each other, so it is found for
//! certain.

use super::super::EndReason;
use super::super::walk::{Climb, Identity, Lookup, Memory, Objects, word};
use super::Frame;
use crate::runtime::lua;

/// Offsets in a frame of the interpreter of what it has saved: rbx, rbp and the return address; and
/// its size.
const RBX: u64 = 56;
const RBP: u64 = 64;
const RETURN: u64 = 72;
const SIZE: u64 = 80;

/// Leaves compiled code and the frame of the interpreter below it. `None` if there is none.
///
/// LuaJIT makes its areas of code writable and executable in turn, and frees and makes them as it
/// likes. So what is known of the process's memory says little about them.
#[cold]
pub(super) fn leave(
    frame: &mut Frame,
    lookup: &mut Lookup,
    memory: &mut impl Memory,
) -> Option<Result<(), EndReason>> {
    let sp = frame.registers.sp;
    let (lo, hi) = memory.bounds();
    if frame.stack_unknown || sp < lo || sp > hi {
        return None;
    }
    let at = (frame.pc().wrapping_sub(u64::from(!frame.exact)), frame.exact);
    if lookup.luas().next().is_none() || !lookup.count_search() {
        return None;
    }
    let (layout, stack) = lookup.luas().find_map(|layout| {
        Some((layout, lua::compiled_frame(layout, at, sp, &mut Objects(memory))?))
    })?;
    let left = leave_frame(frame, stack, memory)?;
    lookup.note_lua_stack(stack);
    // All such code is one place: that of the interpreter. Its own address tells nothing, and other
    // code is there soon.
    lookup.identify(Identity::Original(layout.code_start.wrapping_add(1)));
    Some(left)
}

/// Leaves code of a frame whose size is not known, if it is the interpreter's.
#[cold]
pub(super) fn leave_exit(
    frame: &mut Frame,
    pc: u64,
    lookup: &mut Lookup,
    memory: &mut impl Memory,
) -> Result<(), EndReason> {
    let stack = lookup
        .luas()
        .find(|layout| layout.has_code(pc))
        .and_then(|layout| lua::frame_above(layout, frame.registers.sp, &mut Objects(memory)));
    let Some(stack) = stack else { return Err(EndReason::BadRule) };
    lookup.note_lua_stack(stack);
    leave_frame(frame, stack, memory).unwrap_or(Err(EndReason::BadRule))
}

/// Leaves a frame of the interpreter with this stack pointer.
fn leave_frame(
    frame: &mut Frame,
    stack: u64,
    memory: &mut impl Memory,
) -> Option<Result<(), EndReason>> {
    let sp = frame.registers.sp;
    let mut saved = |at: u64| word(memory, sp, stack.wrapping_add(at)).ok();
    let (rbx, rbp, pc) = (saved(RBX)?, saved(RBP)?, saved(RETURN)?);
    let left = frame.enter_caller(stack.wrapping_add(SIZE), rbp, pc);
    frame.rbx = Some(rbx);
    Some(left)
}
