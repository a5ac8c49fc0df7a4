//! A step out of code that has moved sp to another stack and has no frame there.
//!
//! # Invariants
//! - Where the code keeps how deep it was on the stack that it left, that counts, and no frame
//!   pointer: Go moves a stack while C runs, and updates no pointer that C has saved.
//! - Elsewhere the return address is on the stack that the code left, so the search always finds
//!   it. If the search also finds the address of a call that is over, it cannot distinguish the two
//!   and returns neither.

use super::super::EndReason;
use super::super::rule::{Rule, fp_op, op};
use super::super::walk::{Climb, Lookup, Memory, word};
use super::Frame;
use super::call::call_target;

/// The largest stack of a goroutine: Go's limit is a gigabyte, and a stack doubles when it grows.
const STACK_MOST: u64 = 2 << 30;
/// Maximum number of words searched. The recorder's rules name no larger frames.
const WORDS_MAX: u64 = 512;

/// Returns the CFA of a frame that is on a stack whose end is in an object: see [`op::DEPTH`].
#[cold]
pub(super) fn cfa_below_end(
    rule: Rule,
    (sp, floor): (u64, u64),
    memory: &mut impl Memory,
) -> Result<u64, EndReason> {
    let [owner, end, depth, above] = rule.cfa_off.to_le_bytes().map(|words| u64::from(words) << 3);
    let owner = word(memory, floor, sp.wrapping_add(owner))?;
    let depth = word(memory, floor, sp.wrapping_add(depth))?;
    // A wrong step finds no object here: its start is in the word before its end.
    if owner & 7 != 0 {
        return Err(EndReason::Unreadable);
    }
    let at = owner.wrapping_add(end);
    let start = memory.load_code(at.wrapping_sub(8)).ok_or(EndReason::Unreadable)?;
    let end = memory.load_code(at).ok_or(EndReason::Unreadable)?;
    let len = end.wrapping_sub(start);
    if start >= end || len > STACK_MOST || depth >= len {
        return Err(EndReason::Unreadable);
    }
    Ok(end.wrapping_sub(depth).wrapping_add(above))
}

/// Returns the return address to the caller and its address on the caller's stack. fp points to the
/// caller's frame. The rule has the size of the largest caller's frame, and the maximum distance
/// from the function's start to the pc.
#[cold]
pub(super) fn find_caller(
    frame: &mut Frame,
    rule: Rule,
    lookup: &Lookup,
    memory: &mut impl Memory,
) -> Option<(u64, u64)> {
    let fp = frame.registers.fp;
    let words = u64::try_from(rule.cfa_off).ok()?.wrapping_shr(3).min(WORDS_MAX);
    let lowest = fp.wrapping_sub(words.wrapping_shl(3));
    if fp & 7 != 0 || fp < lowest || !memory.rebound(lowest) {
        return None;
    }
    let (lo, hi) = memory.bounds();
    if lowest < lo || fp > hi {
        return None;
    }
    let mut found = None;
    for number in 0..words {
        let slot = lowest.wrapping_add(number.wrapping_shl(3));
        let ret = memory.load(slot)?;
        if ends_at(fp, slot, ret, lookup) && leads_here(frame, rule, ret, memory) {
            if found.is_some() {
                return None;
            }
            found = Some((slot, ret));
        }
    }
    found
}

/// Whether the function to which `ret` returns has saved its caller's frame pointer at fp.
fn ends_at(fp: u64, slot: u64, ret: u64, lookup: &Lookup) -> bool {
    let Some(rule) = lookup.rule_in_range(ret.wrapping_sub(1)) else { return false };
    let cfa = slot.wrapping_add(8).wrapping_add_signed(i64::from(rule.cfa_off));
    let keeps_fp = (rule.fp_op, rule.fp_off) == (fp_op::AT_CFA, -2);
    rule.op == op::SP && keeps_fp && cfa == fp.wrapping_add(16)
}

/// Whether the call that returns to `ret` calls the running function.
fn leads_here(frame: &Frame, rule: Rule, ret: u64, memory: &mut impl Memory) -> bool {
    let pc = frame.pc();
    let behind = |target: u64| pc.checked_sub(target);
    let len = u64::from(rule.fp_off.unsigned_abs());
    call_target(ret, memory).and_then(behind).is_some_and(|behind| behind <= len)
}
