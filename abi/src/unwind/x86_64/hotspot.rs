//! A step out of code that HotSpot generated, where that differs from other code.
//!
//! # Invariants
//! - Nothing is read but the thread's stack. What a frame says of its method is stored as it is:
//!   objects may be freed while another thread's handler reads them.
//! - The caller's sp is above the frame, so walks end.

use super::super::EndReason;
use super::super::code_heap::InterpreterLayout;
use super::super::rule::{Rule, fp_op, method, op};
use super::super::tables::RBX_LOST;
use super::super::walk::{Climb, Identity, Lookup, Memory, word};
use super::{CODE_MIN, Frame, RBX, Registers};
use crate::runtime::word::FrameInPlace;

/// DWARF number of the register that holds the position in the topmost method.
const R13: u8 = 13;
/// Distance from the frame pointer to the caller's sp in a frame of the interpreter.
const SENDER_SLOT: u64 = 8;
/// Distance from the frame pointer to the method in a frame of the interpreter.
const METHOD_SLOT: u64 = 24;
/// One past the highest address of a method that a frame's words have room for.
const OBJECT_END: u64 = 1 << 47;
/// Maximum number of words between the frozen frames and the frame that entered the virtual
/// thread: arguments on the stack, and alignment.
const FROZEN_WORDS: u64 = 32;
/// The same where frames are being thawed, which then are between them too.
const THAWED_WORDS: u64 = 256;
/// Maximum number of arguments on the stack.
const ARGUMENTS_MAX: u64 = 4096;

/// Moves to the caller.
#[cold]
pub(super) fn leave(
    frame: &mut Frame,
    rule: Rule,
    lookup: &mut Lookup,
    memory: &mut impl Memory,
) -> Result<(), EndReason> {
    match rule.op {
        op::INTERPRETED => leave_interpreted(frame, rule, lookup, memory),
        op::DEOPTIMIZED => leave_deoptimized(frame, rule, lookup, memory),
        op::RETURN_BELOW => leave_removed(frame, rule, memory),
        _ => leave_thawed(frame, rule, lookup, memory),
    }
}

fn leave_interpreted(
    frame: &mut Frame,
    rule: Rule,
    lookup: &mut Lookup,
    memory: &mut impl Memory,
) -> Result<(), EndReason> {
    let [.., location] = rule.cfa_off.to_le_bytes();
    identify(frame, location, lookup, memory);
    let fp = frame.registers.fp;
    let floor = frame.registers.sp;
    let sender = word(memory, floor, fp.wrapping_sub(SENDER_SLOT))?;
    let caller_fp = word(memory, floor, fp)?;
    let pc = word(memory, floor, fp.wrapping_add(8))?;
    enter_sender(frame, sender, (fp.wrapping_add(8), caller_fp, pc), memory)
}

/// Moves to the caller, whose sp a frame of the interpreter has saved. Its return address is in
/// `slot`.
///
/// Calls through `MethodHandle.linkTo*` take their last argument from the stack after the caller
/// has set its sp, and put the return address there (`methodHandles_x86.cpp`).
fn enter_sender(
    frame: &mut Frame,
    sender: u64,
    (slot, fp, pc): (u64, u64, u64),
    memory: &mut impl Memory,
) -> Result<(), EndReason> {
    if sender < slot || sender > memory.bounds().1 || sender & 7 != 0 {
        return Err(EndReason::Range);
    }
    frame.enter_caller(sender.max(slot.wrapping_add(8)), fp, pc)
}

/// Moves to the caller of a frame of the interpreter that is not complete, or no longer complete.
#[cold]
pub(super) fn leave_to_sender(
    frame: &mut Frame,
    rule: Rule,
    sender: u64,
    lookup: &mut Lookup,
    memory: &mut impl Memory,
) -> Result<(), EndReason> {
    let [low, high, _, location] = rule.cfa_off.to_le_bytes();
    identify(frame, location, lookup, memory);
    let sp = frame.registers.sp;
    let slot = sp.wrapping_add(u64::from(u16::from_le_bytes([low, high])));
    let pc = word(memory, sp, slot)?;
    let saved = i64::from(rule.fp_off).wrapping_mul(8);
    let fp = match rule.fp_op {
        fp_op::SAME => frame.registers.fp,
        fp_op::AT_SP => word(memory, sp, sp.wrapping_add_signed(saved))?,
        _ => return Err(EndReason::BadRule),
    };
    enter_sender(frame, sender, (slot, fp, pc), memory)
}

/// Moves to the caller of a frame that its code has removed.
fn leave_removed(frame: &mut Frame, rule: Rule, memory: &mut impl Memory) -> Result<(), EndReason> {
    let Registers { sp, fp, .. } = frame.registers;
    let above = sp.wrapping_add_signed(i64::from(rule.cfa_off));
    let slot = above.wrapping_sub(8);
    let pc = word(memory, sp, slot)?;
    let sender = above.wrapping_add_signed(i64::from(rule.fp_off).wrapping_mul(8));
    enter_sender(frame, sender, (slot, fp, pc), memory)
}

/// Moves to the caller of a frame to which the callee does not return as it was called.
fn leave_deoptimized(
    frame: &mut Frame,
    rule: Rule,
    lookup: &mut Lookup,
    memory: &mut impl Memory,
) -> Result<(), EndReason> {
    let sp = frame.registers.sp;
    let slot = sp.wrapping_add_signed(i64::from(rule.fp_off).wrapping_mul(8));
    let at = frame.pc().wrapping_sub(1);
    let own = lookup.generated(at);
    if let Ok(original) = word(memory, sp, slot)
        && own.is_some_and(|code| code.contains(original.wrapping_sub(1)))
    {
        lookup.identify(Identity::Original(original));
    }
    let cfa = sp.wrapping_add_signed(i64::from(rule.cfa_off));
    let body = Rule { op: op::SP, fp_op: fp_op::AT_CFA, fp_off: -2, cfa_off: rule.cfa_off };
    super::leave(frame, body, RBX_LOST, cfa, memory)
}

/// Moves from the lowest frame of a virtual thread that is on the stack to the frame that entered
/// the virtual thread. That frame has no other address of generated code than the one to which it
/// returns.
fn leave_thawed(
    frame: &mut Frame,
    rule: Rule,
    lookup: &mut Lookup,
    memory: &mut impl Memory,
) -> Result<(), EndReason> {
    // The search takes many loads, successful or not, so it counts as a switch.
    frame.count_switch()?;
    let (sp, fp) = (frame.registers.sp, frame.registers.fp);
    let entered = frame.pc().wrapping_add_signed(i64::from(rule.cfa_off));
    let bytes = u64::from(rule.fp_off.unsigned_abs()).wrapping_shl(3);
    let search = |words: core::ops::Range<u64>, memory: &mut _| {
        for number in words {
            let at = sp.wrapping_add(number.wrapping_shl(3));
            if is_entry((at, bytes), sp, lookup, memory)? {
                return Ok(Some(at));
            }
        }
        Ok(None)
    };
    if let Some(at) = search(0..FROZEN_WORDS, memory)? {
        return frame.enter_caller(at, fp, entered);
    }
    if rule.fp_op == fp_op::AT_FP {
        // The frame's return address is above the word to which its frame pointer points. Not all
        // thawed frames have saved that.
        let at = fp.wrapping_add(16).wrapping_sub(bytes);
        let is_it = at >= sp && is_entry((at, bytes), sp, lookup, memory) == Ok(true);
        let found = if is_it { Some(at) } else { search(FROZEN_WORDS..THAWED_WORDS, memory)? };
        if let Some(at) = found {
            return frame.enter_caller(at, fp, entered);
        }
    }
    Err(EndReason::Range)
}

/// Whether a frame of this size may have entered a virtual thread. It was called by generated code,
/// and begins with what the machine knows of it: a word for tests of the machine, the frame that
/// entered another virtual thread around it, the virtual thread, its frozen frames, then whether it
/// is one and how many arguments its lowest frame has, and an address of a stack. The machine does
/// not describe this. If it were otherwise, the stack would end here.
fn is_entry(
    (at, bytes): (u64, u64),
    sp: u64,
    lookup: &Lookup,
    memory: &mut impl Memory,
) -> Result<bool, EndReason> {
    let pc = word(memory, sp, at.wrapping_add(bytes).wrapping_sub(8))?;
    if !lookup.is_in_heap(pc.wrapping_sub(1)) {
        return Ok(false);
    }
    let mut field = |number: u64| word(memory, sp, at.wrapping_add(number.wrapping_shl(3)));
    let [parent, thread, frozen, flags, fast] =
        [field(1)?, field(2)?, field(3)?, field(4)?, field(5)?];
    let is_outer = parent == 0 || parent > at && parent & 7 == 0;
    let are_addresses = [thread, frozen, fast].iter().all(|it| it & 7 == 0 && *it < OBJECT_END);
    let is_virtual = flags as u32 == 1 && flags >> 32 < ARGUMENTS_MAX;
    Ok(is_outer && thread != 0 && are_addresses && is_virtual)
}

/// Names a frame of the interpreter by the method that it runs, if it has one.
pub(super) fn identify(frame: &Frame, location: u8, lookup: &mut Lookup, memory: &mut impl Memory) {
    let Some(layout) = lookup.interpreter() else { return };
    if let Some(method) = running_method(frame, location, layout, memory) {
        lookup.identify(Identity::Managed(layout.runtime, method));
    }
}

fn running_method(
    frame: &Frame,
    location: u8,
    layout: InterpreterLayout,
    memory: &mut impl Memory,
) -> Option<FrameInPlace> {
    let (fp, sp) = (frame.registers.fp, frame.registers.sp);
    let (object, saved) = match location {
        // It has not begun, so the register of the position has something else.
        method::IN_RBX if frame.exact => (frame.register(RBX as u8).ok()?, 0),
        method::IN_FRAME => {
            let slot = fp.wrapping_add_signed(i64::from(layout.position_slot).wrapping_mul(8));
            let object = word(memory, sp, fp.wrapping_sub(METHOD_SLOT)).ok()?;
            (object, word(memory, sp, slot).unwrap_or_default())
        }
        _ => return None,
    };
    if !(CODE_MIN..OBJECT_END).contains(&object) || object & 7 != 0 {
        return None;
    }
    let saved = Some(saved).filter(|it| *it < OBJECT_END).unwrap_or_default();
    let register = frame.exact.then(|| frame.register(R13).ok()).flatten();
    let ahead = register.filter(|_| saved != 0).map(|it| it.wrapping_sub(saved) as i64);
    let ahead = ahead.and_then(|it| i16::try_from(it).ok()).unwrap_or_default();
    Some(FrameInPlace { object, saved, ahead })
}
