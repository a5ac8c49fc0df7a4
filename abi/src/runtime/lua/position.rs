//! The innermost frame: its base, and the position in it.
//!
//! The interpreter has both in registers. They hold something else for a few instructions, so the
//! base counts only if it is that of a frame whose function or return has the position.
//!
//! Before a call of native code, the interpreter saves both in the thread of Lua and in its frame.
//! Some calls need no base: then it is in a register that the called function keeps.

use super::entry::{Bases, Entry};
use super::prototype::CODE;
use super::slot::{LuaCode, code_at, distance_of_call, instruction_before};
use super::{NOWHERE, Reader};
use crate::runtime::reader::Lost;
use crate::runtime::{CapturedThread, WordReader};

/// The beginning of the instructions that end each instruction of Lua: they load the next one, and
/// then the position advances. These are the distances to its start at which it has not.
const NEXT: u64 = u64::from_le_bytes([0x8b, 0x03, 0x0f, 0xb6, 0xcc, 0x0f, 0xb6, 0xe8]);
const NOT_ADVANCED: [u64; 4] = [0, 2, 5, 8];
/// The instruction that takes the base back from where a call has kept it, without its last byte.
const TAKES_BACK: u64 = 0x48 | 0x89 << 8 | 0xea << 16;
const TAKES_BACK_MASK: u64 = 0x00ff_ffff;
/// `mov %rbx,-8(%rdx)`, which stores the link of the frame of a function that is called.
const STORES_LINK: u32 = u32::from_le_bytes([0x48, 0x89, 0x5a, 0xf8]);
/// Maximum number of words of the stack that are searched.
const WORDS_MAX: u64 = 1024;

/// A frame of Lua.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// The slot of its link.
    pub(super) link: u64,
    /// The number of the instruction, or [`NOWHERE`].
    pub(super) position: u32,
    /// What the link is, if the function does not run: it has not begun, or it has ended. What it
    /// returns may already be where it was, and may be a function as well.
    pub(super) left: Option<u64>,
}

impl Place {
    /// Makes a place in a function that runs.
    pub(super) fn at(link: u64, position: u32) -> Self {
        Self { link, position, left: None }
    }

    /// Makes that of a function that does not.
    fn left(link: u64, returns_to: u64) -> Self {
        Self { link, position: NOWHERE, left: Some(returns_to) }
    }
}

/// Returns the innermost frame of a thread. `None` if it is not known.
pub(super) fn innermost(
    reader: &mut Reader<'_, impl WordReader>,
    entry: Entry,
    thread: CapturedThread,
) -> Result<Option<Place>, Lost> {
    let bases = entry.bases(reader)?;
    let compiled = entry.compiled_base(reader)?;
    if compiled != 0 {
        return Ok(bases.link(compiled).map(|link| Place::at(link, NOWHERE)));
    }
    // Subroutines of the interpreter have a return address on the stack.
    let used = entry.stack().wrapping_sub(thread.stack);
    if reader.layout.has_code(thread.pc) && used <= 8 {
        return in_interpreter(reader, (entry, bases), thread);
    }
    in_native(reader, (entry, bases), thread)
}

/// Returns the frame of the thread of Lua that has resumed another one.
pub(super) fn outer(
    reader: &mut Reader<'_, impl WordReader>,
    entry: Entry,
) -> Result<Option<Place>, Lost> {
    let bases = entry.bases(reader)?;
    let base = entry.base(reader)?;
    let Some(link) = bases.link(base) else { return Ok(None) };
    let saved = entry.saved(reader)?;
    Ok(Some(Place::at(link, saved_in(reader, link, saved)?)))
}

/// Returns the number of the instruction before a saved address in a frame, or [`NOWHERE`].
pub(super) fn saved_in(
    reader: &mut Reader<'_, impl WordReader>,
    link: u64,
    saved: u64,
) -> Result<u32, Lost> {
    let LuaCode::Lua(prototype) = code_at(reader, link)? else { return Ok(NOWHERE) };
    Ok(instruction_before(reader, prototype, saved)?.unwrap_or(NOWHERE))
}

fn in_interpreter(
    reader: &mut Reader<'_, impl WordReader>,
    (entry, bases): (Entry, Bases),
    thread: CapturedThread,
) -> Result<Option<Place>, Lost> {
    let [.., base, position, _] = thread.registers;
    let Some(link) = bases.link(base) else { return Ok(None) };
    let returns_to = reader.word(link)?;
    if returns_to == position || is_storing_link(reader, thread.pc) {
        return Ok(Some(Place::left(link, position)));
    }
    let code = code_at(reader, link).ok();
    let is_advanced = !is_before_advance(reader, thread.pc);
    let position_after = if is_advanced { position } else { position.wrapping_add(4) };
    if let Some(code) = code
        && let Some(number) = number_at(reader, code, position_after)?
    {
        // On the way back from compiled code, the position is that of the next instruction.
        let is_sure = entry.is_interpreting(reader)?;
        return Ok(Some(Place::at(link, if is_sure { number } else { NOWHERE })));
    }
    // What the function returns is where its link was, or the register of the position has
    // something else for a few instructions.
    if is_called_at(reader, link, position) {
        return Ok(Some(Place::left(link, position)));
    }
    let place =
        if code.is_some() { Place::at(link, NOWHERE) } else { Place::left(link, returns_to) };
    Ok(is_called_at(reader, link, returns_to).then_some(place))
}

/// Whether the interpreter is about to store the link of the frame of a function that it calls.
fn is_storing_link(reader: &mut Reader<'_, impl WordReader>, pc: u64) -> bool {
    bytes_at(reader, pc).is_ok_and(|bytes| bytes as u32 == STORES_LINK)
}

/// Whether an instruction before a position calls what has a frame with this link: the frame below
/// is that of a function with the instruction.
fn is_called_at(reader: &mut Reader<'_, impl WordReader>, link: u64, position: u64) -> bool {
    is_called(reader, link, position).unwrap_or(false)
}

fn is_called(
    reader: &mut Reader<'_, impl WordReader>,
    link: u64,
    position: u64,
) -> Result<bool, Lost> {
    if position & 3 != 0 {
        return Ok(false);
    }
    let below = link.wrapping_sub(distance_of_call(reader, position)?);
    let LuaCode::Lua(prototype) = code_at(reader, below)? else { return Ok(false) };
    Ok(instruction_before(reader, prototype, position)?.is_some())
}

/// Returns the number of the instruction before an address in the code of a frame, which is
/// [`NOWHERE`] in code that is not written in Lua. `None` if the address is not in it.
fn number_at(
    reader: &mut Reader<'_, impl WordReader>,
    code: LuaCode,
    avma: u64,
) -> Result<Option<u32>, Lost> {
    match code {
        // A function begins at its first instruction.
        LuaCode::Lua(prototype) if avma == prototype.wrapping_add(CODE) => Ok(Some(0)),
        LuaCode::Lua(prototype) => instruction_before(reader, prototype, avma),
        // Such functions have one instruction or two, in the variables of the program.
        LuaCode::Other(start) => Ok((avma.wrapping_sub(start) <= 8).then_some(NOWHERE)),
        LuaCode::None => Ok(None),
    }
}

/// Whether the interpreter is about to advance the position at an address of its code.
fn is_before_advance(reader: &mut Reader<'_, impl WordReader>, pc: u64) -> bool {
    NOT_ADVANCED.into_iter().any(|distance| {
        bytes_at(reader, pc.wrapping_sub(distance)).is_ok_and(|bytes| bytes == NEXT)
    })
}

/// Returns eight bytes of code.
fn bytes_at(reader: &mut Reader<'_, impl WordReader>, avma: u64) -> Result<u64, Lost> {
    let (aligned, shift) = (avma & !7, (avma as u32 & 7).wrapping_mul(8));
    let low = reader.word(aligned)?.wrapping_shr(shift);
    if shift == 0 {
        return Ok(low);
    }
    let high = reader.word(aligned.wrapping_add(8))?;
    Ok(low | high.wrapping_shl(64u32.wrapping_sub(shift)))
}

fn in_native(
    reader: &mut Reader<'_, impl WordReader>,
    (entry, bases): (Entry, Bases),
    thread: CapturedThread,
) -> Result<Option<Place>, Lost> {
    let returns_to = entry.called_from(reader)?;
    let is_called = reader.layout.has_code(returns_to);
    let is_in_register = is_called && takes_back_base(reader, returns_to)?;
    let [.., position, kept] = thread.registers;
    let base = if is_in_register { kept } else { entry.base(reader)? };
    let Some(link) = bases.link(base) else { return Ok(None) };
    let Ok(code) = code_at(reader, link) else { return Ok(None) };
    if is_in_register {
        // The register may have anything else in code that is left out of the native stack.
        let number = number_at(reader, code, position)?;
        return Ok(number.map(|position| Place::at(link, position)));
    }
    let LuaCode::Lua(prototype) = code else { return Ok(Some(Place::at(link, NOWHERE))) };
    let saved = entry.saved(reader)?;
    let is_sure = position == saved || is_only_on_stack(reader, (entry, prototype), thread, saved)?;
    let number = instruction_before(reader, prototype, saved)?.filter(|_| is_sure);
    Ok(Some(Place::at(link, number.unwrap_or(NOWHERE))))
}

/// Whether code takes the base back from a register that functions keep, where a call returns to.
fn takes_back_base(
    reader: &mut Reader<'_, impl WordReader>,
    returns_to: u64,
) -> Result<bool, Lost> {
    let bytes = bytes_at(reader, returns_to)?;
    Ok((0..6).any(|at| bytes.wrapping_shr(at * 8) & TAKES_BACK_MASK == TAKES_BACK))
}

/// Whether a position is on the stack of what the interpreter has called, and no other one in the
/// same code is. Functions keep the register of the position, or save it.
fn is_only_on_stack(
    reader: &mut Reader<'_, impl WordReader>,
    (entry, prototype): (Entry, u64),
    thread: CapturedThread,
    saved: u64,
) -> Result<bool, Lost> {
    let len = entry.stack().wrapping_sub(thread.stack);
    if len > WORDS_MAX.wrapping_mul(8) {
        return Ok(false);
    }
    let mut at = thread.stack.wrapping_add(7) & !7;
    let mut is_there = false;
    while at < entry.stack() {
        let word = reader.word(at)?;
        if word == saved {
            is_there = true;
        } else if instruction_before(reader, prototype, word)?.is_some() {
            return Ok(false);
        }
        at = at.wrapping_add(8);
    }
    let [.., register, _] = thread.registers;
    Ok(is_there && instruction_before(reader, prototype, register)?.is_none())
}
