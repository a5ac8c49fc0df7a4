//! One step up an x86_64 stack.
//!
//! # Invariants
//! - Within one stack the CFA grows with every step, so a walk ends at the upper bound.
//! - Below `sp` only an exact frame is read, and only its red zone.
//! - Registers other than sp and fp are known in exact frames alone: the leaf, and a frame that a
//!   signal interrupted. Only rbx is followed further, through modules that say where it is.

use super::EndReason;
use super::rule::{Rule, fp_op, op};
use super::tables::RBX_LOST;
use super::walk::{Lookup, Memory};

/// Bytes below sp that belong to the running function.
const RED_ZONE: u64 = 128;
/// Largest frame that is believed where there is no unwind information.
const GUESSED_FRAME_MAX: u64 = 1 << 20;
/// Stack switches followed in one walk: rustc and other deep recursions move to new stacks.
const SWITCHES_MAX: u32 = 64;
/// Lowest address that can hold code: the first page is never mapped.
const CODE_MIN: u64 = 4096;
/// One past the highest user address with five-level page tables.
const USER_END: u64 = 1 << 56;
/// From sp in the trampoline, which is at the `ucontext`, to the first saved register.
const UCONTEXT_GREGS: u64 = 40;
/// DWARF numbers of the registers in the order of a `ucontext`: r8 to r15, rdi, rsi, rbp, rbx, rdx,
/// rax, rcx, rsp.
const UCONTEXT_ORDER: [usize; 16] = [8, 9, 10, 11, 12, 13, 14, 15, 5, 4, 6, 3, 1, 0, 2, 7];
/// DWARF number of rbx.
const RBX: u8 = 3;
/// DWARF number of the frame pointer.
pub const RBP: usize = 6;
/// DWARF number of the stack pointer.
pub const RSP: usize = 7;

/// The registers to unwind from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Registers {
    /// rip.
    pub pc: u64,
    /// rsp.
    pub sp: u64,
    /// rbp.
    pub fp: u64,
    /// All sixteen, in DWARF order: rax rdx rcx rbx rsi rdi rbp rsp r8 ... r15.
    pub gpr: [u64; 16],
}

/// A frame on the way up.
#[derive(Debug)]
pub(super) struct Frame {
    registers: Registers,
    exact: bool,
    /// rbx in a frame that is not exact, if it is known.
    rbx: Option<u64>,
    /// No stack is known at sp.
    lost: bool,
    switches: u32,
}

impl Frame {
    pub(super) fn new(registers: &Registers) -> Self {
        Self { registers: *registers, exact: true, rbx: None, lost: false, switches: SWITCHES_MAX }
    }

    pub(super) fn pc(&self) -> u64 {
        self.registers.pc
    }

    /// The pc is where the frame runs, not where a call returns to.
    pub(super) fn is_exact(&self) -> bool {
        self.exact
    }

    fn register(&self, number: u8) -> Result<u64, EndReason> {
        let value = match (self.exact, number) {
            (true, _) => self.registers.gpr.get(number as usize).copied(),
            (false, RBX) => self.rbx,
            (false, _) => None,
        };
        value.ok_or(EndReason::BadRule)
    }

    /// Lowest address that the frame may read.
    fn floor(&self, memory: &impl Memory) -> u64 {
        let red_zone = if self.exact { RED_ZONE } else { 0 };
        self.registers.sp.saturating_sub(red_zone).max(memory.bounds().0)
    }

    #[inline]
    fn enter_caller(&mut self, cfa: u64, fp: u64, pc: u64) -> Result<(), EndReason> {
        if pc == 0 {
            return Err(EndReason::Root);
        }
        if !(CODE_MIN..USER_END).contains(&pc) {
            return Err(EndReason::Range);
        }
        self.registers.sp = cfa;
        self.registers.fp = fp;
        self.registers.pc = pc;
        self.exact = false;
        self.rbx = None;
        Ok(())
    }
}

/// Moves `frame` to its caller.
#[inline]
pub(super) fn step(
    frame: &mut Frame,
    lookup: &mut Lookup,
    memory: &mut impl Memory,
) -> Result<(), EndReason> {
    let look = frame.pc().wrapping_sub(u64::from(!frame.exact));
    let (rule, rbx) = lookup.rule(look)?;
    let (lo, hi) = memory.bounds();
    let Registers { sp, fp, .. } = frame.registers;
    if frame.lost || sp < lo || sp > hi {
        return Err(if rule.op == op::STOP { EndReason::Root } else { EndReason::Range });
    }
    let add = |base: u64| base.wrapping_add_signed(i64::from(rule.cfa_off));
    let floor = frame.floor(memory);
    let plt = |threshold: u64| add(sp).wrapping_add(u64::from(look & 15 >= threshold) << 3);
    let cfa = match rule.op {
        op::SP => add(sp),
        op::FP | op::FP_STD => add(fp),
        op::DEREF_SP => word(memory, floor, add(sp))?,
        op::DEREF_FP => word(memory, floor, add(fp))?,
        op::DEREF_SP_8 => word(memory, floor, add(sp))?.wrapping_add(8),
        op::DEREF_FP_8 => word(memory, floor, add(fp))?.wrapping_add(8),
        op::PLT_11 => plt(11),
        op::PLT_10 => plt(10),
        op::PLT_9 => plt(9),
        op::SIGNAL => return return_from_signal(frame, memory),
        op::STOP => return Err(EndReason::Root),
        op::GAP_FP => return cross_gap(frame, false, lookup, memory),
        op::GAP_GUESS => return cross_gap(frame, true, lookup, memory),
        op if op.wrapping_sub(op::REG_LEAF) < op::REGISTERS => {
            add(frame.register(op.wrapping_sub(op::REG_LEAF))?)
        }
        op if op.wrapping_sub(op::RA_REG_LEAF) < op::REGISTERS && frame.exact => {
            let pc = frame.register(op.wrapping_sub(op::RA_REG_LEAF))?;
            return leave_through_register(frame, rule, add(sp), pc, memory);
        }
        _ => return Err(EndReason::BadRule),
    };
    leave(frame, rule, rbx, cfa, memory)
}

/// One stack word at or above `floor` and below the upper bound.
#[inline]
fn word(memory: &mut impl Memory, floor: u64, avma: u64) -> Result<u64, EndReason> {
    let (lo, hi) = memory.bounds();
    if avma < floor || avma < lo || avma & 7 != 0 || hi < 8 || avma > hi.wrapping_sub(8) {
        return Err(EndReason::Range);
    }
    memory.load(avma).ok_or(EndReason::Unreadable)
}

/// Returns to the caller whose CFA is known; its pc is under the CFA.
#[inline]
fn leave(
    frame: &mut Frame,
    rule: Rule,
    rbx: i16,
    cfa: u64,
    memory: &mut impl Memory,
) -> Result<(), EndReason> {
    let Registers { sp, fp, .. } = frame.registers;
    let mut floor = frame.floor(memory);
    let offset = i64::from(rule.fp_off).wrapping_mul(8);
    let saved_fp = fp.wrapping_add_signed(offset);
    let at_fp = match rule.fp_op {
        fp_op::AT_FP if frame.exact && (saved_fp < floor || saved_fp >= cfa) => Some(fp),
        fp_op::AT_FP => Some(word(memory, floor, saved_fp)?),
        _ => None,
    };
    let (_, hi) = memory.bounds();
    if cfa <= sp || cfa > hi {
        switch_stack(frame, rule.op, cfa, memory)?;
        floor = memory.bounds().0;
    }
    let fp = match (rule.fp_op, at_fp) {
        (fp_op::AT_CFA, _) => word(memory, floor, cfa.wrapping_add_signed(offset))?,
        (fp_op::CLEAR, _) => 0,
        (_, Some(value)) => value,
        _ => fp,
    };
    let pc = word(memory, floor, cfa.wrapping_sub(8))?;
    let caller_rbx = match rbx {
        RBX_LOST => None,
        0 => frame.register(RBX).ok(),
        slot => word(memory, floor, cfa.wrapping_add_signed(i64::from(slot).wrapping_mul(8))).ok(),
    };
    frame.enter_caller(cfa, fp, pc)?;
    frame.rbx = caller_rbx;
    Ok(())
}

/// Moves to the stack that the CFA lies on, where the rule can lead to another one: a function that
/// changed sp keeps its frame through fp or through a saved sp.
#[cold]
fn switch_stack(
    frame: &mut Frame,
    op: u8,
    cfa: u64,
    memory: &mut impl Memory,
) -> Result<(), EndReason> {
    let (lo, hi) = memory.bounds();
    let elsewhere = cfa <= lo || cfa > hi;
    let can_switch = matches!(op, op::FP | op::FP_STD | op::DEREF_SP..=op::DEREF_FP_8);
    let left = frame.switches.checked_sub(1).ok_or(EndReason::Range)?;
    frame.switches = left;
    if elsewhere && can_switch && cfa > 8 && memory.rebound(cfa.wrapping_sub(8)) {
        Ok(())
    } else {
        Err(EndReason::Range)
    }
}

/// Returns to a caller whose address is still, or again, in a register.
fn leave_through_register(
    frame: &mut Frame,
    rule: Rule,
    cfa: u64,
    pc: u64,
    memory: &mut impl Memory,
) -> Result<(), EndReason> {
    let fp = match rule.fp_op {
        fp_op::SAME => frame.registers.fp,
        _ => return Err(EndReason::BadRule),
    };
    // The address may have been popped: then the CFA is sp itself. No second step is like this
    // one, which only an exact frame can take.
    if cfa < frame.registers.sp || cfa > memory.bounds().1 {
        return Err(EndReason::Range);
    }
    frame.enter_caller(cfa, fp, pc)
}

/// Takes all registers from the `ucontext` at sp.
#[cold]
fn return_from_signal(frame: &mut Frame, memory: &mut impl Memory) -> Result<(), EndReason> {
    let sp = frame.registers.sp;
    let mut at = sp.wrapping_add(UCONTEXT_GREGS);
    let mut registers = Registers::default();
    for number in UCONTEXT_ORDER {
        let value = word(memory, sp, at)?;
        if let Some(register) = registers.gpr.get_mut(number) {
            *register = value;
        }
        at = at.wrapping_add(8);
    }
    registers.pc = word(memory, sp, at)?;
    registers.fp = registers.gpr.get(RBP).copied().unwrap_or(0);
    registers.sp = registers.gpr.get(RSP).copied().unwrap_or(0);
    if registers.pc >= USER_END {
        return Err(EndReason::Range);
    }
    frame.lost = !memory.rebound(registers.sp);
    frame.registers = registers;
    frame.exact = true;
    Ok(())
}

/// Leaves code without unwind information, where the result is plausible.
#[cold]
fn cross_gap(
    frame: &mut Frame,
    guess: bool,
    lookup: &Lookup,
    memory: &mut impl Memory,
) -> Result<(), EndReason> {
    if frame.exact
        && let Some((cfa, fp, pc)) = leaf_return(frame, guess, lookup, memory)
    {
        return frame.enter_caller(cfa, fp, pc);
    }
    let Registers { sp, fp, .. } = frame.registers;
    if fp == 0 && !frame.exact {
        // The ABI marks the outermost frame with a frame pointer of zero.
        return Err(EndReason::Root);
    }
    let plausible = fp & 7 == 0 && fp >= sp && fp.wrapping_sub(sp) <= GUESSED_FRAME_MAX;
    if !plausible {
        return Err(EndReason::Gap);
    }
    let in_gap = |_| EndReason::Gap;
    let caller_fp = word(memory, sp, fp).map_err(in_gap)?;
    let pc = word(memory, sp, fp.wrapping_add(8)).map_err(in_gap)?;
    if pc != 0 && !lookup.is_code(pc.wrapping_sub(1)) {
        return Err(EndReason::Gap);
    }
    frame.enter_caller(fp.wrapping_add(16), caller_fp, pc)
}

/// The caller's (cfa, fp, pc) of a leaf that has not yet, or no longer, a frame of its own: told by
/// the instruction that it is about to run or, in hand-written code, by a return address at sp. The
/// first instruction of a signal's handler is told by the trampoline that it returns to.
fn leaf_return(
    frame: &Frame,
    guess: bool,
    lookup: &Lookup,
    memory: &mut impl Memory,
) -> Option<(u64, u64, u64)> {
    let Registers { pc, sp, fp, .. } = frame.registers;
    let mut load = |avma| word(memory, sp, avma).ok();
    let (first, second) = (load(sp)?, load(sp.wrapping_add(8)));
    if lookup.is_trampoline(first) {
        return Some((sp.wrapping_add(8), fp, first));
    }
    let is_code = |avma: u64| lookup.is_code(avma.wrapping_sub(1));
    match memory.load_code(pc).map(u64::to_le_bytes) {
        // push %rbp, ret, repz ret, endbr64
        Some([0x55 | 0xC3, ..] | [0xF3, 0xC3, ..] | [0xF3, 0x0F, 0x1E, 0xFA, ..])
            if is_code(first) =>
        {
            return Some((sp.wrapping_add(8), fp, first));
        }
        // mov %rsp,%rbp in both encodings
        Some([0x48, 0x89, 0xE5, ..] | [0x48, 0x8B, 0xEC, ..]) => {
            let caller = second.filter(|&pc| is_code(pc))?;
            return Some((sp.wrapping_add(16), first, caller));
        }
        // add $n,%rsp; ret
        Some([0x48, 0x83, 0xC4, n, 0xC3, ..]) => {
            let slot = sp.wrapping_add(u64::from(n));
            let caller = word(memory, sp, slot).ok().filter(|&pc| is_code(pc))?;
            return Some((slot.wrapping_add(8), fp, caller));
        }
        _ => {}
    }
    let before = first.wrapping_sub(8);
    let called = guess && is_code(first) && is_after_call(memory.load_code(before)?.to_le_bytes());
    called.then_some((sp.wrapping_add(8), fp, first))
}

/// The eight bytes end with a call instruction.
fn is_after_call(before: [u8; 8]) -> bool {
    // `call *operand` is FF /2; how long it is follows from mod and rm of its second byte.
    let indirect = |opcode: u8, modrm: u8, length: usize| {
        let (mode, rm) = (modrm >> 6, modrm & 7);
        let expected = match (mode, rm) {
            (0, 5) => 6,
            (0, 4) => 3,
            (0 | 3, _) => 2,
            (1, 4) => 4,
            (1, _) => 3,
            (_, 4) => 7,
            _ => 6,
        };
        let long_sib = (mode, rm, length) == (0, 4, 7);
        opcode == 0xFF && modrm >> 3 & 7 == 2 && (length == expected || long_sib)
    };
    let [_, b7, b6, b5, b4, b3, b2, b1] = before;
    b5 == 0xE8
        || indirect(b2, b1, 2)
        || indirect(b3, b2, 3)
        || indirect(b4, b3, 4)
        || indirect(b6, b5, 6)
        || indirect(b7, b6, 7)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(call: &[u8], expected: bool) {
        let mut before = [0x90; 8];
        before[8 - call.len()..].copy_from_slice(call);
        assert_eq!(is_after_call(before), expected, "{call:x?}");
    }

    #[test]
    fn calls_are_told_from_other_instructions() {
        check(&[0xE8, 1, 2, 3, 4], true);
        check(&[0xFF, 0xD0], true); // *%rax
        check(&[0x41, 0xFF, 0xD4], true); // *%r12
        check(&[0xFF, 0x13], true); // *(%rbx)
        check(&[0xFF, 0x14, 0x24], true); // *(%rsp)
        check(&[0xFF, 0x50, 0x08], true); // *8(%rax)
        check(&[0xFF, 0x54, 0x24, 0x08], true); // *8(%rsp)
        check(&[0xFF, 0x15, 1, 2, 3, 4], true); // *0x4030201(%rip)
        check(&[0xFF, 0x90, 1, 2, 3, 4], true); // *0x4030201(%rax)
        check(&[0xFF, 0x94, 0x24, 1, 2, 3, 4], true); // *0x4030201(%rsp)
        check(&[0xFF, 0x14, 0xC5, 1, 2, 3, 4], true); // *0x4030201(,%rax,8)
        check(&[0xFF, 0xE0], false); // jmp *%rax
        check(&[0xFF, 0x25, 1, 2, 3, 4], false); // jmp *0x4030201(%rip)
        check(&[0xE9, 1, 2, 3, 4], false); // jmp
        check(&[0x90], false);
    }

    #[test]
    fn ucontext_order_names_every_register_once() {
        let mut seen = UCONTEXT_ORDER;
        seen.sort_unstable();
        assert_eq!(seen, core::array::from_fn(|number| number));
    }
}
