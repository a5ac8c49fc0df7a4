//! Stubs of procedure linkage tables that have no call frame information.
//!
//! GNU ld describes the frames of most tables that it makes, but not of the IFUNC stubs of a static
//! program. Other linkers describe none. The instructions themselves are recognised.
//!
//! # Invariants
//! - A stub ends with a jump through a slot in data, or to a table's first stub. Other code is not
//!   changed.

use std::ops::Range;

use memchr::memmem;
use traceprof_abi::unwind::Rule;
use traceprof_abi::unwind::rule::op;

use super::code::PADDING;
use super::rows::RuleRange;
use traceprof_elf::{Elf, LoadSegment};

/// Stubs start at multiples of this many bytes, or where the previous stub ends.
const ALIGNMENT: u64 = 8;
/// Maximum number of instructions of a stub: mold's first stub has four.
const INSTRUCTIONS_MAX: usize = 5;
/// The opcode of `jmp *n(%rip)`.
const JUMP: [u8; 2] = [0xFF, 0x25];
/// Size in bytes of a return address, and of each pushed value.
const WORD: i32 = 8;

/// The effect of an instruction of a stub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    /// Does not change the stack.
    None,
    /// Pushes a value.
    Push,
    /// Pushes the slot at this SVMA.
    PushSlot(u64),
    /// Jumps through the slot at this SVMA.
    JumpSlot(u64),
    /// Jumps to this SVMA.
    Jump(u64),
}

/// Returns the stubs in code that starts at `svma`: ranges with one rule each, ascending.
pub(super) fn stubs(elf: &Elf<'_>, code: &[u8], svma: u64) -> Vec<RuleRange> {
    let is_slot = |slot: u64| {
        let mut data = elf.loads().iter().filter(|load| load.write && !load.exec);
        let holds = |load: &LoadSegment| load.svma <= slot && slot - load.svma < load.mem_len;
        slot.is_multiple_of(8) && data.any(holds)
    };
    LinkageTable { code, svma, is_slot: &is_slot }.stubs()
}

/// Code that may contain stubs.
struct LinkageTable<'c> {
    code: &'c [u8],
    svma: u64,
    is_slot: &'c dyn Fn(u64) -> bool,
}

impl LinkageTable<'_> {
    fn stubs(&self) -> Vec<RuleRange> {
        let mut parts: Vec<RuleRange> = Vec::new();
        // Each table has such a jump, and little other code has.
        if !memmem::find_iter(self.code, &JUMP).any(|at| self.jumps_through_slot(at)) {
            return parts;
        }
        let (mut at, mut is_behind_stub) = (0, true);
        while at < self.code.len() {
            let may_start = is_behind_stub || self.may_start(at);
            let stub = if may_start { self.stub(at) } else { None };
            is_behind_stub = stub.is_some();
            match stub {
                Some(stub) => {
                    at = stub.last().map_or(at + 1, |(bytes, _)| bytes.end as usize);
                    parts.extend(stub);
                }
                // To the next multiple.
                None => at += (ALIGNMENT - (self.svma + at as u64) % ALIGNMENT) as usize,
            }
        }
        parts
    }

    fn jumps_through_slot(&self, at: usize) -> bool {
        let jump = self.instruction(at).map(|(effect, _)| effect);
        matches!(jump, Some(Effect::JumpSlot(slot)) if (self.is_slot)(slot))
    }

    /// Returns the stub that starts here.
    fn stub(&self, start: usize) -> Option<Vec<RuleRange>> {
        let (mut at, mut parts) = (start, Vec::new());
        // A stub that first pushes a slot is reached only from another stub, which has pushed a
        // number.
        let mut size = match self.instruction(at)?.0 {
            Effect::PushSlot(_) => 2 * WORD,
            _ => WORD,
        };
        for _ in 0..INSTRUCTIONS_MAX {
            let (effect, next) = self.instruction(at)?;
            parts.push(part(at..next, size));
            at = next;
            match effect {
                Effect::None => {}
                Effect::Push => size += WORD,
                Effect::PushSlot(slot) if (self.is_slot)(slot) => size += WORD,
                Effect::JumpSlot(slot) if (self.is_slot)(slot) => {
                    return Some(self.with_padding(parts));
                }
                Effect::Jump(target) if self.is_first(target) => {
                    return Some(self.with_padding(parts));
                }
                _ => return None,
            }
        }
        None
    }

    /// Returns whether a stub may start at this multiple of the alignment: no code falls through to
    /// it.
    fn may_start(&self, at: usize) -> bool {
        // ret, hlt
        at == 0 || matches!(self.code[at - 1], 0xC3 | 0xF4) || PADDING.contains(&self.code[at - 1])
    }

    /// Returns whether `svma` is a table's first stub, which the others jump to. It pushes a slot
    /// and jumps through the next slot.
    fn is_first(&self, svma: u64) -> bool {
        let Some(start) = svma.checked_sub(self.svma).and_then(|at| usize::try_from(at).ok())
        else {
            return false;
        };
        let mut at = start;
        let mut pushed = None;
        for _ in 0..INSTRUCTIONS_MAX {
            let Some((effect, next)) = self.instruction(at) else { return false };
            match effect {
                Effect::PushSlot(slot) => pushed = Some(slot),
                Effect::JumpSlot(slot) => {
                    let is_next = |pushed: u64| slot.checked_sub(8) == Some(pushed);
                    return pushed.is_some_and(|pushed| is_next(pushed) && (self.is_slot)(pushed));
                }
                Effect::Jump(_) => return false,
                Effect::None | Effect::Push => {}
            }
            at = next;
        }
        false
    }

    /// Decodes an instruction that stubs use. Returns its effect and the offset of the next one.
    fn instruction(&self, at: usize) -> Option<(Effect, usize)> {
        let code = self.code.get(at..)?;
        let to = |len: usize, operand: [u8; 4]| {
            let next = self.svma + (at + len) as u64;
            next.wrapping_add_signed(i64::from(i32::from_le_bytes(operand)))
        };
        let (effect, len) = match *code {
            // endbr64
            [0xF3, 0x0F, 0x1E, 0xFA, ..] => (Effect::None, 4),
            // mov $n,%r11d
            [0x41, 0xBB, _, _, _, _, ..] => (Effect::None, 6),
            // push %r11
            [0x41, 0x53, ..] => (Effect::Push, 2),
            // push $n
            [0x68, _, _, _, _, ..] => (Effect::Push, 5),
            // push n(%rip)
            [0xFF, 0x35, a, b, c, d, ..] => (Effect::PushSlot(to(6, [a, b, c, d])), 6),
            // jmp *n(%rip), without and with bnd
            [0xFF, 0x25, a, b, c, d, ..] => (Effect::JumpSlot(to(6, [a, b, c, d])), 6),
            [0xF2, 0xFF, 0x25, a, b, c, d, ..] => (Effect::JumpSlot(to(7, [a, b, c, d])), 7),
            // jmp, without and with bnd
            [0xE9, a, b, c, d, ..] => (Effect::Jump(to(5, [a, b, c, d])), 5),
            [0xF2, 0xE9, a, b, c, d, ..] => (Effect::Jump(to(6, [a, b, c, d])), 6),
            _ => return None,
        };
        Some((effect, at + len))
    }

    /// Extends the last range to where the next stub can start: nothing runs there.
    fn with_padding(&self, mut parts: Vec<RuleRange>) -> Vec<RuleRange> {
        let Some((bytes, _)) = parts.last_mut() else { return parts };
        let is_padding = |end: u32| {
            let is_start = (self.svma + u64::from(end)).is_multiple_of(ALIGNMENT);
            !is_start && self.code.get(end as usize).is_some_and(|byte| PADDING.contains(byte))
        };
        while is_padding(bytes.end) {
            bytes.end += 1;
        }
        parts
    }
}

/// Returns a range of instructions whose CFA is `size` bytes above sp.
fn part(bytes: Range<usize>, size: i32) -> RuleRange {
    let rule = Rule { cfa_off: size, ..Rule::plain(op::SP) };
    (bytes.start as u32..bytes.end as u32, rule)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SVMA: u64 = 0x40_1000;
    /// Range of the slots, in bytes from the start of the code.
    const SLOTS: Range<u64> = 0x1000..0x2000;

    /// Appends an instruction whose operand refers to `target`, in bytes from the start of the
    /// code.
    fn to(code: &mut Vec<u8>, opcode: &[u8], target: u64) {
        let next = (code.len() + opcode.len() + 4) as u64;
        code.extend([opcode, &(target.wrapping_sub(next) as u32).to_le_bytes()].concat());
    }

    /// Returns the stubs of code at `SVMA`: their ranges, and the distance of the CFA from sp.
    fn found(code: &[u8]) -> Vec<(Range<u32>, i32)> {
        let is_slot =
            |slot: u64| SLOTS.contains(&slot.wrapping_sub(SVMA)) && slot.is_multiple_of(8);
        let parts = LinkageTable { code, svma: SVMA, is_slot: &is_slot }.stubs();
        parts.into_iter().map(|(bytes, rule)| (bytes, rule.cfa_off)).collect()
    }

    #[test]
    fn stubs_of_a_static_program_are_recognised() {
        // The end of .init, then two stubs.
        let mut code = vec![0xC3, 0, 0, 0, 0, 0, 0, 0];
        for slot in [0x1000, 0x1008] {
            to(&mut code, &[0xFF, 0x25], slot);
            code.extend([0x66, 0x90]);
        }
        assert_eq!(found(&code), [(8..16, 8), (16..24, 8)]);
        for (at, byte) in [(0, 0x90), (8, 0x90), (10, 0xF1), (11, 0)] {
            let mut other = code.clone();
            other[at] = byte;
            let expected = if at == 0 { 2 } else { 1 };
            assert_eq!(found(&other).len(), expected, "{at}: no slot, or no jump");
        }
        let mut other = code.clone();
        other[7] = 0x58;
        assert_eq!(found(&other), [(16..24, 8)], "code runs on into it");
        // endbr64; bnd jmp *slot; nop
        let mut code = Vec::new();
        for slot in [0x1000, 0x1008] {
            code.extend([0xF3, 0x0F, 0x1E, 0xFA]);
            to(&mut code, &[0xF2, 0xFF, 0x25], slot);
            code.extend([0x0F, 0x1F, 0x44, 0, 0]);
        }
        assert_eq!(found(&code), [(0..4, 8), (4..16, 8), (16..20, 8), (20..32, 8)]);
    }

    #[test]
    fn stubs_that_are_bound_later_push_a_number() {
        let mut code = Vec::new();
        to(&mut code, &[0xFF, 0x35], 0x1008);
        to(&mut code, &[0xFF, 0x25], 0x1010);
        code.extend([0x0F, 0x1F, 0x40, 0]);
        to(&mut code, &[0xFF, 0x25], 0x1018);
        code.extend([0x68, 0, 0, 0, 0]);
        to(&mut code, &[0xE9], 0);
        let first = [(0..6, 16), (6..16, 24)];
        assert_eq!(found(&code), [&first[..], &[(16..22, 8), (22..27, 8), (27..32, 16)]].concat());
        // With marked branch targets: endbr64; push $n; bnd jmp; nop
        let mut marked = code[..16].to_vec();
        marked.extend([0xF3, 0x0F, 0x1E, 0xFA, 0x68, 0, 0, 0, 0]);
        to(&mut marked, &[0xF2, 0xE9], 0);
        marked.push(0x90);
        assert_eq!(
            found(&marked),
            [&first[..], &[(16..20, 8), (20..25, 8), (25..32, 16)]].concat()
        );
        // Another slot, and a jump to another target.
        let mut other = code.clone();
        other[8] ^= 8;
        assert_eq!(found(&other).len(), 3, "no first stub, so the push belongs to none");
        let mut other = code.clone();
        other[28] ^= 8;
        assert_eq!(found(&other).len(), 3);
    }

    /// In mold's stubs the number is in a register, and the first stub pushes it.
    #[test]
    fn a_number_may_be_passed_in_a_register() {
        let mut code = vec![0xF3, 0x0F, 0x1E, 0xFA, 0x41, 0x53];
        to(&mut code, &[0xFF, 0x35], 0x1008);
        to(&mut code, &[0xFF, 0x25], 0x1010);
        code.resize(32, 0xCC);
        code.extend([0xF3, 0x0F, 0x1E, 0xFA, 0x41, 0xBB, 0, 0, 0, 0]);
        to(&mut code, &[0xFF, 0x25], 0x1018);
        let first = [(0..4, 8), (4..6, 8), (6..12, 16), (12..24, 24)];
        assert_eq!(found(&code), [&first[..], &[(32..36, 8), (36..42, 8), (42..48, 8)]].concat());
    }

    #[test]
    fn other_code_is_left_alone() {
        assert_eq!(found(&[]), []);
        assert_eq!(found(&[0xFF, 0x25, 0xFA, 0x0F, 0, 0]), [(0..6, 8)]);
        assert_eq!(found(&[0xFF, 0x25, 0xFA, 0x0F, 0]), [], "it is cut off");
        assert_eq!(found(&[0xFF, 0x25, 0xFB, 0x0F, 0, 0]), [], "a slot is aligned");
        assert_eq!(found(&[0xFF, 0x25, 0xFA, 0x7F, 0, 0]), [], "and in data");
        // push $n; jmp into itself; push %r11, over and over
        assert_eq!(found(&[0x68, 0, 0, 0, 0, 0xE9, 0xF6, 0xFF, 0xFF, 0xFF]), []);
        assert_eq!(found(&[0x41, 0x53].repeat(20)), []);
    }
}
