//! Code that is followed: pieces of what HotSpot generates, with the rule before each instruction.

mod hostile;
mod methods;
mod others;

use traceprof_abi::unwind::Rule;
use traceprof_abi::unwind::rule::method::{IN_FRAME, IN_RBX, NONE};
use traceprof_abi::unwind::rule::{fp_op, op};

use super::{Deoptimized, Followed, GeneratedCode, GeneratedKind, follow};

const BAD: Rule = Rule::BAD;

/// An instruction, the rule before it, and the rule at its last byte, by which frames are left that
/// have called.
struct Expected<'a>(&'a [u8], Rule, Rule);

fn at(bytes: &[u8], rule: Rule) -> Expected<'_> {
    Expected(bytes, rule, rule)
}

fn calls(bytes: &[u8], rule: Rule, caller: Rule) -> Expected<'_> {
    Expected(bytes, rule, caller)
}

const fn with(op: u8, cfa_off: i32) -> Rule {
    Rule { cfa_off, ..Rule::plain(op) }
}

/// The CFA is at a distance from the stack pointer.
const fn sp(bytes: i32) -> Rule {
    with(op::SP, bytes)
}

/// The CFA is at a distance from the frame pointer.
const fn fp(bytes: i32) -> Rule {
    with(op::FP, bytes)
}

/// The CFA is at a distance from another register.
const fn by(register: u8, bytes: i32) -> Rule {
    with(op::REG_LEAF + register, bytes)
}

/// The return address is in a register.
const fn in_register(register: u8, bytes: i32) -> Rule {
    with(op::RA_REG_LEAF + register, bytes)
}

/// An address of the stack was saved, this far below the CFA.
const fn saved_at(offset: i32, below: i32) -> Rule {
    with(op::DEREF_SP_ADD, offset | (below / 8) << 24)
}

const fn interpreted(location: u8) -> Rule {
    with(op::INTERPRETED, i32::from_le_bytes([0, 0, 0, location]))
}

/// The caller's stack pointer is in a register, the return address at the stack pointer.
const fn sender(register: u8, offset: u8, location: u8) -> Rule {
    with(op::SENDER_LEAF + register, i32::from_le_bytes([offset, 0, 0, location]))
}

/// The return address is this far below the CFA that it would have, and some words below the
/// caller's stack pointer.
const fn below(bytes: i32, words: i16) -> Rule {
    Rule { fp_off: words, ..with(op::RETURN_BELOW, bytes) }
}

/// All is in registers.
const fn from(location: u8, registers: [u8; 3]) -> Rule {
    Rule::from(op::FROM_REGISTERS, location, registers)
}

/// The caller's frame pointer is below the return address.
const fn saved(rule: Rule) -> Rule {
    Rule { fp_op: fp_op::AT_CFA, fp_off: -2, ..rule }
}

/// The caller's frame pointer is at a number of words from the stack pointer.
const fn at_sp(words: i16, rule: Rule) -> Rule {
    Rule { fp_op: fp_op::AT_SP, fp_off: words, ..rule }
}

/// The caller's frame pointer is not known.
const fn lost(rule: Rule) -> Rule {
    Rule { fp_op: fp_op::CLEAR, ..rule }
}

const fn deoptimized(bytes: i32, original_words: i16) -> Rule {
    Rule { fp_op: fp_op::AT_CFA, fp_off: original_words, ..with(op::DEOPTIMIZED, bytes) }
}

/// The code without its bytes.
fn plain(kind: GeneratedKind) -> GeneratedCode<'static> {
    GeneratedCode {
        kind,
        start: 0x7000_0000,
        bytes: &[],
        frame_words: 0,
        frame_complete: None,
        entries: &[],
        deoptimized: Deoptimized::default(),
    }
}

/// A method whose frame has a number of words and is complete at an offset.
fn method(frame_words: u32, frame_complete: u32) -> GeneratedCode<'static> {
    GeneratedCode {
        frame_words,
        frame_complete: Some(frame_complete),
        ..plain(GeneratedKind::Method)
    }
}

fn rule_at(followed: &Followed, offset: usize) -> Rule {
    let after = followed.rows.partition_point(|(row, _)| *row as usize <= offset);
    followed.rows[after - 1].1
}

fn check(code: GeneratedCode<'_>, expected: &[Expected<'_>]) {
    let bytes: Vec<u8> = expected.iter().flat_map(|it| it.0.to_vec()).collect();
    let followed = follow(&GeneratedCode { bytes: &bytes, ..code });
    let mut offset = 0;
    for Expected(bytes, rule, last) in expected {
        assert_eq!(rule_at(&followed, offset), *rule, "at {offset:#x}: {bytes:x?}");
        offset += bytes.len();
        assert_eq!(rule_at(&followed, offset - 1), *last, "the end of {bytes:x?}");
    }
    assert!(!followed.is_cut);
}
