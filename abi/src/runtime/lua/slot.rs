//! Slots of a thread of Lua.
//!
//! A frame has two slots before its base: the function, and a link. The link is the position to
//! which the function returns, or the distance to the frame below with a type.

use super::Reader;
use super::prototype::{CODE, INSTRUCTIONS, KIND, KIND_PROTOTYPE};
use crate::runtime::WordReader;
use crate::runtime::reader::Lost;

/// The kinds of threads of Lua and of functions.
pub(super) const KIND_THREAD: u8 = 6;
const KIND_FUNCTION: u8 = 8;
/// The upper bits of values that are threads of Lua and functions.
const TAG_SHIFT: u32 = 47;
const TAG_THREAD: u64 = 0x1fff9;
const TAG_FUNCTION: u64 = 0x1fff7;
const OBJECT_MASK: u64 = (1 << TAG_SHIFT) - 1;
/// Offset in a function of what it is: 0 if it is written in Lua. It has 8 bits.
const FUNCTION_LIBRARY: u16 = 10;
/// Offset in a function of the address of its first instruction.
const FUNCTION_CODE: u16 = 32;
/// Size of a slot.
pub(super) const SLOT: u64 = 8;
/// Size of an instruction.
const INSTRUCTION: u64 = 4;

/// The code of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LuaCode {
    /// A function that is written in Lua, with the address of its prototype.
    Lua(u64),
    /// Another function, with the address of its first instruction.
    Other(u64),
    /// None: the frame stands for the caller of what is no function.
    None,
}

/// The link of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Link {
    /// A function that is written in Lua has called; it goes on at this address.
    Lua(u64),
    /// Native code has called; the frame below is at this distance. Errors may end there.
    Native(u64),
    /// As [`Self::Native`], if the thread of Lua has begun there.
    Protected(u64),
    /// The interpreter has called, for an instruction of the frame at this distance.
    Continued(u64),
    /// The frame at this distance is that of the same call: it has the arguments.
    Arguments(u64),
    /// A function of the interpreter that catches errors has called.
    Catching(u64),
}

impl Link {
    /// Returns the link that is a word.
    pub(super) fn of(word: u64) -> Self {
        let distance = word & !7;
        match word & 7 {
            1 => Self::Native(distance),
            5 => Self::Protected(distance),
            2 => Self::Continued(distance),
            3 => Self::Arguments(distance),
            6 | 7 => Self::Catching(distance),
            _ => Self::Lua(word),
        }
    }
}

/// Returns the code of the frame whose link is in this slot.
pub(super) fn code_at(
    reader: &mut Reader<'_, impl WordReader>,
    link: u64,
) -> Result<LuaCode, Lost> {
    let value = reader.word(link.wrapping_sub(SLOT))?;
    let object = value & OBJECT_MASK;
    match value >> TAG_SHIFT {
        TAG_THREAD => return Ok(LuaCode::None),
        TAG_FUNCTION if reader.byte(object, KIND)? == KIND_FUNCTION => {}
        _ => return Err(Lost),
    }
    let code = reader.field(object, FUNCTION_CODE)?;
    if reader.byte(object, FUNCTION_LIBRARY)? != 0 {
        return Ok(LuaCode::Other(code));
    }
    let prototype = code.wrapping_sub(CODE);
    let is_prototype = reader.byte(prototype, KIND)? == KIND_PROTOTYPE;
    if is_prototype { Ok(LuaCode::Lua(prototype)) } else { Err(Lost) }
}

/// Returns the number of the instruction before an address. `None` if that is not in the code of a
/// prototype.
pub(super) fn instruction_before(
    reader: &mut Reader<'_, impl WordReader>,
    prototype: u64,
    avma: u64,
) -> Result<Option<u32>, Lost> {
    let count = reader.half(prototype, INSTRUCTIONS)?;
    let at = avma.wrapping_sub(prototype.wrapping_add(CODE));
    let number = (at / INSTRUCTION).wrapping_sub(1);
    let is_there = at.is_multiple_of(INSTRUCTION) && number < u64::from(count);
    Ok(is_there.then_some(number as u32))
}

/// Returns the distance to the link of the caller whose call goes on at this address.
pub(super) fn distance_of_call(
    reader: &mut Reader<'_, impl WordReader>,
    goes_on: u64,
) -> Result<u64, Lost> {
    let call = goes_on.wrapping_sub(INSTRUCTION);
    let word = reader.word(call & !7)?;
    // Its second byte is the number of the slot of what is called, counted from the base.
    let slot = word.wrapping_shr((call as u32 & 4) * 8 + 8) & 0xff;
    Ok(slot.wrapping_add(2).wrapping_mul(SLOT))
}
