//! A step up an aarch64 stack.
//!
//! The fields of a [`Rule`] on aarch64: the CFA is sp + o ([`op::SP`]) or x29 + o ([`op::FP`]).
//! [`ra_op`], in the position of `fp_op`, says where the return address and the caller's x29 are.
//!
//! # Invariants
//! - Within one stack sp grows with every step, so a walk ends at the upper bound. A walk switches
//!   stacks a bounded number of times.
//! - Nothing below sp is read: aarch64 has no red zone.
//! - The link register is known only in exact frames: the leaf, and a frame that a signal
//!   interrupted.
//! - A step that uses only the frame record leaves sp unknown, because compilers do not agree where
//!   in a frame the record is. The walk knows sp again in a frame whose rule says where its own
//!   record is.

use super::EndReason;
use super::rule::{Rule, op, ra_op};
use super::walk::{Climb, Lookup, Machine, Memory, word};

/// Maximum number of stack switches followed in one walk.
const SWITCHES_MAX: u32 = 64;
/// Lowest address that can hold code: the first page is never mapped.
const CODE_MIN: u64 = 4096;
/// One past the highest user address, with the largest pages and addresses.
const USER_END: u64 = 1 << 52;
/// Distance from sp in the trampoline to the first saved register, across `siginfo` and the start
/// of the `ucontext`. The saved registers are 31 general ones, sp and pc.
const SIGNAL_REGS: u64 = 312;
/// Indices of the frame pointer, the link register, sp and pc among the saved registers.
const SAVED: [u64; 4] = [29, 30, 31, 32];
/// Largest plausible frame in code without unwind information, in bytes.
const GUESSED_FRAME_MAX: u64 = 1 << 20;

/// The registers from which the unwinding starts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Registers {
    /// The program counter.
    pub pc: u64,
    /// The stack pointer.
    pub sp: u64,
    /// x29.
    pub fp: u64,
    /// x30.
    pub lr: u64,
    /// The bits of a code address in which the processor stores a signature, as in ptrace's
    /// `NT_ARM_PAC_MASK`. 0 if return addresses are not signed.
    pub pac_mask: u64,
}

/// A frame of the walk.
#[derive(Debug)]
pub struct Frame {
    registers: Registers,
    exact: bool,
    /// Whether sp is only a lower bound of the real sp.
    sp_is_lower_bound: bool,
    /// Whether no stack is known at sp.
    stack_unknown: bool,
    switches: u32,
}

impl Machine for Registers {
    type Frame = Frame;

    fn leaf(&self) -> Frame {
        let registers = Registers { pc: self.pc & !self.pac_mask, ..*self };
        Frame {
            registers,
            exact: true,
            sp_is_lower_bound: false,
            stack_unknown: false,
            switches: SWITCHES_MAX,
        }
    }
}

impl Climb for Frame {
    fn pc(&self) -> u64 {
        self.registers.pc
    }

    fn sp(&self) -> u64 {
        self.registers.sp
    }

    fn is_exact(&self) -> bool {
        self.exact
    }

    fn step(&mut self, lookup: &mut Lookup, memory: &mut impl Memory) -> Result<(), EndReason> {
        let lookup_pc = self.registers.pc.wrapping_sub(u64::from(!self.exact));
        let (rule, _) = lookup.rule(lookup_pc, memory)?;
        let (lo, hi) = memory.bounds();
        let Registers { sp, fp, .. } = self.registers;
        if self.stack_unknown || sp < lo || sp > hi {
            return Err(if rule.op == op::STOP { EndReason::Root } else { EndReason::Range });
        }
        let offset = i64::from(rule.cfa_off);
        match rule.op {
            op::SP if self.sp_is_lower_bound => self.leave(rule, record_cfa(fp, rule)?, memory),
            op::SP => self.leave(rule, sp.wrapping_add_signed(offset), memory),
            op::FP => self.leave(rule, fp.wrapping_add_signed(offset), memory),
            op::SIGNAL => self.return_from_signal(memory),
            op::STOP => Err(EndReason::Root),
            op::GAP_FP | op::GAP_GUESS => self.cross_gap(lookup, memory),
            _ => Err(EndReason::BadRule),
        }
    }
}

/// Returns the CFA of a frame to whose record x29 points.
fn record_cfa(fp: u64, rule: Rule) -> Result<u64, EndReason> {
    match rule.fp_op {
        ra_op::PAIR => Ok(fp.wrapping_sub(slot(rule))),
        _ => Err(EndReason::BadRule),
    }
}

/// Returns the offset from the CFA to the location of the saved values.
fn slot(rule: Rule) -> u64 {
    i64::from(rule.fp_off).wrapping_mul(8) as u64
}

impl Frame {
    /// Moves to the caller, whose CFA is known.
    fn leave(&mut self, rule: Rule, cfa: u64, memory: &mut impl Memory) -> Result<(), EndReason> {
        let Registers { sp, fp, lr, .. } = self.registers;
        if !self.exact && matches!(rule.fp_op, ra_op::LINK | ra_op::FP_ONLY) {
            return Err(EndReason::BadRule);
        }
        let is_above = cfa > sp || cfa == sp && self.exact;
        let mut floor = sp;
        if !is_above || cfa > memory.bounds().1 {
            self.switch_stack(rule.op, cfa, memory)?;
            floor = memory.bounds().0;
        }
        let at = cfa.wrapping_add(slot(rule));
        let mut load = |avma: u64| word(memory, floor, avma);
        let (fp, pc) = match rule.fp_op {
            // The registers have their values from the call, still or again.
            ra_op::LINK => (fp, lr),
            ra_op::FP_ONLY => (load(at)?, lr),
            ra_op::PAIR => (load(at)?, load(at.wrapping_add(8))?),
            ra_op::RA_ONLY => (fp, load(at)?),
            separate if separate >= ra_op::SEPARATE => {
                (load(at.wrapping_add_signed(ra_op::fp_distance(separate)))?, load(at)?)
            }
            _ => return Err(EndReason::BadRule),
        };
        self.enter_caller(cfa, fp, pc)
    }

    fn enter_caller(&mut self, sp: u64, fp: u64, pc: u64) -> Result<(), EndReason> {
        let pc = pc & !self.registers.pac_mask;
        if pc == 0 {
            // Unwind information is right where a function has called another one. Elsewhere it may
            // name a location that merely contains a zero.
            return Err(if self.exact { EndReason::Unproven } else { EndReason::Root });
        }
        if !(CODE_MIN..USER_END).contains(&pc) {
            return Err(EndReason::Range);
        }
        self.registers = Registers { pc, sp, fp, lr: 0, pac_mask: self.registers.pac_mask };
        self.exact = false;
        self.sp_is_lower_bound = false;
        Ok(())
    }

    /// Moves to the stack that contains the CFA. A function that changed sp finds its frame through
    /// x29.
    #[cold]
    fn switch_stack(
        &mut self,
        op: u8,
        cfa: u64,
        memory: &mut impl Memory,
    ) -> Result<(), EndReason> {
        let (lo, hi) = memory.bounds();
        self.switches = self.switches.checked_sub(1).ok_or(EndReason::Range)?;
        let is_elsewhere = cfa <= lo || cfa > hi;
        match op == op::FP && is_elsewhere && memory.rebound(cfa.wrapping_sub(8)) {
            true => Ok(()),
            false => Err(EndReason::Range),
        }
    }

    /// Loads the registers from the `ucontext` above sp.
    #[cold]
    fn return_from_signal(&mut self, memory: &mut impl Memory) -> Result<(), EndReason> {
        let sp = self.registers.sp;
        if self.sp_is_lower_bound {
            return Err(EndReason::BadRule);
        }
        let start = sp.wrapping_add(SIGNAL_REGS);
        let mut load = |number: u64| word(memory, sp, start.wrapping_add(number << 3));
        let [fp, lr, sp, pc] = SAVED;
        let [fp, lr, sp, pc] = [load(fp)?, load(lr)?, load(sp)?, load(pc)?];
        if pc >= USER_END {
            return Err(EndReason::Range);
        }
        self.switches = self.switches.checked_sub(1).ok_or(EndReason::Range)?;
        self.stack_unknown = !memory.rebound(sp);
        self.registers = Registers { pc, sp, fp, lr, pac_mask: self.registers.pac_mask };
        self.exact = true;
        self.sp_is_lower_bound = false;
        Ok(())
    }

    /// Leaves code without unwind information. An exact frame may be a leaf or an entry of a
    /// linkage table, which keep no record. All other frames are left through the record to which
    /// x29 points.
    #[cold]
    fn cross_gap(&mut self, lookup: &Lookup, memory: &mut impl Memory) -> Result<(), EndReason> {
        let Registers { pc, sp, fp, lr, pac_mask } = self.registers;
        let lr = lr & !pac_mask;
        let call = lr.wrapping_sub(1);
        // After a call made by the function, the register points back into the function itself.
        if self.exact && lookup.is_code(call) && !lookup.is_one_row(call, pc) {
            let keeps_sp = memory.load_code(pc).is_some_and(is_stub);
            self.enter_caller(sp, fp, lr)?;
            self.sp_is_lower_bound = !keeps_sp;
            return Ok(());
        }
        if fp == 0 && !self.exact {
            // The ABI marks the outermost frame with an x29 of zero. But generated code may use the
            // register for something else.
            return Err(EndReason::Unproven);
        }
        if fp & 7 != 0 || fp < sp || fp.wrapping_sub(sp) > GUESSED_FRAME_MAX {
            return Err(EndReason::Gap);
        }
        let in_gap = |_| EndReason::Gap;
        let caller_fp = word(memory, sp, fp).map_err(in_gap)?;
        let ra = word(memory, sp, fp.wrapping_add(8)).map_err(in_gap)? & !pac_mask;
        if ra == 0 {
            return Err(EndReason::Unproven);
        }
        if !lookup.is_code(ra.wrapping_sub(1)) {
            return Err(EndReason::Gap);
        }
        self.enter_caller(fp.wrapping_add(16), caller_fp, ra)?;
        self.sp_is_lower_bound = true;
        Ok(())
    }
}

/// Whether the code is an instruction of a linkage table's entry, which does not touch the stack:
/// `adrp x16`, `ldr x17`, `add x16`, `br x17`, or a `bti c` before them.
fn is_stub(code: u64) -> bool {
    let instruction = code as u32;
    instruction & 0x9F00_001F == 0x9000_0010
        || instruction & 0xFFC0_03FF == 0xF940_0211
        || instruction & 0xFFC0_03FF == 0x9100_0210
        || instruction == 0xD61F_0220
        || instruction == 0xD503_245F
}
