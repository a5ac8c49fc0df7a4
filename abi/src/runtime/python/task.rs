//! The name of the asyncio task that a thread runs, from 3.14 on.
//!
//! The thread's state has the task. Its name is a string, or a number until the program asks for
//! the name: the default name is `Task-` and that number.
//!
//! # Invariants
//! - An object is taken for a task only if its type has objects as large as a task, and if it has
//!   the mark that tasks have. So a task that is not made by the interpreter's own module has no
//!   name here.

use super::{ABSENT, Lost, OBJECT_TYPE, PythonLayout, Reader};
use crate::runtime::WordReader;
use crate::runtime::task::{NamelessTask, TASK_CUT, TASK_NAME_MAX, TASK_NUMBER, write};
use crate::sync::AtomicU64;

/// Offset of the size of a type's objects.
const TYPE_SIZE: u64 = 32;
/// Offsets in a number: of its shape, and of its lowest digit, which has 30 bits.
const NUMBER_SHAPE: u64 = 16;
const NUMBER_DIGITS: u64 = 24;
const DIGIT_BITS: u32 = 30;
/// Offsets in a string: of the number of characters, and of its state.
const TEXT_LENGTH: u64 = 16;
const TEXT_STATE: u64 = 32;
/// Offsets of the characters, in a string of ASCII characters and in another one.
const TEXT_ASCII: u64 = 40;
const TEXT_OTHER: u64 = 56;

/// Where tasks are in an interpreter's structures, in bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskLayout {
    /// Address of the type of numbers (AVMA).
    pub number_type: u64,
    /// Address of the type of strings (AVMA).
    pub text_type: u64,
    /// From a thread's state to the task that it runs, or [`ABSENT`].
    pub state_task: u16,
    /// Size of a task.
    pub size: u16,
    /// From a task to its name.
    pub name: u16,
    /// From a task to the byte that is 1 in tasks.
    pub mark: u16,
}

impl TaskLayout {
    /// The layout of an interpreter whose tasks are unknown.
    pub const NONE: Self =
        Self { number_type: 0, text_type: 0, state_task: ABSENT, size: 0, name: 0, mark: 0 };
}

/// Writes the name of the task that a thread runs, and returns the number of words: 0 if it runs
/// none.
pub fn task_name(
    layout: &PythonLayout,
    pointer: u64,
    memory: &mut impl WordReader,
    words: &[AtomicU64],
) -> Result<usize, NamelessTask> {
    if layout.task.state_task == ABSENT {
        return Ok(0);
    }
    let mut reader = Reader { layout, memory };
    match running_task(&mut reader, pointer) {
        Ok(0) => Ok(0),
        Ok(task) => write_name(&mut reader, task, words).ok().flatten().ok_or(NamelessTask),
        // Nobody knows whether it runs one.
        Err(Lost) => Ok(0),
    }
}

/// Returns the address of the task that the thread runs, or 0.
fn running_task(reader: &mut Reader<'_, impl WordReader>, pointer: u64) -> Result<u64, Lost> {
    match reader.thread_state(pointer)? {
        0 => Ok(0),
        state => reader.field(state, reader.layout.task.state_task),
    }
}

fn write_name(
    reader: &mut Reader<'_, impl WordReader>,
    task: u64,
    words: &[AtomicU64],
) -> Result<Option<usize>, Lost> {
    let layout = reader.layout.task;
    let kind = reader.word(task.wrapping_add(OBJECT_TYPE))?;
    let is_task = reader.word(kind.wrapping_add(TYPE_SIZE))? >= u64::from(layout.size)
        && reader.byte(task, layout.mark)? == 1;
    let name = if is_task { reader.field(task, layout.name)? } else { 0 };
    if name == 0 {
        return Ok(None);
    }
    let name_type = reader.word(name.wrapping_add(OBJECT_TYPE))?;
    if name_type == layout.number_type {
        return number(reader, name, words);
    }
    if name_type == layout.text_type { text(reader, name, words) } else { Ok(None) }
}

/// Writes a number of at most two digits.
fn number(
    reader: &mut Reader<'_, impl WordReader>,
    avma: u64,
    words: &[AtomicU64],
) -> Result<Option<usize>, Lost> {
    // The number of digits, and three bits of which the lowest two are the sign, 0 for positive.
    let shape = reader.word(avma.wrapping_add(NUMBER_SHAPE))?;
    let digits = reader.word(avma.wrapping_add(NUMBER_DIGITS))?;
    let (low, high) = (digits as u32, (digits >> 32) as u32);
    let value = match (shape >> 3, shape & 3) {
        (1, 0) => u64::from(low),
        (2, 0) => u64::from(high) << DIGIT_BITS | u64::from(low),
        _ => return Ok(None),
    };
    Ok(write(words, TASK_NUMBER, 8, |_| Some(value)))
}

/// Writes the characters of a string.
fn text(
    reader: &mut Reader<'_, impl WordReader>,
    avma: u64,
    words: &[AtomicU64],
) -> Result<Option<usize>, Lost> {
    let count = reader.word(avma.wrapping_add(TEXT_LENGTH))?;
    let state = reader.word(avma.wrapping_add(TEXT_STATE))? as u32;
    // Some builds have a half of the word for the bits before these.
    let state = if state as u16 >> 2 == 0 { state >> 16 } else { state >> 2 };
    let (width, is_compact, is_ascii) = (u64::from(state & 7), state & 8 != 0, state & 16 != 0);
    if !is_compact || !matches!(width, 1 | 2 | 4) || is_ascii && width != 1 || count == 0 {
        return Ok(None);
    }
    let start = avma.wrapping_add(if is_ascii { TEXT_ASCII } else { TEXT_OTHER });
    let most = (TASK_NAME_MAX as u64).checked_div(width).unwrap_or(0);
    let kind = width | if count > most { TASK_CUT } else { 0 };
    let len = count.min(most).wrapping_mul(width);
    Ok(write(words, kind, len as usize, |at| reader.word(start.wrapping_add(at as u64)).ok()))
}
