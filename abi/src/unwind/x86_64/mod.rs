//! A step up an x86_64 stack.
//!
//! # Invariants
//! - Within one stack the CFA grows with every step, so a walk ends at the upper bound. A walk
//!   switches stacks a bounded number of times.
//! - Below `sp`, only an exact frame is read, and only in its red zone.
//! - Registers other than sp and fp are known only in the leaf and in a frame that a signal
//!   interrupted. Only rbx is followed further, through modules that say where it is saved.

mod call;
mod edge;
mod gap;
mod hotspot;
mod luajit;
mod switch;

use super::EndReason;
use super::rule::{Rule, fp_op, method, op};
use super::tables::RBX_LOST;
use super::walk::{Climb, Lookup, Machine, Memory, word};
use gap::cross_gap;

/// Number of bytes below sp that belong to the running function.
const RED_ZONE: u64 = 128;
/// Maximum number of stack switches followed in one walk. rustc and other deep recursions move to
/// new stacks.
const SWITCHES_MAX: u32 = 64;
/// Lowest address that can hold code: the first page is never mapped.
const CODE_MIN: u64 = 4096;
/// One past the highest user address with five-level page tables.
const USER_END: u64 = 1 << 56;
/// Distance from sp in the trampoline, which points to the `ucontext`, to the first saved register.
const UCONTEXT_GREGS: u64 = 40;
/// DWARF numbers of the registers in the order of a `ucontext`: r8 to r15, rdi, rsi, rbp, rbx, rdx,
/// rax, rcx, rsp.
const UCONTEXT_ORDER: [usize; 16] = [8, 9, 10, 11, 12, 13, 14, 15, 5, 4, 6, 3, 1, 0, 2, 7];
/// DWARF number of rbx.
const RBX: usize = 3;
/// DWARF number of the frame pointer.
pub const RBP: usize = 6;
/// DWARF number of the stack pointer.
pub const RSP: usize = 7;

/// The registers from which the unwinding starts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Registers {
    /// rip.
    pub pc: u64,
    /// rsp.
    pub sp: u64,
    /// rbp.
    pub fp: u64,
    /// All sixteen general registers, in DWARF order: rax rdx rcx rbx rsi rdi rbp rsp r8 ... r15.
    pub gpr: [u64; 16],
}

impl Registers {
    /// Returns the registers in which interpreters keep their frames and their positions: r14, r15,
    /// rdx, rbx and rbp.
    pub fn of_interpreter(&self) -> [u64; 5] {
        let [_, rdx, _, rbx, _, _, rbp, _, .., r14, r15] = self.gpr;
        [r14, r15, rdx, rbx, rbp]
    }
}

/// A frame of the walk.
#[derive(Debug)]
pub struct Frame {
    registers: Registers,
    exact: bool,
    /// Whether all general registers are known.
    has_all_registers: bool,
    /// rbx in a frame that is not exact, if it is known.
    rbx: Option<u64>,
    /// Whether sp and fp come from a frame record in code without unwind information.
    from_record: bool,
    /// Whether a frame below was left by its frame record in code without unwind information.
    from_generated: bool,
    /// Whether no stack is known at sp.
    stack_unknown: bool,
    switches: u32,
}

impl Machine for Registers {
    type Frame = Frame;

    fn leaf(&self) -> Frame {
        Frame {
            registers: *self,
            exact: true,
            has_all_registers: true,
            rbx: None,
            from_record: false,
            from_generated: false,
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

    #[inline]
    fn step(&mut self, lookup: &mut Lookup, memory: &mut impl Memory) -> Result<(), EndReason> {
        step(self, lookup, memory)
    }
}

impl Frame {
    fn register(&self, number: u8) -> Result<u64, EndReason> {
        let value = match number as usize {
            any if self.has_all_registers => self.registers.gpr.get(any).copied(),
            RSP if self.exact => Some(self.registers.sp),
            RBP if self.exact => Some(self.registers.fp),
            RBX => self.rbx,
            _ => None,
        };
        value.ok_or(EndReason::BadRule)
    }

    /// Counts a stack switch, and fails after the maximum.
    fn count_switch(&mut self) -> Result<(), EndReason> {
        self.switches = self.switches.checked_sub(1).ok_or(EndReason::Range)?;
        Ok(())
    }

    /// Returns the lowest address that the frame may read.
    fn floor(&self, memory: &impl Memory) -> u64 {
        let sp = self.registers.sp;
        let floor = if self.exact { red_zone(sp) } else { sp };
        floor.max(memory.bounds().0)
    }

    /// Returns why the walk ends at a return address of zero, with this frame pointer.
    #[cold]
    fn end_at_zero(&self, fp: u64) -> EndReason {
        match fp {
            // Code that starts a thread or a fiber clears both, and the first function of a stack
            // returns to the zero. Unwind information is right where a function has called another
            // one. Elsewhere it may name a location that merely contains a zero, and the frame
            // pointer is a general register.
            0 if self.exact || self.from_generated => EndReason::Unproven,
            0 => EndReason::Root,
            // The contents of a location that wrong unwind information names.
            _ => EndReason::Range,
        }
    }

    #[inline]
    fn enter_caller(&mut self, cfa: u64, fp: u64, pc: u64) -> Result<(), EndReason> {
        if pc == 0 {
            return Err(self.end_at_zero(fp));
        }
        if !(CODE_MIN..USER_END).contains(&pc) {
            return Err(EndReason::Range);
        }
        self.registers.sp = cfa;
        self.registers.fp = fp;
        self.registers.pc = pc;
        (self.exact, self.has_all_registers) = (false, false);
        (self.rbx, self.from_record) = (None, false);
        Ok(())
    }
}

/// Returns the start of the running function's memory below sp.
fn red_zone(sp: u64) -> u64 {
    sp.saturating_sub(RED_ZONE)
}

/// Moves `frame` to its caller.
#[inline]
fn step(frame: &mut Frame, lookup: &mut Lookup, memory: &mut impl Memory) -> Result<(), EndReason> {
    let lookup_pc = frame.pc().wrapping_sub(u64::from(!frame.exact));
    let (rule, rbx) = match lookup.rule(lookup_pc, memory) {
        Ok(found) => found,
        Err(end) => return luajit::leave(frame, lookup, memory).unwrap_or(Err(end)),
    };
    let (lo, hi) = memory.bounds();
    let Registers { sp, fp, .. } = frame.registers;
    if frame.stack_unknown || sp < lo || sp > hi {
        return Err(if rule.op == op::STOP { EndReason::Root } else { EndReason::Range });
    }
    let add = |base: u64| base.wrapping_add_signed(i64::from(rule.cfa_off));
    let floor = frame.floor(memory);
    let plt = |threshold: u64| add(sp).wrapping_add(u64::from(lookup_pc & 15 >= threshold) << 3);
    let cfa = match rule.op {
        op::SP => add(sp),
        op::FP | op::FP_STD | op::FP_SWITCH => add(fp),
        op::DEREF_SP => word(memory, floor, add(sp))?,
        op::DEREF_FP => word(memory, floor, add(fp))?,
        op::DEREF_SP_8 => word(memory, floor, add(sp))?.wrapping_add(8),
        op::DEREF_FP_8 => word(memory, floor, add(fp))?.wrapping_add(8),
        op::DEREF_SP_ADD => {
            let [low, middle, high, above] = rule.cfa_off.to_le_bytes();
            let at = sp.wrapping_add(u64::from(u32::from_le_bytes([low, middle, high, 0])));
            word(memory, floor, at)?.wrapping_add(u64::from(above) << 3)
        }
        op::PLT_11 => plt(11),
        op::PLT_10 => plt(10),
        op::PLT_9 => plt(9),
        op::DEPTH => switch::cfa_below_end(rule, (sp, floor), memory)?,
        op::SP_INJECTED => return leave_injected(frame, rule, add(sp), memory),
        op::FP_CALLER => return leave_to_caller(frame, rule, lookup, memory),
        op::SIGNAL => return return_from_signal(frame, memory),
        op::FROM_REGISTERS | op::FROM_CONTEXT if frame.exact => {
            return resume(frame, rule, lookup, memory);
        }
        op::INTERPRETED | op::DEOPTIMIZED | op::RETURN_BARRIER | op::RETURN_BELOW => {
            return hotspot::leave(frame, rule, lookup, memory);
        }
        op::BAD => return luajit::leave_exit(frame, lookup_pc, lookup, memory),
        op::STOP => return Err(EndReason::Root),
        op::STOP_CALLED if !frame.exact => return Err(EndReason::Root),
        op::GAP_FP | op::GAP_GUESS => return cross_gap(frame, rule, lookup, memory),
        op if op.wrapping_sub(op::REG_LEAF) < op::REGISTERS => {
            add(frame.register(op.wrapping_sub(op::REG_LEAF))?)
        }
        op if op.wrapping_sub(op::INDEXED_LEAF) < op::REGISTERS && frame.exact => {
            let index = frame.register(op.wrapping_sub(op::INDEXED_LEAF))?;
            word(memory, floor, add(sp).wrapping_add(index.wrapping_mul(8)))?.wrapping_add(8)
        }
        op if op.wrapping_sub(op::RA_REG_LEAF) < op::REGISTERS && frame.exact => {
            let pc = frame.register(op.wrapping_sub(op::RA_REG_LEAF))?;
            return leave_through_register(frame, rule, add(sp), pc, memory);
        }
        op if op.wrapping_sub(op::SENDER_LEAF) < op::REGISTERS && frame.exact => {
            let sender = frame.register(op.wrapping_sub(op::SENDER_LEAF))?;
            return hotspot::leave_to_sender(frame, rule, sender, lookup, memory);
        }
        _ => return Err(EndReason::BadRule),
    };
    leave(frame, rule, rbx, cfa, memory)
}

/// Moves to the caller, whose CFA is known. The return address is just below the CFA.
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
    // A value from the stack that the step leaves, if the caller is on another stack.
    let on_left_stack = match rule.fp_op {
        fp_op::AT_SP => Some(word(memory, floor, sp.wrapping_add_signed(offset))?),
        fp_op::AT_FP if frame.exact && (saved_fp < floor || saved_fp >= cfa) => Some(fp),
        fp_op::AT_FP => Some(word(memory, floor, saved_fp)?),
        _ => None,
    };
    let (_, hi) = memory.bounds();
    if cfa <= sp || cfa > hi {
        switch_stack(frame, rule.op, cfa, memory)?;
        floor = memory.bounds().0;
    }
    let at_cfa = cfa.wrapping_add_signed(offset);
    let fp = match (rule.fp_op, on_left_stack) {
        // The frame pointer is popped already, and its slot is below the readable bounds. The
        // register has the caller's value again.
        (fp_op::AT_CFA, _)
            if frame.exact && at_cfa < memory.bounds().0 && at_cfa >= red_zone(sp) =>
        {
            fp
        }
        (fp_op::AT_CFA, _) => word(memory, floor, at_cfa)?,
        (fp_op::CLEAR, _) => 0,
        (_, Some(value)) => value,
        _ => fp,
    };
    let pc = word(memory, floor, cfa.wrapping_sub(8))?;
    let caller_rbx = match rbx {
        RBX_LOST => None,
        0 => frame.register(RBX as u8).ok(),
        slot => word(memory, floor, cfa.wrapping_add_signed(i64::from(slot).wrapping_mul(8))).ok(),
    };
    frame.enter_caller(cfa, fp, pc)?;
    frame.rbx = caller_rbx;
    Ok(())
}

/// Moves to the instruction at which the caller was interrupted. Of its registers only sp and fp
/// are known.
#[cold]
fn leave_injected(
    frame: &mut Frame,
    rule: Rule,
    cfa: u64,
    memory: &mut impl Memory,
) -> Result<(), EndReason> {
    leave(frame, rule, RBX_LOST, cfa, memory)?;
    frame.exact = true;
    Ok(())
}

/// Moves to the caller of a function without a frame, on the stack to which fp points.
#[cold]
fn leave_to_caller(
    frame: &mut Frame,
    rule: Rule,
    lookup: &Lookup,
    memory: &mut impl Memory,
) -> Result<(), EndReason> {
    let fp = frame.registers.fp;
    // The search takes hundreds of loads, successful or not, so it counts as a switch.
    frame.count_switch()?;
    match switch::find_caller(frame, rule, lookup, memory) {
        Some((slot, pc)) => frame.enter_caller(slot.wrapping_add(8), fp, pc),
        None => leave(frame, Rule::FP_SWITCH, RBX_LOST, fp.wrapping_add(16), memory),
    }
}

/// Moves to the stack that contains the CFA, if the rule can lead to another stack. A function that
/// changed sp finds its frame through fp or a saved sp.
#[cold]
fn switch_stack(
    frame: &mut Frame,
    op: u8,
    cfa: u64,
    memory: &mut impl Memory,
) -> Result<(), EndReason> {
    let (lo, hi) = memory.bounds();
    // Go's stacks are side by side in its heap, which is one range.
    let elsewhere = cfa <= lo || cfa > hi || matches!(op, op::FP_SWITCH | op::DEPTH);
    let can_switch = matches!(
        op,
        op::FP | op::FP_STD | op::FP_SWITCH | op::DEPTH | op::DEREF_SP_ADD | op::DEREF_SP
            ..=op::DEREF_FP_8
    );
    frame.count_switch()?;
    if elsewhere && can_switch && cfa > 8 && memory.rebound(cfa.wrapping_sub(8)) {
        Ok(())
    } else {
        Err(EndReason::Range)
    }
}

/// Moves to a caller whose return address is in a register, still or again.
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
    // If the address was popped, the CFA is sp itself. That step cannot repeat, because only an
    // exact frame can take it.
    if cfa < frame.registers.sp || cfa > memory.bounds().1 {
        return Err(EndReason::Range);
    }
    frame.enter_caller(cfa, fp, pc)
}

/// Moves to the code to which the frame is about to jump, on whichever stack that runs.
#[cold]
fn resume(
    frame: &mut Frame,
    rule: Rule,
    lookup: &mut Lookup,
    memory: &mut impl Memory,
) -> Result<(), EndReason> {
    let [base, locations @ ..] = rule.cfa_off.to_le_bytes();
    let [sp, fp, pc] = if rule.op == op::FROM_REGISTERS {
        if base != method::NONE {
            hotspot::identify(frame, base, lookup, memory);
        }
        let [sp, fp, pc] = locations;
        [frame.register(sp)?, frame.register(fp)?, frame.register(pc)?]
    } else {
        let context = frame.register(base)?;
        if !memory.rebound(context) {
            return Err(EndReason::Unreadable);
        }
        let mut load = |slot| word(memory, context, context.wrapping_add(u64::from(slot) << 3));
        let [sp, fp, pc] = locations;
        [load(sp)?, load(fp)?, load(pc)?]
    };
    frame.count_switch()?;
    if !memory.rebound(sp) {
        return Err(EndReason::Range);
    }
    frame.enter_caller(sp, fp, pc)
}

/// Loads all registers from the `ucontext` at sp.
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
    let (_, hi) = memory.bounds();
    if registers.sp <= sp || registers.sp > hi {
        frame.count_switch()?;
    }
    frame.stack_unknown = !memory.rebound(registers.sp);
    frame.registers = registers;
    (frame.exact, frame.has_all_registers) = (true, true);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_interrupted_frames_know_more_than_sp_and_fp() {
        let gpr = core::array::from_fn(|number| number as u64 * 16);
        let mut frame = Registers { pc: 0x5000, sp: 7 * 16, fp: 6 * 16, gpr }.leaf();
        assert_eq!([0, 3, 6, 7].map(|it| frame.register(it)), [Ok(0), Ok(48), Ok(96), Ok(112)]);
        frame.enter_caller(0x7000, 0x7010, 0x6000).unwrap();
        assert!((0..16).all(|number| frame.register(number) == Err(EndReason::BadRule)));
        // Like a frame into which a call was injected.
        frame.exact = true;
        let known = [Err(EndReason::BadRule), Ok(0x7010), Ok(0x7000), Err(EndReason::BadRule)];
        assert_eq!([0, 6, 7, 15].map(|it| frame.register(it)), known);
    }

    #[test]
    fn a_zero_is_a_root_where_the_frame_has_called_and_its_frame_pointer_is_zero_as_well() {
        let mut frame = Registers::default().leaf();
        assert_eq!(frame.enter_caller(0x7000, 0, 0), Err(EndReason::Unproven), "an exact frame");
        frame.enter_caller(0x7000, 0, 0x5000).unwrap();
        assert_eq!(frame.enter_caller(0x7010, 0, 0), Err(EndReason::Root));
        assert_eq!(frame.enter_caller(0x7010, 0x7020, 0), Err(EndReason::Range));
        frame.from_generated = true;
        frame.enter_caller(0x7010, 0, 0x6000).unwrap();
        assert_eq!(frame.enter_caller(0x7020, 0, 0), Err(EndReason::Unproven), "a guess before");
    }

    #[test]
    fn stack_switches_are_bounded() {
        let mut frame = Registers::default().leaf();
        assert!((0..SWITCHES_MAX).all(|_| frame.count_switch().is_ok()));
        assert_eq!(frame.count_switch(), Err(EndReason::Range));
    }

    #[test]
    fn ucontext_order_names_every_register_once() {
        let mut seen = UCONTEXT_ORDER;
        seen.sort_unstable();
        assert_eq!(seen, core::array::from_fn(|number| number));
    }
}
