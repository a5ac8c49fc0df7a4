//! An interpreter of seccomp filters (classic BPF) for system calls with partly unknown arguments.
//!
//! If a filter tests an unknown value, the interpreter follows both branches. So the answer is the
//! set of all values that the filter can return.
//!
//! # Invariants
//! - Jumps only go forwards, as the kernel demands, so every program ends. Each state is visited
//!   once, and the number of visits is limited.
//! - A program that the kernel would not accept has no answer.

use std::collections::{BTreeSet, HashSet};

use crate::inject::ptrace::FilterInstruction;

/// The number of visited states after which the interpreter gives up.
const STATES_MAX: usize = 100_000;
/// The size of `struct seccomp_data` in bytes: number, architecture, instruction pointer, six
/// arguments.
const INPUT_LEN: u32 = 64;
const MEMORY_WORDS: usize = 16;

/// A word, or `None` if it is unknown.
type Word = Option<u32>;

/// The input of a filter.
#[derive(Debug, Clone, Copy)]
pub(in crate::inject::seccomp) struct Question {
    /// The call's number.
    pub(in crate::inject::seccomp) number: u32,
    /// `AUDIT_ARCH_*` of the call.
    pub(in crate::inject::seccomp) arch: u32,
    /// The call's arguments; `None` for any value.
    pub(in crate::inject::seccomp) args: [Option<u64>; 6],
}

impl Question {
    /// Returns the word at an offset of `struct seccomp_data`.
    fn word(&self, offset: u32) -> Option<Word> {
        if !offset.is_multiple_of(4) || offset >= INPUT_LEN {
            return None;
        }
        Some(match offset / 4 {
            0 => Some(self.number),
            1 => Some(self.arch),
            // The instruction pointer is unknown.
            2 | 3 => None,
            half => {
                let arg = self.args[(half as usize - 4) / 2];
                // The lower half comes first.
                arg.map(|value| if half % 2 == 0 { value as u32 } else { (value >> 32) as u32 })
            }
        })
    }
}

/// The state of the machine before an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct MachineState {
    pc: usize,
    accumulator: Word,
    index: Word,
    memory: [Word; MEMORY_WORDS],
}

impl MachineState {
    fn at(mut self, pc: usize) -> MachineState {
        self.pc = pc;
        self
    }
}

/// The effect of an instruction.
enum StepResult {
    Return(Word),
    One(MachineState),
    Either(MachineState, MachineState),
}

/// Returns every value that a filter can return, or `None` if that is unknown.
pub(in crate::inject::seccomp) fn answers(
    program: &[FilterInstruction],
    question: &Question,
) -> Option<BTreeSet<u32>> {
    let (zero, memory) = (Some(0), [Some(0); MEMORY_WORDS]);
    let mut open = vec![MachineState { pc: 0, accumulator: zero, index: zero, memory }];
    let mut seen = HashSet::new();
    let mut answers = BTreeSet::new();
    while let Some(state) = open.pop() {
        if !seen.insert(state) {
            continue;
        }
        if seen.len() > STATES_MAX {
            return None;
        }
        match step(program.get(state.pc)?, state, question)? {
            StepResult::Return(value) => drop(answers.insert(value?)),
            StepResult::One(next) => open.push(next),
            StepResult::Either(one, other) => open.extend([one, other]),
        }
    }
    Some(answers)
}

/// Executes one instruction. The opcodes are those that seccomp accepts: the class is in the low
/// three bits, and the bits above depend on the class.
fn step(
    instruction: &FilterInstruction,
    state: MachineState,
    question: &Question,
) -> Option<StepResult> {
    let FilterInstruction { code, jump_true, jump_false, operand } = *instruction;
    let next = MachineState { pc: state.pc + 1, ..state };
    let slot = operand as usize;
    let operand = Some(operand);
    let source = if code & 0x08 == 0 { operand } else { state.index };
    Some(StepResult::One(match code {
        // Loads and stores.
        0x20 => MachineState { accumulator: question.word(operand?)?, ..next },
        0x80 => MachineState { accumulator: Some(INPUT_LEN), ..next },
        0x81 => MachineState { index: Some(INPUT_LEN), ..next },
        0x00 => MachineState { accumulator: operand, ..next },
        0x01 => MachineState { index: operand, ..next },
        0x60 => MachineState { accumulator: *state.memory.get(slot)?, ..next },
        0x61 => MachineState { index: *state.memory.get(slot)?, ..next },
        0x02 => stored(next, slot, state.accumulator)?,
        0x03 => stored(next, slot, state.index)?,
        0x07 => MachineState { index: state.accumulator, ..next },
        0x87 => MachineState { accumulator: state.index, ..next },
        // Returns.
        0x06 => return Some(StepResult::Return(operand)),
        0x16 => return Some(StepResult::Return(state.accumulator)),
        // Jumps.
        0x05 => MachineState { pc: next.pc + slot, ..next },
        0x15 | 0x1d | 0x25 | 0x2d | 0x35 | 0x3d | 0x45 | 0x4d => {
            let to = |distance: u8| next.at(next.pc + usize::from(distance));
            let holds = state.accumulator.zip(source).map(|(a, b)| compare(code, a, b));
            return Some(match holds {
                Some(true) => StepResult::One(to(jump_true)),
                Some(false) => StepResult::One(to(jump_false)),
                None => StepResult::Either(to(jump_true), to(jump_false)),
            });
        }
        // Division by zero returns 0 from the program.
        0x3c if source == Some(0) => return Some(StepResult::Return(Some(0))),
        0x3c if source.is_none() => return None,
        0x84 => MachineState { accumulator: state.accumulator.map(u32::wrapping_neg), ..next },
        _ => {
            // Only checks whether the instruction exists.
            calculate(code, 1, 1)?;
            let is_masked = matches!(code, 0x54 | 0x5c);
            let accumulator = match (state.accumulator, source) {
                (Some(a), Some(b)) => Some(calculate(code, a, b)?),
                // Zero, whatever the other value is.
                (Some(0), None) | (None, Some(0)) if is_masked => Some(0),
                _ => None,
            };
            MachineState { accumulator, ..next }
        }
    }))
}

fn stored(state: MachineState, slot: usize, word: Word) -> Option<MachineState> {
    let mut memory = state.memory;
    *memory.get_mut(slot)? = word;
    Some(MachineState { memory, ..state })
}

fn compare(code: u16, a: u32, b: u32) -> bool {
    match code & 0xf0 {
        0x10 => a == b,
        0x20 => a > b,
        0x30 => a >= b,
        _ => a & b != 0,
    }
}

fn calculate(code: u16, a: u32, b: u32) -> Option<u32> {
    Some(match code {
        0x04 | 0x0c => a.wrapping_add(b),
        0x14 | 0x1c => a.wrapping_sub(b),
        0x24 | 0x2c => a.wrapping_mul(b),
        0x34 | 0x3c => a.checked_div(b)?,
        0x44 | 0x4c => a | b,
        0x54 | 0x5c => a & b,
        0x64 | 0x6c => a.wrapping_shl(b),
        0x74 | 0x7c => a.wrapping_shr(b),
        0xa4 | 0xac => a ^ b,
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
