//! Where code of Go takes its stack pointer back from after a call on another stack.
//!
//! It keeps it on the other stack: as an address, or as the depth below the end of a goroutine's
//! stack, together with the goroutine. Go may have replaced the goroutine's stack by then.
//!
//! The instructions behind each call say which, so nothing depends on names and releases.
//!
//! # Invariants
//! - A call has a result only if all instructions up to the one that sets the stack pointer are
//!   known, and none of them writes to the stack.

use std::ops::Range;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};

/// Maximum number of instructions between a call and the one that sets the stack pointer. Go has
/// five or six.
const INSTRUCTIONS_MAX: usize = 12;
/// Bytes of a word.
const WORD: u64 = 8;

/// Where the stack pointer is taken back from. All numbers are words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeptSp {
    /// `[sp + n]`
    Address(u8),
    /// `[[sp + owner] + end] - [sp + depth]`
    Depth { owner: u8, end: u8, depth: u8 },
}

/// A call on another stack.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CallElsewhere {
    pub(super) kept: KeptSp,
    /// The instructions at which the stack pointer is not back: from the last byte of the call, by
    /// which return addresses are looked up, to the end of the instruction that sets it.
    pub(super) away: Range<u64>,
    /// The end of the instructions behind them that run on the own stack: that of the next one
    /// that does not go on to its successor.
    pub(super) end: u64,
}

/// Returns the calls in a function's code, ascending. Offsets are from the start of the code.
pub(super) fn calls(code: &[u8]) -> Vec<CallElsewhere> {
    let mut decoder = Decoder::new(64, code, DecoderOptions::NONE);
    let mut calls = Vec::new();
    while decoder.can_decode() {
        let instruction = decoder.decode();
        let is_call =
            matches!(instruction.flow_control(), FlowControl::Call | FlowControl::IndirectCall);
        if is_call {
            calls.extend(after_call(code, instruction.next_ip()));
        }
    }
    calls
}

/// Returns what is behind a call that returns to an offset.
fn after_call(code: &[u8], returns_to: u64) -> Option<CallElsewhere> {
    let mut decoder = Decoder::new(64, code, DecoderOptions::NONE);
    decoder.set_position(usize::try_from(returns_to).ok()?).ok()?;
    decoder.set_ip(returns_to);
    let mut values = [None; 16];
    for _ in 0..INSTRUCTIONS_MAX {
        let instruction = decoder.can_decode().then(|| decoder.decode())?;
        let Some(kept) = step(&instruction, &mut values)? else { continue };
        let away = returns_to.checked_sub(1)?..instruction.next_ip();
        let mut end = away.end;
        while decoder.can_decode() {
            let instruction = decoder.decode();
            end = instruction.next_ip();
            if instruction.is_invalid() || instruction.flow_control() != FlowControl::Next {
                break;
            }
        }
        return Some(CallElsewhere { kept, away, end });
    }
    None
}

/// What a register has.
#[derive(Debug, Clone, Copy)]
enum Value {
    /// `[sp + n]`
    Word(u8),
    /// `[[sp + owner] + end]`
    End { owner: u8, end: u8 },
    /// A stack pointer.
    Sp(KeptSp),
}

/// Applies an instruction to the registers. Returns where the stack pointer is from if it sets it,
/// and `None` if the instruction is not known.
fn step(instruction: &Instruction, values: &mut [Option<Value>; 16]) -> Option<Option<KeptSp>> {
    let is_in = |kind| (instruction.op0_kind(), instruction.op1_kind()) == kind;
    let value = match instruction.mnemonic() {
        Mnemonic::Mov if is_in((OpKind::Register, OpKind::Memory)) => loaded(instruction, values),
        Mnemonic::Mov if is_in((OpKind::Register, OpKind::Register)) => {
            number(instruction.op1_register()).and_then(|from| values[from])
        }
        // The thread's variables are not on a stack.
        Mnemonic::Mov if is_in((OpKind::Memory, OpKind::Register)) => {
            return (instruction.memory_segment() == Register::FS).then_some(None);
        }
        Mnemonic::Mov
            if instruction.op0_kind() == OpKind::Register
                && instruction.op1_kind() == OpKind::Immediate32to64 =>
        {
            None
        }
        Mnemonic::Sub if is_in((OpKind::Register, OpKind::Memory)) => {
            let from = number(instruction.op0_register()).and_then(|from| values[from]);
            match (from, loaded(instruction, values)) {
                (Some(Value::End { owner, end }), Some(Value::Word(depth))) => {
                    Some(Value::Sp(KeptSp::Depth { owner, end, depth }))
                }
                _ => None,
            }
        }
        _ => return None,
    };
    let into = instruction.op0_register();
    match (into, value) {
        (Register::RSP, Some(Value::Word(at))) => Some(Some(KeptSp::Address(at))),
        (Register::RSP, Some(Value::Sp(kept))) => Some(Some(kept)),
        (Register::RSP, _) => None,
        _ => {
            values[into.full_register().number()] = value.filter(|_| into.size() == 8);
            Some(None)
        }
    }
}

/// Returns what an instruction loads.
fn loaded(instruction: &Instruction, values: &[Option<Value>; 16]) -> Option<Value> {
    let is_plain = instruction.memory_index() == Register::None
        && instruction.segment_prefix() == Register::None
        && instruction.memory_size().size() == WORD as usize;
    let at = instruction.memory_displacement64();
    if !is_plain || !at.is_multiple_of(WORD) {
        return None;
    }
    let at = u8::try_from(at / WORD).ok()?;
    match instruction.memory_base() {
        Register::RSP => Some(Value::Word(at)),
        base => match values[number(base)?]? {
            Value::Word(owner) => Some(Value::End { owner, end: at }),
            _ => None,
        },
    }
}

/// Returns the number of a general register with 64 bits.
fn number(register: Register) -> Option<usize> {
    register.is_gpr64().then(|| register.number())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `asmcgocall` of Go 1.19: call *%rax; mov 48(%rsp),%rdi; mov 8(%rdi),%rsi; sub 40(%rsp),%rsi;
    /// mov %rdi,%fs:-8; mov %rsi,%rsp; mov %eax,24(%rsp); ret. Then, on the system's stack:
    /// call *%rax; mov 40(%rsp),%rsi; mov %rsi,%rsp; mov %eax,24(%rsp); ret
    const GO_1_19: &[u8] = &[
        0xFF, 0xD0, 0x48, 0x8B, 0x7C, 0x24, 0x30, 0x48, 0x8B, 0x77, 0x08, 0x48, 0x2B, 0x74, 0x24,
        0x28, 0x64, 0x48, 0x89, 0x3C, 0x25, 0xF8, 0xFF, 0xFF, 0xFF, 0x48, 0x89, 0xF4, 0x89, 0x44,
        0x24, 0x18, 0xC3, 0xFF, 0xD0, 0x48, 0x8B, 0x74, 0x24, 0x28, 0x48, 0x89, 0xF4, 0x89, 0x44,
        0x24, 0x18, 0xC3, 0xCC,
    ];

    #[test]
    fn a_depth_and_an_address_are_found() {
        let depth = KeptSp::Depth { owner: 6, end: 1, depth: 5 };
        let expected = [
            CallElsewhere { kept: depth, away: 1..28, end: 33 },
            CallElsewhere { kept: KeptSp::Address(5), away: 34..43, end: 48 },
        ];
        assert_eq!(calls(GO_1_19), expected);
        for len in 0..GO_1_19.len() {
            calls(&GO_1_19[..len]);
        }
    }

    #[test]
    fn other_code_is_not_known() {
        let with = |at: usize, bytes: &[u8]| {
            let mut code = GO_1_19[..33].to_vec();
            code[at..at + bytes.len()].copy_from_slice(bytes);
            calls(&code)
        };
        // mov 48(%rsp),%edi; mov 8(%rbx),%rsi; sub 40(%rsp),%rdi; mov %rdi,%rsp; a store that is
        // not of the thread; sub 44(%rsp),%rsi
        assert_eq!(with(2, &[0x40]), []);
        assert_eq!(with(9, &[0x73]), []);
        assert_eq!(with(13, &[0x7C]), []);
        assert_eq!(with(26, &[0x89, 0xFC])[0].kept, KeptSp::Address(6));
        assert_eq!(with(16, &[0x3E]), []);
        assert_eq!(with(15, &[44]), []);
    }
}
