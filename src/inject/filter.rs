//! Seccomp filters: classic BPF programs, asked about a system call whose arguments are known in
//! part.
//!
//! Where a filter looks at what is not known, both ways are followed, so the answer is every value
//! that it can return.
//!
//! # Invariants
//! - Jumps lead forwards only, as the kernel demands: a program ends. What can be seen of the same
//!   state at the same place is looked at once, and no more than so many in all.
//! - A program that the kernel would not have accepted has no answer.

use std::collections::{BTreeSet, HashSet};

use serde::{Deserialize, Serialize};

/// The longest program that the kernel accepts.
pub(super) const LEN_MAX: usize = 4096;
/// States that are looked at before the question is given up.
const STATES_MAX: usize = 100_000;
/// Bytes of `struct seccomp_data`: number, architecture, instruction pointer, six arguments.
const INPUT_LEN: u32 = 64;
const MEMORY_WORDS: usize = 16;

/// One instruction: `struct sock_filter`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Instruction {
    pub(super) code: u16,
    pub(super) jump_true: u8,
    pub(super) jump_false: u8,
    pub(super) operand: u32,
}

/// A word of which something is known, or nothing.
type Word = Option<u32>;

/// What a filter is shown.
#[derive(Debug, Clone, Copy)]
pub(super) struct Question {
    /// The call's number.
    pub(super) number: u32,
    /// `AUDIT_ARCH_*` of the call.
    pub(super) arch: u32,
    /// The call's arguments; `None` for one that may have any value.
    pub(super) args: [Option<u64>; 6],
}

impl Question {
    /// The word at an offset of `struct seccomp_data`.
    fn word(&self, offset: u32) -> Option<Word> {
        if !offset.is_multiple_of(4) || offset >= INPUT_LEN {
            return None;
        }
        Some(match offset / 4 {
            0 => Some(self.number),
            1 => Some(self.arch),
            // Where the instruction will be.
            2 | 3 => None,
            half => {
                let arg = self.args[(half as usize - 4) / 2];
                // The lower half comes first.
                arg.map(|value| if half % 2 == 0 { value as u32 } else { (value >> 32) as u32 })
            }
        })
    }
}

/// A program at some place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct State {
    place: usize,
    accumulator: Word,
    index: Word,
    memory: [Word; MEMORY_WORDS],
}

impl State {
    fn at(mut self, place: usize) -> State {
        self.place = place;
        self
    }
}

/// What an instruction does.
enum Next {
    Return(Word),
    One(State),
    Either(State, State),
}

/// Every value that a filter can return; `None` if that cannot be told.
pub(super) fn answers(program: &[Instruction], question: &Question) -> Option<BTreeSet<u32>> {
    let (zero, memory) = (Some(0), [Some(0); MEMORY_WORDS]);
    let mut open = vec![State { place: 0, accumulator: zero, index: zero, memory }];
    let mut seen = HashSet::new();
    let mut answers = BTreeSet::new();
    while let Some(state) = open.pop() {
        if !seen.insert(state) {
            continue;
        }
        if seen.len() > STATES_MAX {
            return None;
        }
        match step(program.get(state.place)?, state, question)? {
            Next::Return(value) => drop(answers.insert(value?)),
            Next::One(next) => open.push(next),
            Next::Either(one, other) => open.extend([one, other]),
        }
    }
    Some(answers)
}

/// The opcodes are those that seccomp accepts: class in the low three bits, then what the class
/// makes of the rest.
fn step(instruction: &Instruction, state: State, question: &Question) -> Option<Next> {
    let Instruction { code, jump_true, jump_false, operand } = *instruction;
    let next = State { place: state.place + 1, ..state };
    let slot = operand as usize;
    let operand = Some(operand);
    let source = if code & 0x08 == 0 { operand } else { state.index };
    Some(Next::One(match code {
        // Loads and stores.
        0x20 => State { accumulator: question.word(operand?)?, ..next },
        0x80 => State { accumulator: Some(INPUT_LEN), ..next },
        0x81 => State { index: Some(INPUT_LEN), ..next },
        0x00 => State { accumulator: operand, ..next },
        0x01 => State { index: operand, ..next },
        0x60 => State { accumulator: *state.memory.get(slot)?, ..next },
        0x61 => State { index: *state.memory.get(slot)?, ..next },
        0x02 => stored(next, slot, state.accumulator)?,
        0x03 => stored(next, slot, state.index)?,
        0x07 => State { index: state.accumulator, ..next },
        0x87 => State { accumulator: state.index, ..next },
        // Returns.
        0x06 => return Some(Next::Return(operand)),
        0x16 => return Some(Next::Return(state.accumulator)),
        // Jumps.
        0x05 => State { place: next.place + slot, ..next },
        0x15 | 0x1d | 0x25 | 0x2d | 0x35 | 0x3d | 0x45 | 0x4d => {
            let to = |distance: u8| next.at(next.place + usize::from(distance));
            let holds = state.accumulator.zip(source).map(|(a, b)| compare(code, a, b));
            return Some(match holds {
                Some(true) => Next::One(to(jump_true)),
                Some(false) => Next::One(to(jump_false)),
                None => Next::Either(to(jump_true), to(jump_false)),
            });
        }
        // Division by zero returns 0 from the program.
        0x3c if source == Some(0) => return Some(Next::Return(Some(0))),
        0x3c if source.is_none() => return None,
        0x84 => State { accumulator: state.accumulator.map(u32::wrapping_neg), ..next },
        _ => {
            // Whether there is such an instruction.
            calculate(code, 1, 1)?;
            let is_masked = matches!(code, 0x54 | 0x5c);
            let accumulator = match (state.accumulator, source) {
                (Some(a), Some(b)) => Some(calculate(code, a, b)?),
                // Zero, whatever the other is.
                (Some(0), None) | (None, Some(0)) if is_masked => Some(0),
                _ => None,
            };
            State { accumulator, ..next }
        }
    }))
}

fn stored(state: State, slot: usize, word: Word) -> Option<State> {
    let mut memory = state.memory;
    *memory.get_mut(slot)? = word;
    Some(State { memory, ..state })
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
