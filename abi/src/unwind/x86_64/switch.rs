//! A step out of code that has moved sp to another stack and has no frame of its own there.
//!
//! # Invariants
//! - The return address that is looked for is on the stack that was left, so it is always among
//!   what is found; a second one, of a call that is over, says that neither is known.

use super::super::rule::{Rule, fp_op, op};
use super::super::walk::{Climb, Lookup, Memory};
use super::Frame;
use super::gap::call_target;

/// Words that are looked at: recorders state no larger frames.
const WORDS_MAX: u64 = 512;

/// Where on the stack of the caller, whose frame fp leads to, the return address to it is, and
/// which. The rule has the size of a frame that is as large as any caller's, and up to how many
/// bytes in front of the pc the function starts.
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

/// The frame of the function that this returns to keeps its caller's frame pointer where fp leads.
fn ends_at(fp: u64, slot: u64, ret: u64, lookup: &Lookup) -> bool {
    let Some(rule) = lookup.rule_beside(ret.wrapping_sub(1)) else { return false };
    let cfa = slot.wrapping_add(8).wrapping_add_signed(i64::from(rule.cfa_off));
    let keeps_fp = (rule.fp_op, rule.fp_off) == (fp_op::AT_CFA, -2);
    rule.op == op::SP && keeps_fp && cfa == fp.wrapping_add(16)
}

/// The call that returns to `ret` is one of the function that runs.
fn leads_here(frame: &Frame, rule: Rule, ret: u64, memory: &mut impl Memory) -> bool {
    let pc = frame.pc();
    let behind = |target: u64| pc.checked_sub(target);
    let len = u64::from(rule.fp_off.unsigned_abs());
    call_target(ret, memory).and_then(behind).is_some_and(|behind| behind <= len)
}
