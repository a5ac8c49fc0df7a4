//! Frames in a block of hand-written code that call frame information describes as one function
//! with one row.
//!
//! LuaJIT's interpreter is such a block. All of it runs on one frame, except entries that have not
//! set up the frame yet, exits that have removed it, the arithmetic subroutines, and the return
//! point of compiled code. The row is wrong there, and the code shows the right rule. The code is
//! followed only while every instruction is known not to change the stack.

use std::ops::{Range, RangeInclusive};

use traceprof_abi::unwind::Rule;
use traceprof_abi::unwind::rule::{fp_op, op};

use super::rows::RuleRange;

/// Lengths in bytes of functions that can be such a block. LuaJIT's have 16 KiB.
const BLOCK: RangeInclusive<usize> = 4 << 10..=256 << 10;
/// Maximum number of bytes of one subroutine.
const SUBROUTINE_MAX: usize = 256;
/// Maximum number of subroutines.
const PARTS_MAX: usize = 64;
/// Maximum number of registers that a function saves for its caller.
const PUSHES_MAX: usize = 6;
/// Maximum number of bytes from the save of all registers to the instruction that sets sp: 256 in
/// LuaJIT.
const SAVED_MAX: usize = 1024;
/// The rule at a call's target: the CFA is 8 bytes above sp.
const CALLED: Rule = Rule { cfa_off: 8, ..Rule::plain(op::SP) };

/// Returns the ranges of a block where its one row is wrong, with the right rules, ascending.
pub(super) fn parts(code: &[u8], stated: Rule) -> Vec<RuleRange> {
    let has_frame = stated.op == op::SP && stated.cfa_off > 8;
    if !BLOCK.contains(&code.len()) || !has_frame {
        return Vec::new();
    }
    let mut parts = Vec::new();
    for target in call_targets(code) {
        let mut start = target;
        // Subroutines that are called from elsewhere are adjacent to those called from here.
        while let Some(len) = subroutine_len(&code[start..])
            && parts.len() < PARTS_MAX
        {
            parts.push((start as u32..(start + len) as u32, CALLED));
            start += len;
        }
    }
    for at in 0..code.len() {
        if parts.len() < PARTS_MAX {
            entry(code, at, stated, &mut parts);
            exit(code, at, stated, &mut parts);
        }
    }
    parts.extend(all_saved(code));
    parts.sort_by_key(|(bytes, _)| bytes.start);
    parts.dedup();
    parts
}

/// Returns the targets in the block of the calls in the block.
fn call_targets(code: &[u8]) -> Vec<usize> {
    let target = |(at, bytes): (usize, &[u8])| {
        let [0xE8, operand @ ..] = *bytes.first_chunk::<5>()? else { return None };
        let target = (at + 5).checked_add_signed(i32::from_le_bytes(operand) as isize)?;
        (1..code.len()).contains(&target).then_some(target)
    };
    code.windows(5).enumerate().filter_map(target).take(PARTS_MAX).collect()
}

/// Returns the length of a subroutine that returns without changing the stack. It has only moves of
/// constants, arithmetic of vector registers and short forward jumps.
fn subroutine_len(code: &[u8]) -> Option<usize> {
    let code = &code[..code.len().min(SUBROUTINE_MAX)];
    let (mut at, mut jumps_to) = (0, 0);
    loop {
        match code.get(at..)? {
            [0xC3, ..] if at >= jumps_to => return Some(at + 1),
            [0xC3, ..] => at += 1,
            // movabs $constant,%rax
            [0x48, 0xB8, ..] => at += 10,
            // jcc
            [0x70..=0x7F, by @ 0..=0x7F, ..] => {
                at += 2;
                jumps_to = jumps_to.max(at + usize::from(*by));
            }
            rest => at += vector_len(rest)?,
        }
    }
}

/// Returns the length of an instruction whose operands are vector registers, or one of them and
/// %rax.
fn vector_len(code: &[u8]) -> Option<usize> {
    let prefix = usize::from(matches!(code.first()?, 0x66 | 0xF2 | 0xF3));
    let wide = usize::from(code.get(prefix)? & 0xF0 == 0x40);
    let [0x0F, opcode, modrm, ..] = *code.get(prefix + wide..)? else { return None };
    let len = prefix + wide + 3;
    match opcode {
        // cmpxxsd has an immediate operand.
        0xC2 if modrm >= 0xC0 => Some(len + 1),
        // movaps, ucomis, and, andn, or, xor, add, mul, sub, min, div, max; movq from %rax
        0x28 | 0x2E | 0x54..=0x57 | 0x58 | 0x59 | 0x5C..=0x5F if modrm >= 0xC0 => Some(len),
        0x6E if modrm >= 0xC0 && modrm & 7 == 0 => Some(len),
        _ => None,
    }
}

/// Returns the rule of a range of the block where the frame has this size so far.
fn of_size(bytes: Range<usize>, stated: Rule, size: i32, has_fp: bool) -> RuleRange {
    let fp_op = if has_fp { stated.fp_op } else { fp_op::SAME };
    let fp_off = if has_fp { stated.fp_off } else { 0 };
    let range = bytes.start as u32..bytes.end as u32;
    (range, Rule { op: op::SP, fp_op, fp_off, cfa_off: size })
}

/// Returns the length of a push or pop whose first byte is `opcode` for %rax.
fn push_or_pop_len(code: &[u8], opcode: u8) -> Option<usize> {
    match *code {
        [byte, ..] if byte & 0xF8 == opcode => Some(1),
        [0x41, byte, ..] if byte & 0xF8 == opcode => Some(2),
        _ => None,
    }
}

/// Recognises the `push %rbp`, other pushes and `sub $n,%rsp` that set up the frame.
fn entry(code: &[u8], at: usize, stated: Rule, parts: &mut Vec<RuleRange>) {
    // With a prefix it pushes another register.
    if code[at] != 0x55 || at > 0 && code[at - 1] == 0x41 {
        return;
    }
    let (mut end, mut size) = (at, 8);
    let mut found = Vec::new();
    while let Some(len) = push_or_pop_len(&code[end..], 0x50)
        && found.len() < PUSHES_MAX
    {
        found.push(of_size(end..end + len, stated, size, size > 8));
        (end, size) = (end + len, size + 8);
    }
    let [0x48, 0x83, 0xEC, by, ..] = code[end..] else { return };
    if size + i32::from(by) == stated.cfa_off {
        found.push(of_size(end..end + 4, stated, size, true));
        parts.extend(found);
    }
}

/// Recognises the `add $n,%rsp`, the pops of all pushed registers, and the `ret`.
fn exit(code: &[u8], at: usize, stated: Rule, parts: &mut Vec<RuleRange>) {
    let [0x48, 0x83, 0xC4, by, ..] = code[at..] else { return };
    let mut end = at + 4;
    let mut size = stated.cfa_off - i32::from(by);
    let mut found = Vec::new();
    while let Some(len) = push_or_pop_len(&code[end..], 0x58)
        && found.len() < PUSHES_MAX
    {
        found.push(of_size(end..end + len, stated, size, true));
        (end, size) = (end + len, size - 8);
    }
    if size == 8 && code[end - 1..].starts_with(&[0x5D, 0xC3]) {
        found.push(of_size(end..end + 1, stated, size, false));
        parts.extend(found);
    }
}

/// Finds code that saves more registers than a function keeps for its caller. It exits another kind
/// of frame, whose size is unknown until sp is set again.
fn all_saved(code: &[u8]) -> Option<RuleRange> {
    let pushed = |from: usize| {
        let pushes = (0..=PUSHES_MAX).scan(from, |at, _| {
            *at += push_or_pop_len(&code[*at..], 0x50)?;
            Some(*at)
        });
        pushes.count() > PUSHES_MAX
    };
    let start = (0..code.len()).find(|at| pushed(*at))?;
    // mov %register,%rsp
    let sets_sp = |it: &[u8]| matches!(*it, [0x48, 0x89, modrm] if modrm & 0xC7 == 0xC4);
    let end = start + code[start..].windows(3).take(SAVED_MAX).position(sets_sp)? + 3;
    Some((start as u32..end as u32, Rule::BAD))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATED: Rule = Rule { op: op::SP, fp_op: fp_op::AT_CFA, fp_off: -2, cfa_off: 80 };

    /// Returns the corrections of a block that has this code at offset 100 and calls it.
    fn parts_of(part: &[u8]) -> Vec<RuleRange> {
        let mut code = vec![0xCC; *BLOCK.start()];
        // call 100
        code[..5].copy_from_slice(&[0xE8, 95, 0, 0, 0]);
        code[100..100 + part.len()].copy_from_slice(part);
        parts(&code, STATED)
    }

    fn part(bytes: Range<u32>, cfa_off: i32, has_fp: bool) -> RuleRange {
        let base = if has_fp { STATED } else { Rule::plain(op::SP) };
        (bytes.start + 100..bytes.end + 100, Rule { cfa_off, ..base })
    }

    #[test]
    fn arithmetic_returns_to_what_is_under_sp() {
        // movaps %xmm0,%xmm1; movabs $-1,%rax; movq %rax,%xmm2; andpd %xmm2,%xmm1; jbe +1; ret;
        // cmpltsd %xmm1,%xmm0; ret
        let code = [
            &[0x0F, 0x28, 0xC8, 0x48, 0xB8][..],
            &[0xFF; 8],
            &[0x66, 0x48, 0x0F, 0x6E, 0xD0, 0x66, 0x0F, 0x54, 0xCA, 0x76, 1, 0xC3],
            &[0xF2, 0x0F, 0xC2, 0xC1, 1, 0xC3],
        ]
        .concat();
        assert_eq!(parts_of(&code), [part(0..31, 8, false)]);
        // Adjacent subroutines are found until other code follows.
        let two = [&code[..], &[0x0F, 0x28, 0xC8, 0xC3, 0x90, 0xC3]].concat();
        assert_eq!(parts_of(&two), [part(0..31, 8, false), part(31..35, 8, false)]);
        for (at, byte) in [(0, 0x53), (17, 0xD3), (23, 0x86)] {
            let mut other = code.clone();
            other[at] = byte;
            assert_eq!(parts_of(&other), [], "a push, another register, a jump backwards");
        }
        assert_eq!(parts_of(&code[..30]), [], "it does not return");
        assert_eq!(
            parts(&[&code[..], &[0xCC; *BLOCK.start()]].concat(), STATED),
            [],
            "nothing calls it"
        );
    }

    #[test]
    fn a_frame_is_made_push_by_push_and_taken_away() {
        // push %rbp; push %rbx; push %r15; push %r14; sub $40,%rsp
        let entry = [0x55, 0x53, 0x41, 0x57, 0x41, 0x56, 0x48, 0x83, 0xEC, 40];
        let expected = [
            part(0..1, 8, false),
            part(1..2, 16, true),
            part(2..4, 24, true),
            part(4..6, 32, true),
            part(6..10, 40, true),
        ];
        assert_eq!(parts_of(&entry), expected);
        // add $40,%rsp; pop %r14; pop %r15; pop %rbx; pop %rbp; ret
        let exit = [0x48, 0x83, 0xC4, 40, 0x41, 0x5E, 0x41, 0x5F, 0x5B, 0x5D, 0xC3];
        let expected = [
            part(4..6, 40, true),
            part(6..8, 32, true),
            part(8..9, 24, true),
            part(9..10, 16, true),
            part(10..11, 8, false),
        ];
        assert_eq!(parts_of(&exit), expected);
        for (code, at) in [(&entry[..], 9), (&exit, 3)] {
            let mut other = code.to_vec();
            other[at] = 48;
            assert_eq!(parts_of(&other), [], "of another size than is stated");
        }
    }

    #[test]
    fn where_all_registers_are_saved_nothing_is_known() {
        // push r13 to r10; push rdi, rsi, rdx; other code; mov %rcx,%rsp
        let pushes = [0x41, 0x55, 0x41, 0x54, 0x41, 0x53, 0x41, 0x52, 0x57, 0x56, 0x52];
        let code = [&pushes[..], &[0x90; 20], &[0x48, 0x89, 0xCC]].concat();
        assert_eq!(parts_of(&code), [(100..134, Rule::BAD)]);
        assert_eq!(parts_of(&code[2..]), [], "no more than a function keeps");
    }

    #[test]
    fn other_functions_are_left_alone() {
        let small = [0x55; *BLOCK.start() - 1];
        assert_eq!(parts(&small, STATED), []);
        assert_eq!(parts(&vec![0x55; *BLOCK.end() + 1], STATED), []);
        assert_eq!(parts(&[0xCC; *BLOCK.start()], STATED), []);
        let called = Rule { cfa_off: 8, ..Rule::plain(op::SP) };
        assert_eq!(parts(&[0xE8; *BLOCK.start()], called), []);
        assert_eq!(parts(&[0xE8; *BLOCK.start()], Rule::FP_STD), []);
    }
}
