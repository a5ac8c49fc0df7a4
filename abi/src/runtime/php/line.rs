//! The line at which a frame is.
//!
//! A frame stores its position before it calls, so the lines of callers are exact. The innermost
//! frame's position is in a register while the loop runs. It may be newer than the one that the
//! frame has stored, because instructions that cannot fail do not store it. A function in C that
//! the loop has called keeps the register, or saves it on the stack. So the position is one of the
//! addresses of this function's instructions that are in the register, in the frame, and on the
//! stack below the loop's own frame. If they are of several lines, the line is unknown.

use super::{Lost, REGISTERS_IN_LOOP, Reader};
use crate::runtime::{CapturedThread, WordReader};

/// Offset of the position in a frame.
const POSITION: u16 = 0;
/// Size of an instruction.
const INSTRUCTION: u64 = 32;
/// Offset of the line in an instruction, which has 32 bits.
const LINE: u16 = 24;
/// Size of the instructions that stand for the position of an exception.
const HANDLING: u64 = 3 * INSTRUCTION;
/// Maximum number of words of the stack that are searched.
const WORDS_MAX: u64 = 1024;

/// The instructions of a function.
struct Instructions {
    start: u64,
    len: u64,
}

impl Instructions {
    fn has(&self, position: u64) -> bool {
        let at = position.wrapping_sub(self.start);
        at < self.len && at & INSTRUCTION.wrapping_sub(1) == 0
    }
}

fn code_of(reader: &mut Reader<'_, impl WordReader>, function: u64) -> Result<Instructions, Lost> {
    let layout = reader.layout;
    let start = reader.field(function, layout.code)?;
    let count = reader.half(function, layout.code_len)?;
    Ok(Instructions { start, len: u64::from(count).wrapping_mul(INSTRUCTION) })
}

/// Returns the line of a caller, or 0 if it has none.
pub(super) fn of_caller(
    reader: &mut Reader<'_, impl WordReader>,
    frame: u64,
    function: u64,
) -> Result<u32, Lost> {
    let position = reader.field(frame, POSITION)?;
    let code = code_of(reader, function)?;
    if code.has(position) { reader.half(position, LINE) } else { Ok(0) }
}

/// Returns the line of the innermost frame, or 0 if it has none or is unknown.
pub(super) fn of_innermost(
    reader: &mut Reader<'_, impl WordReader>,
    (frame, function): (u64, u64),
    thread: CapturedThread,
) -> Result<u32, Lost> {
    let code = code_of(reader, function)?;
    let mut saved = reader.field(frame, POSITION)?;
    if reader.layout.thrown != 0 && saved.wrapping_sub(reader.layout.handling) < HANDLING {
        saved = reader.word(reader.layout.thrown)?;
    }
    let in_frame = if code.has(saved) { reader.half(saved, LINE)? } else { 0 };
    if reader.layout.has_registers == 0 {
        return Ok(in_frame);
    }
    // Code that the interpreter has compiled has other registers, and so may what it calls.
    let is_in_loop = thread.loop_stack == thread.stack;
    let may_be_compiled = reader.layout.has_registers == REGISTERS_IN_LOOP && !is_in_loop;
    if thread.loop_stack == 0 || may_be_compiled {
        return Ok(0);
    }
    let [current, position, ..] = thread.registers;
    if current == frame && code.has(position) {
        return reader.half(position, LINE);
    }
    if in_frame == 0 {
        return Ok(0);
    }
    let len = thread.loop_stack.wrapping_sub(thread.stack);
    if len > WORDS_MAX.wrapping_mul(8) {
        return Ok(0);
    }
    let mut at = thread.stack & !7;
    while at < thread.loop_stack {
        let word = reader.word(at)?;
        if code.has(word) && reader.half(word, LINE)? != in_frame {
            return Ok(0);
        }
        at = at.wrapping_add(8);
    }
    Ok(in_frame)
}
