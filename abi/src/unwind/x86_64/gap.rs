//! A step out of x86_64 code without unwind information.
//!
//! # Invariants
//! - Where code is not known to keep frame pointers, the unwinder accepts only a return address
//!   whose call leads to the running function. The stack also contains return addresses of calls
//!   that ended long ago.

use super::super::EndReason;
use super::super::walk::{Climb, Lookup, Memory, word};
use super::{CODE_MIN, Frame, Registers};

/// Largest plausible frame in code without unwind information, in bytes.
const GUESSED_FRAME_MAX: u64 = 1 << 20;
/// Bytes of the `syscall` instruction.
const SYSCALL_LEN: u64 = 2;
/// Maximum number of instructions of a linkage table's entry, the jump included: `endbr64`, `bnd`
/// and the jump.
const STUB_PREFIXES: usize = 3;

/// Leaves code without unwind information, if the result is plausible.
#[cold]
pub(super) fn cross_gap(
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
    leave_record(frame, caller_fp, pc)
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

/// Whether the instruction before an address is a call.
fn is_behind_call(ret: u64, memory: &mut impl Memory) -> bool {
    let Some(bytes) = memory.load_code(ret.wrapping_sub(8)) else { return false };
    // call *register; call *(register); both with 8 and with 32 bits of displacement
    let is_indirect = |modrm: u8| modrm >> 3 & 7 == 2;
    match bytes.to_le_bytes() {
        [_, _, _, 0xE8, ..] => true,
        [.., 0xFF, modrm] => is_indirect(modrm),
        [.., 0xFF, modrm, _] => is_indirect(modrm) && modrm >> 6 == 1,
        [_, _, 0xFF, modrm, ..] => is_indirect(modrm) && modrm >> 6 == 2,
        _ => false,
    }
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

/// Returns the target of the call that returns to `ret`, if its operand names the target.
pub(super) fn call_target(ret: u64, memory: &mut impl Memory) -> Option<u64> {
    let (opcode, operand) = relative(memory.load_code(ret.wrapping_sub(8))?);
    let target = ret.wrapping_add_signed(operand);
    match opcode {
        [_, 0xE8] => Some(target),
        // call *operand(%rip)
        [0xFF, 0x15] => memory.load_code(target),
        _ => None,
    }
}

/// Returns the address to which an entry of a linkage table jumps.
fn stub_target(stub: u64, memory: &mut impl Memory) -> Option<u64> {
    let mut at = stub;
    for _ in 0..STUB_PREFIXES {
        at = match memory.load_code(at)?.to_le_bytes() {
            // endbr64
            [0xF3, 0x0F, 0x1E, 0xFA, ..] => at.wrapping_add(4),
            // bnd
            [0xF2, ..] => at.wrapping_add(1),
            // jmp *operand(%rip)
            [0xFF, 0x25, a, b, c, d, ..] => {
                let operand = i64::from(i32::from_le_bytes([a, b, c, d]));
                return memory.load_code(at.wrapping_add(6).wrapping_add_signed(operand));
            }
            _ => return None,
        };
    }
    None
}

/// Returns the two bytes of the opcode, and the last four of the eight bytes as the operand after
/// it.
fn relative(bytes: u64) -> ([u8; 2], i64) {
    let [_, _, first, second, operand @ ..] = bytes.to_le_bytes();
    ([first, second], i64::from(i32::from_le_bytes(operand)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Code at an address, and the address and value of a slot.
    struct Code<'c>(u64, &'c [u8], (u64, u64));

    impl Memory for Code<'_> {
        fn load(&mut self, _: u64) -> Option<u64> {
            None
        }

        fn rebound(&mut self, _: u64) -> bool {
            false
        }

        fn bounds(&self) -> (u64, u64) {
            (0, 0)
        }

        fn load_code(&mut self, avma: u64) -> Option<u64> {
            if avma == self.2.0 {
                return Some(self.2.1);
            }
            let at = avma.checked_sub(self.0)? as usize;
            let bytes = (at..at + 8).map(|at| self.1.get(at).copied().unwrap_or(0x90));
            let mut word = [0; 8];
            word.iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte);
            Some(u64::from_le_bytes(word))
        }
    }

    /// Checks the target of the call at the end of `code`. The memory starts at 0x1000, and 0x5000
    /// contains 0x7777.
    fn check(code: &[u8], stub: &[u8], expected: Option<u64>) {
        let mut all = [0x90; 0x40];
        all[8..8 + code.len()].copy_from_slice(code);
        all[0x20..0x20 + stub.len()].copy_from_slice(stub);
        let mut memory = Code(0x1000, &all, (0x5000, 0x7777));
        let target = call_target(0x1008 + code.len() as u64, &mut memory);
        let found = target.map(|target| stub_target(target, &mut memory).unwrap_or(target));
        assert_eq!(found, expected, "{code:x?}");
    }

    #[test]
    fn operands_give_the_targets_of_calls() {
        // call 0x1020
        let direct = [0xE8, 0x13, 0, 0, 0];
        check(&direct, &[0x55], Some(0x1020));
        check(&[0xE8, 0xFB, 0xFF, 0xFF, 0xFF], &[], Some(0x1008));
        // Its target is jmp *0x5000, with and without prefixes.
        check(&direct, &[0xFF, 0x25, 0xDA, 0x3F, 0, 0], Some(0x7777));
        check(&direct, &[0xF2, 0xFF, 0x25, 0xD9, 0x3F, 0, 0], Some(0x7777));
        check(&direct, &[0xF3, 0x0F, 0x1E, 0xFA, 0xFF, 0x25, 0xD6, 0x3F, 0, 0], Some(0x7777));
        let both = [0xF3, 0x0F, 0x1E, 0xFA, 0xF2, 0xFF, 0x25, 0xD5, 0x3F, 0, 0];
        check(&direct, &both, Some(0x7777));
        // call *0x5000
        check(&[0xFF, 0x15, 0xF2, 0x3F, 0, 0], &[], Some(0x7777));
        // call *%rax, call *8(%rsp), nops
        check(&[0xFF, 0xD0], &[], None);
        check(&[0xFF, 0x54, 0x24, 0x08], &[], None);
        check(&[], &[], None);
    }
}
