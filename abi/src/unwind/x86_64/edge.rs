//! The edges of functions that V8 has compiled: before such a function has a frame, and after it.
//!
//! A function checks first whether it is still valid. At its end it drops its arguments: a number
//! that it knows, or the number with which it was called, where the return address is in a register
//! for a moment.
//!
//! # Invariants
//! - A return address counts only if a call is before it.

use super::super::walk::{Lookup, Memory, word};
use super::call::is_behind_call;
use super::{Frame, Registers};

/// `push %rbp; mov %rsp,%rbp`
const PROLOGUE: [u8; 4] = [0x55, 0x48, 0x89, 0xE5];
/// Number of words in which the prologue is searched: the check before it has at most 22 bytes.
const AHEAD: usize = 3;

/// Returns the caller's (sp, pc) where an exact frame is at the edge of its function.
pub(super) fn caller(
    frame: &Frame,
    lookup: &Lookup,
    memory: &mut impl Memory,
) -> Option<(u64, u64)> {
    let Registers { pc, sp, .. } = frame.registers;
    let code = memory.load_code(pc)?.to_le_bytes();
    let (sp, ret) = match register_of_return(&code) {
        Some(number) => (sp, frame.register(number).ok()?),
        None if is_behind_frame(&code) || is_before_frame(pc, code, memory) => {
            (sp.wrapping_add(8), word(memory, sp, sp).ok()?)
        }
        None => return None,
    };
    let is_return = lookup.is_code(ret.wrapping_sub(1)) && is_behind_call(ret, memory);
    is_return.then_some((sp, ret))
}

/// Whether the frame is gone, and the return address is at sp.
fn is_behind_frame(code: &[u8; 8]) -> bool {
    match *code {
        // ret $n; jge or jg over it; cmp of the number of arguments before that
        [0xC2, ..] | [0x7D | 0x7F, 3, 0xC2, ..] => true,
        [0x48 | 0x49, 0x83, 0xF8..=0xFF, _, 0x7D | 0x7F, 3, 0xC2, _] => true,
        // pop of any register; lea (%rsp,%register,8),%rsp
        [0x58..=0x5F, 0x48 | 0x4A, 0x8D, 0x24, ..] => true,
        [0x41, 0x58..=0x5F, 0x48 | 0x4A, 0x8D, 0x24, ..] => true,
        _ => false,
    }
}

/// Returns the DWARF number of the register that has the return address, while the arguments are
/// dropped.
fn register_of_return(code: &[u8; 8]) -> Option<u8> {
    /// The order of the instruction set: rax rcx rdx rbx rsp rbp rsi rdi.
    const ORDER: [u8; 8] = [0, 2, 1, 3, 7, 6, 4, 5];
    match *code {
        // lea (%rsp,%register,8),%rsp; push; ret
        [0x48 | 0x4A, 0x8D, 0x24, _, 0x41, push @ 0x50..=0x57, 0xC3, _] => Some(push & 7 | 8),
        [0x48 | 0x4A, 0x8D, 0x24, _, push @ 0x50..=0x57, 0xC3, ..] => {
            ORDER.get((push & 7) as usize).copied()
        }
        [0x41, push @ 0x50..=0x57, 0xC3, ..] => Some(push & 7 | 8),
        [push @ 0x50..=0x57, 0xC3, ..] => ORDER.get((push & 7) as usize).copied(),
        _ => None,
    }
}

/// Whether the prologue follows soon.
fn is_before_frame(pc: u64, first: [u8; 8], memory: &mut impl Memory) -> bool {
    let mut code = [0; AHEAD * 8];
    let mut next = pc;
    for (number, place) in code.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let word = if number == 0 { Some(first) } else { None };
        let word = word.or_else(|| memory.load_code(next).map(u64::to_le_bytes));
        *place = match word {
            Some(word) => word,
            None => break,
        };
        next = next.wrapping_add(8);
    }
    code.windows(PROLOGUE.len()).any(|part| part == PROLOGUE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn eight(code: &[u8]) -> [u8; 8] {
        core::array::from_fn(|at| code.get(at).copied().unwrap_or(0x90))
    }

    #[test]
    fn ends_of_functions_are_known_by_their_instructions() {
        let ends: [&[u8]; 6] = [
            // ret $24; jg +3; ret; cmp $2,%rcx; jge +3; ret
            &[0xC2, 0x18, 0],
            &[0x7F, 3, 0xC2, 0x18, 0],
            &[0x48, 0x83, 0xF9, 2, 0x7D, 3, 0xC2, 0x18],
            // pop %rcx; lea (%rsp,%rbx,8),%rsp; with %r10
            &[0x59, 0x48, 0x8D, 0x24, 0xDC],
            &[0x41, 0x5A, 0x48, 0x8D, 0x24, 0xCC],
            &[0x41, 0x5A, 0x4A, 0x8D, 0x24, 0xC4],
        ];
        for end in ends {
            assert!(is_behind_frame(&eight(end)), "{end:x?}");
            assert_eq!(register_of_return(&eight(end)), None, "{end:x?}");
        }
        let in_register: [(&[u8], u8); 4] = [
            (&[0x48, 0x8D, 0x24, 0xCC, 0x41, 0x52, 0xC3], 10),
            (&[0x48, 0x8D, 0x24, 0xDC, 0x51, 0xC3], 2),
            (&[0x41, 0x52, 0xC3], 10),
            (&[0x51, 0xC3], 2),
        ];
        for (code, number) in in_register {
            assert_eq!(register_of_return(&eight(code)), Some(number), "{code:x?}");
            assert!(!is_behind_frame(&eight(code)), "{code:x?}");
        }
        // push %rcx; mov %rsp,%rax; pop %rcx
        for other in [&[0x51, 0x48][..], &[0x48, 0x89, 0xE0], &[0x59, 0x90]] {
            assert!(!is_behind_frame(&eight(other)), "{other:x?}");
            assert_eq!(register_of_return(&eight(other)), None, "{other:x?}");
        }
    }
}
