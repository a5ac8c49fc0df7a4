//! Corrects call frame information that is known to be wrong.
//!
//! Only the code itself shows the error, so the code is recognised instruction by instruction.

use std::ops::Range;

use memchr::memmem;
use traceprof_abi::unwind::Rule;
use traceprof_abi::unwind::rule::op;

use super::interpreter;
use super::rows::RuleRange;

/// Lengths in bytes of the functions that are checked for a stack switch.
const LENGTHS: Range<usize> = 128..512;
/// Maximum number of bytes from the first of two calls to the end of a function that returns to
/// another one: 128 in libgcc of GCC 12.
const RETURN_LENGTH: usize = 192;
/// Offsets of rsp, rbp and rip in a `ucontext`, in units of 8 bytes.
const PLACES: [u8; 3] = [20, 15, 21];
/// The encodings of a base register, rdx or rsi, in the second byte of an instruction's operand.
const BASES: [u8; 2] = [2, 6];
/// DWARF numbers of these base registers.
const NUMBERS: [u8; 2] = [1, 4];

/// Returns the ranges of a function whose rules are wrong, with the right rules, ascending.
/// `returns_elsewhere` says that a row keeps rax. `is_code` says whether an offset from the
/// function's start is in code.
pub(super) fn parts(
    code: &[u8],
    rows: impl Iterator<Item = (u32, Rule)> + Clone,
    returns_elsewhere: bool,
    is_code: impl Fn(i64) -> bool,
) -> Vec<RuleRange> {
    let mut ahead = rows.clone();
    match (ahead.next(), ahead.next()) {
        (Some((_, stated)), None) => {
            interpreter::parts(code, stated).into_iter().chain(stack_switch(code)).collect()
        }
        _ if returns_elsewhere => exception_return(code, is_code).into_iter().collect(),
        _ => frame_by_rbp(code, rows).into_iter().collect(),
    }
}

/// Bit-sliced ciphers of libcrypto keep their frame in %rbp and reserve a variable size below it,
/// while their rows keep counting from sp. The rule for %rbp at the end of the frame applies from
/// the copy of sp on.
fn frame_by_rbp(code: &[u8], rows: impl Iterator<Item = (u32, Rule)> + Clone) -> Option<RuleRange> {
    const RAX: u8 = op::REG_LEAF;
    let next = rows.clone().skip(1);
    let of_end = |((_, row), (_, next)): &((u32, Rule), (u32, Rule))| {
        (row.op, next.op, next.cfa_off) == (op::SP, RAX, 8)
    };
    let ((from, stated), (to, _)) = rows.zip(next).find(of_end)?;
    let body = code.get(from as usize..to as usize)?;
    // lea n(%rbp),%rax, in both lengths
    let n = (stated.cfa_off - 8).to_le_bytes();
    let has_end = body.ends_with(&[0x48, 0x8D, 0x45, n[0]]) && n[1..] == [0; 3]
        || body.ends_with(&[&[0x48, 0x8D, 0x85][..], &n].concat());
    // mov %rsp,%rbp; sub %rax,%rsp
    let copies = memmem::find(body, &[0x48, 0x89, 0xE5])? + 3;
    let (start, is_moved) =
        (from + copies as u32, memmem::find(&body[copies..], &[0x48, 0x29, 0xC4]));
    (has_end && is_moved.is_some()).then_some((start..to, Rule { op: op::FP, ..stated }))
}

/// Finds the part of glibc's `swapcontext` where sp is already on the new stack but the return
/// address is not. The rows still say that the return address is at sp.
fn stack_switch(code: &[u8]) -> Option<RuleRange> {
    if !LENGTHS.contains(&code.len()) {
        return None;
    }
    BASES.into_iter().zip(NUMBERS).find_map(|(base, number)| {
        // mov 160(base),%rsp
        let switch = [0x48, 0x8B, 0xA0 | base, 160, 0, 0, 0];
        // mov 168(base),%rcx; push %rcx
        let push = [0x48, 0x8B, 0x88 | base, 168, 0, 0, 0, 0x51];
        let start = memmem::find(code, &switch)? + switch.len();
        let end = start + memmem::find(&code[start..], &push)? + push.len();
        let rule = Rule::from(op::FROM_CONTEXT, number, PLACES);
        Some((start as u32..end as u32, rule))
    })
}

/// Finds the end of the libgcc functions that return to an exception's landing pad. By then the
/// registers that they saved belong to the function they return to, whose frame is further up the
/// stack than the rows say. `is_code` says whether an offset from the function's start is in code.
pub(super) fn exception_return(code: &[u8], is_code: impl Fn(i64) -> bool) -> Option<RuleRange> {
    // mov %rcx,%rsp; pop %rcx; jmp *%rcx, and mov %rcx,%rsp; ret
    const ENDS: [&[u8]; 2] = [&[0x48, 0x89, 0xCC, 0x59, 0xFF, 0xE1], &[0x48, 0x89, 0xCC, 0xC3]];
    let end = ENDS.iter().find_map(|end| Some(memmem::find(code, end)? + end.len()))?;
    let is_call = |at: &usize| {
        let operand = code.get(at + 1..).and_then(<[u8]>::first_chunk::<4>);
        let target = operand.map(|it| *at as i64 + 5 + i64::from(i32::from_le_bytes(*it)));
        code[*at] == 0xE8 && target.is_some_and(&is_code)
    };
    // One call installs the other function's values, the next call is for debuggers.
    let mut calls = (end.saturating_sub(RETURN_LENGTH)..end).rev().filter(is_call);
    let (_debuggers, installs) = (calls.next()?, calls.next()?);
    // The range starts at the call's last byte, where its return address is looked up.
    Some((installs as u32 + 4..end as u32, Rule::BAD))
}

/// Returns whether this is glibc's `__start_context`, the function that a `makecontext` function
/// returns to. The context to resume is above it on the stack, and there is no caller.
pub(super) fn is_fiber_root(code: &[u8]) -> bool {
    // mov %rbx,%rsp; mov (%rsp),%rdi; test %rdi,%rdi; je
    code.starts_with(&[0x48, 0x89, 0xDC, 0x48, 0x8B, 0x3C, 0x24, 0x48, 0x85, 0xFF, 0x74])
}

#[cfg(test)]
mod tests {
    use traceprof_abi::unwind::rule::fp_op;

    use super::*;

    #[test]
    fn a_switch_of_contexts_is_recognised() {
        // From glibc 2.36: mov 160(%rdx),%rsp; mov 128(%rdx),%rbx; mov 168(%rdx),%rcx; push %rcx
        let switch = [0x48, 0x8B, 0xA2, 160, 0, 0, 0, 0x48, 0x8B, 0x9A, 128, 0, 0, 0];
        let push = [0x48, 0x8B, 0x8A, 168, 0, 0, 0, 0x51];
        let code = [&[0x90; 160][..], &switch, &push, &[0xC3]].concat();
        let rule = Rule::from(op::FROM_CONTEXT, 1, PLACES);
        assert_eq!(stack_switch(&code), Some((167..182, rule)));
        let mut other = code.clone();
        // %rsi instead of %rdx.
        [162, 169, 176].into_iter().for_each(|at| other[at] ^= 4);
        let rule = Rule::from(op::FROM_CONTEXT, 4, PLACES);
        assert_eq!(stack_switch(&other), Some((167..182, rule)));
        other[176] ^= 4;
        assert_eq!(stack_switch(&other), None, "from two contexts");
        assert_eq!(stack_switch(&code[..code.len() - 2]), None, "nothing is pushed");
        assert_eq!(stack_switch(&code[100..]), None, "too short");
    }

    #[test]
    fn a_frame_that_is_kept_by_rbp_is_recognised() {
        // From libcrypto 3: mov %rsp,%rbp; sub %rax,%rsp; lea 120(%rbp),%rax, starting at offset
        // 17.
        let body = [0x48, 0x89, 0xE5, 0x90, 0x48, 0x29, 0xC4, 0x90, 0x48, 0x8D, 0x45, 120];
        let code = [&[0x90; 17][..], &body, &[0xC3; 4]].concat();
        let saved = Rule { fp_op: fp_op::AT_CFA, fp_off: -2, ..Rule::plain(op::SP) };
        let of = |op, cfa_off| Rule { op, cfa_off, ..saved };
        let rows = [(0, of(op::SP, 8)), (9, of(op::SP, 128)), (29, of(op::REG_LEAF, 8))];
        let found = |code: &[u8], rows: &[(u32, Rule)]| frame_by_rbp(code, rows.iter().copied());
        assert_eq!(found(&code, &rows), Some((20..29, of(op::FP, 128))));
        // The displacement has 32 bits.
        let end = [0x48, 0x8D, 0x85, 0xF8, 1, 0, 0];
        let wide = [&[0x90; 17][..], &body[..8], &end].concat();
        let large = [rows[0], (9, of(op::SP, 512)), (32, rows[2].1)];
        assert_eq!(found(&wide, &large), Some((20..32, of(op::FP, 512))));
        // Another size, no reserved space, no copy of sp, another end, no end.
        for at in [28, 23, 19] {
            let mut other = code.clone();
            other[at] ^= 0x40;
            assert_eq!(found(&other, &rows), None, "{at}");
        }
        assert_eq!(found(&code, &[rows[0], rows[1], (29, of(op::REG_LEAF + 1, 8))]), None);
        assert_eq!(found(&code, &rows[..2]), None);
        assert_eq!(found(&code[..20], &rows), None);
    }

    #[test]
    fn the_end_of_a_function_that_returns_elsewhere_is_recognised() {
        let call = |target: i32, at: i32| {
            [&[0xE8][..], &(target - at - 5).to_le_bytes(), &[0x90]].concat()
        };
        for end in [&[0x48, 0x89, 0xCC, 0x59, 0xFF, 0xE1][..], &[0x48, 0x89, 0xCC, 0xC3]] {
            let code =
                [&[0x90; 40][..], &call(-0x100, 40), &[0x90; 10], &call(-0x200, 56), end].concat();
            let expected = Some((44..62 + end.len() as u32, Rule::BAD));
            let is_code = |offset| [-0x100, -0x200].contains(&offset);
            assert_eq!(exception_return(&code, is_code), expected);
            assert_eq!(exception_return(&code, |offset| offset == -0x100), None, "one is no call");
            assert_eq!(exception_return(&code[..code.len() - 1], is_code), None);
        }
        assert_eq!(exception_return(&[], |_| true), None);
    }

    #[test]
    fn the_root_of_a_fiber_is_recognised() {
        // From glibc 2.36: mov %rbx,%rsp; mov (%rsp),%rdi; test %rdi,%rdi; je
        let code = [0x48, 0x89, 0xDC, 0x48, 0x8B, 0x3C, 0x24, 0x48, 0x85, 0xFF, 0x74, 0x24];
        assert!(is_fiber_root(&code) && !is_fiber_root(&code[1..]) && !is_fiber_root(&code[..10]));
    }
}
