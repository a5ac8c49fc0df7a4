//! Frames that compiled code (YJIT of 3.1) is about to make.
//!
//! Such code makes a frame the innermost one before it stores what the frame runs. Until then
//! the frame has what an earlier call has left there. The instructions are always the same.
//! Compiled code of 3.3 completes a frame first.

use crate::runtime::WordReader;

/// The instructions that make a frame the innermost one, and the one that stores what it runs
/// last: its code, or the environment of a method in C.
const CALLS: [(&[u8], &[u8]); 2] = [
    // sub r13, 0x40; mov [r12 + 0x10], r13 ... mov [r13 + 0x10], rax
    (&[0x49, 0x83, 0xed, 0x40, 0x4d, 0x89, 0x6c, 0x24, 0x10], &[0x49, 0x89, 0x45, 0x10]),
    // sub qword [r12 + 0x10], 0x40 ... mov [rcx + 0x20], rax
    (&[0x49, 0x83, 0x6c, 0x24, 0x10, 0x40], &[0x48, 0x89, 0x41, 0x20]),
];
/// Maximum number of bytes between the two.
const BETWEEN_MAX: usize = 40;
/// Number of bytes of code that are read before the program counter, and number of words in all.
const BEFORE: u64 = 56;
const WORDS: usize = 14;

/// Whether compiled code has made a frame the innermost one, and has not stored what it runs.
pub(super) fn makes_frame(memory: &mut impl WordReader, pc: u64) -> bool {
    let Some(start) = pc.checked_sub(BEFORE).map(|start| start & !7) else { return false };
    let mut code = [[0; 8]; WORDS];
    for (word, avma) in code.iter_mut().zip((start..=u64::MAX).step_by(8)) {
        *word = memory.load(avma).unwrap_or(0).to_le_bytes();
    }
    let Some((before, rest)) =
        code.as_flattened().split_at_checked(pc.wrapping_sub(start) as usize)
    else {
        return false;
    };
    CALLS.iter().any(|(made, stored)| {
        let done = before.windows(made.len()).rev().position(|it| it == *made);
        let left = rest.windows(stored.len()).position(|it| it == *stored);
        done.zip(left).is_some_and(|(done, left)| done.wrapping_add(left) <= BETWEEN_MAX)
    })
}
