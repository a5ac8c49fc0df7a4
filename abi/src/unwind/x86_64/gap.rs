//! A step out of x86_64 code without unwind information.
//!
//! # Invariants
//! - Where code is not known to keep frame pointers, the unwinder accepts only a return address
//!   whose call leads to the running function. The stack also contains return addresses of calls
//!   that ended long ago.

use super::super::EndReason;
use super::super::rule::{Rule, op};
use super::super::walk::{Climb, Identity, Lookup, Memory, Objects, word};
use super::call::{call_target, is_behind_call, stub_target};
use super::{CODE_MIN, Frame, Registers, edge, luajit};
use crate::runtime::v8::{
    BYTECODES_SLOT, CONTEXT_SLOT, FUNCTION_SLOT, FrameSlots, OFFSET_SLOT, function,
};
use crate::runtime::word::FrameFunction;

/// Largest plausible frame in code without unwind information, in bytes.
const GUESSED_FRAME_MAX: u64 = 1 << 20;
/// Bytes of the `syscall` instruction.
const SYSCALL_LEN: u64 = 2;

/// Leaves code without unwind information, if the result is plausible.
#[cold]
pub(super) fn cross_gap(
    frame: &mut Frame,
    rule: Rule,
    lookup: &mut Lookup,
    memory: &mut impl Memory,
) -> Result<(), EndReason> {
    let guess = rule.op == op::GAP_GUESS;
    if !guess
        && !lookup.is_in_module()
        && let Some(left) = luajit::leave(frame, lookup, memory)
    {
        return left;
    }
    if rule.cfa_off != 0
        && let Some((cfa, pc)) = frameless_return(frame, rule, lookup, memory)
    {
        return frame.enter_caller(cfa, frame.registers.fp, pc);
    }
    if frame.exact
        && let Some((cfa, fp, pc)) = leaf_return(frame, guess, lookup, memory)
    {
        return frame.enter_caller(cfa, fp, pc);
    }
    if frame.exact
        && !guess
        && lookup.v8().is_some()
        && let Some((cfa, pc)) = edge::caller(frame, lookup, memory)
    {
        return frame.enter_caller(cfa, frame.registers.fp, pc);
    }
    let Registers { sp, fp, .. } = frame.registers;
    if fp == 0 && frame.from_record && !guess {
        // The ABI marks the outermost frame with a frame pointer of zero. But code that uses the
        // register for something else may have called with a zero in it, and the callee's frame
        // record has that.
        return Err(EndReason::Unproven);
    }
    if !is_above(fp, sp) {
        return match guess || frame.exact {
            true => Err(EndReason::Gap),
            false => switch_stack(frame, lookup, memory),
        };
    }
    let in_gap = |_| EndReason::Gap;
    let caller_fp = word(memory, sp, fp).map_err(in_gap)?;
    let pc = word(memory, sp, fp.wrapping_add(8)).map_err(in_gap)?;
    let is_believed = match guess {
        // A return address may be the first byte of the next function.
        true => {
            let at = frame.pc().wrapping_sub(u64::from(!frame.exact));
            leads_here(pc, at, lookup, memory)
        }
        false => lookup.is_code(pc.wrapping_sub(1)),
    };
    if !is_believed {
        return Err(EndReason::Gap);
    }
    if !guess {
        identify_function(frame, lookup, memory);
    }
    leave_record(frame, caller_fp, pc)
}

/// Adds the function that the frame has in a slot, if it is one of V8. The slots of a leaf may not
/// be there yet.
fn identify_function(frame: &Frame, lookup: &mut Lookup, memory: &mut impl Memory) {
    let Some(layout) = lookup.v8() else { return };
    let Registers { sp, fp, .. } = frame.registers;
    let mut slot = |distance: i64| word(memory, sp, fp.wrapping_add_signed(distance)).ok();
    let (Some(context), Some(of)) = (slot(CONTEXT_SLOT), slot(FUNCTION_SLOT)) else { return };
    if context & 1 == 0 {
        return;
    }
    // Compiled code keeps other values there, which may refer to memory that is freed meanwhile.
    let has_offset = lookup.is_in_module();
    let mut other = |at: i64| slot(at).filter(|_| has_offset).unwrap_or(u64::MAX);
    let slots =
        FrameSlots { function: of, bytecodes: other(BYTECODES_SLOT), offset: other(OFFSET_SLOT) };
    let found = function(layout, slots, &mut Objects(memory));
    if found.is_err() {
        memory.count_no_function();
    }
    lookup.identify(Identity::Function(found.unwrap_or(FrameFunction::UNREADABLE)));
}

/// Returns the caller's (cfa, pc) of code that runs without a frame where its rule says so. Some of
/// that code is also reached by a jump from a function with a frame, and then finds something else
/// in the place of its return address.
fn frameless_return(
    frame: &Frame,
    rule: Rule,
    lookup: &Lookup,
    memory: &mut impl Memory,
) -> Option<(u64, u64)> {
    let sp = frame.registers.sp;
    let (cfa, pc) = match u64::try_from(rule.cfa_off) {
        Ok(distance) => {
            let cfa = sp.wrapping_add(distance);
            (cfa, word(memory, sp, cfa.wrapping_sub(8)).ok()?)
        }
        Err(_) => (sp, frame.register(!rule.cfa_off as u8).ok()?),
    };
    let is_return = lookup.is_code(pc.wrapping_sub(1)) && is_behind_call(pc, memory);
    is_return.then_some((cfa, pc))
}

/// Whether a frame record at fp is plausible for a frame at sp.
fn is_above(fp: u64, sp: u64) -> bool {
    fp & 7 == 0 && fp >= sp && fp.wrapping_sub(sp) <= GUESSED_FRAME_MAX
}

/// Moves to the caller of the frame whose record fp points to.
fn leave_record(frame: &mut Frame, caller_fp: u64, pc: u64) -> Result<(), EndReason> {
    frame.enter_caller(frame.registers.fp.wrapping_add(16), caller_fp, pc)?;
    (frame.from_record, frame.from_generated) = (true, true);
    Ok(())
}

/// Leaves generated code that keeps its frames on a stack of its own and calls C on the thread's
/// stack: fp points to its own stack. The register may have any value where the code keeps no
/// frames, so the complete frame record there is checked.
fn switch_stack(
    frame: &mut Frame,
    lookup: &Lookup,
    memory: &mut impl Memory,
) -> Result<(), EndReason> {
    let fp = frame.registers.fp;
    frame.count_switch()?;
    // What is below sp on the same stack is stale.
    let (lo, hi) = memory.bounds();
    let is_here = lo <= fp && fp < hi;
    if is_here || fp < CODE_MIN || fp & 7 != 0 || !memory.rebound(fp) {
        return Err(EndReason::Gap);
    }
    let in_gap = |_| EndReason::Gap;
    let caller_fp = word(memory, fp, fp).map_err(in_gap)?;
    let pc = word(memory, fp, fp.wrapping_add(8)).map_err(in_gap)?;
    let is_frame = caller_fp == 0 || caller_fp > fp && is_above(caller_fp, fp);
    if !is_frame || !lookup.is_generated(pc.wrapping_sub(1)) || !is_behind_call(pc, memory) {
        return Err(EndReason::Gap);
    }
    leave_record(frame, caller_fp, pc)
}

/// Returns the caller's (cfa, fp, pc) of a leaf that does not have a frame yet, or no longer has
/// one. The next instruction shows that. In hand-written code, a return address at sp shows it. For
/// the first instruction of a signal handler, the trampoline at the return address shows it.
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
        // ret, repz ret
        Some([0xC3, ..] | [0xF3, 0xC3, ..]) if is_code(first) => {
            return Some((sp.wrapping_add(8), fp, first));
        }
        // push %rbp, endbr64: the first instruction where frame pointers are kept
        Some([0x55, ..] | [0xF3, 0x0F, 0x1E, 0xFA, ..]) if !guess && is_code(first) => {
            return Some((sp.wrapping_add(8), fp, first));
        }
        // mov %rsp,%rbp in both encodings
        Some([0x48, 0x89, 0xE5, ..] | [0x48, 0x8B, 0xEC, ..]) => {
            let is_caller =
                |pc: &u64| is_code(*pc) && (!guess || leads_here(*pc, frame.pc(), lookup, memory));
            let caller = second.filter(is_caller)?;
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
    let called = guess && leads_here(first, pc, lookup, memory);
    called.then_some((sp.wrapping_add(8), fp, first))
}

/// Whether the call that returns to `ret` calls the function that contains `pc`. The stack below a
/// frame, and parts of the frame that were never written, contain the return addresses of other
/// calls.
fn leads_here(ret: u64, pc: u64, lookup: &Lookup, memory: &mut impl Memory) -> bool {
    if !lookup.is_code(ret.wrapping_sub(1)) {
        return false;
    }
    let Some(target) = call_target(ret, memory) else { return false };
    // The functions that create a thread end their unwind information at the system call, because
    // the child continues there on another stack. The kernel's samples are at the instruction after
    // it.
    let at = if is_after_syscall(pc, memory) { pc.wrapping_sub(SYSCALL_LEN + 1) } else { pc };
    let is_in = |target: u64, at: u64| target <= at && lookup.is_one_row(target, at);
    let holds = |target: u64| is_in(target, pc) || is_in(target, at);
    holds(target) || stub_target(target, memory).is_some_and(holds)
}

/// Whether the instruction before an address is a system call.
fn is_after_syscall(pc: u64, memory: &mut impl Memory) -> bool {
    let code = memory.load_code(pc.wrapping_sub(SYSCALL_LEN)).map(u64::to_le_bytes);
    matches!(code, Some([0x0F, 0x05, ..]))
}
