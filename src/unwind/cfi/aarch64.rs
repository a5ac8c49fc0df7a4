//! One row of aarch64 call frame information as a rule.
//!
//! The state of the return address' signature, which rows tell of too, needs no rule: stepping
//! takes the signature off whether there is one or not.

use gimli::{CfaRule, Register, RegisterRule, UnwindTableRow};
use traceprof_abi::unwind::Rule;
use traceprof_abi::unwind::rule::{op, ra_op};

use crate::unwind::dwarf::Fde;

const FP: Register = Register(29);
const LR: Register = Register(30);
const SP: Register = Register(31);

/// The rule for a row of `fde`.
pub(crate) fn rule(row: &UnwindTableRow<usize>, fde: &Fde<'_>) -> Rule {
    express(row, fde).unwrap_or(Rule::BAD)
}

/// Where a register's value is, as far as rules can say it.
enum Saved {
    /// In the register still.
    Kept,
    /// At this distance from the CFA.
    At(i64),
}

fn saved(row: &UnwindTableRow<usize>, register: Register) -> Option<Saved> {
    match row.register(register) {
        None | Some(RegisterRule::SameValue) => Some(Saved::Kept),
        Some(RegisterRule::Offset(offset)) if offset % 8 == 0 => Some(Saved::At(offset)),
        _ => None,
    }
}

fn express(row: &UnwindTableRow<usize>, fde: &Fde<'_>) -> Option<Rule> {
    if fde.cie().return_address_register() != LR {
        return None;
    }
    if row.register(LR) == Some(RegisterRule::Undefined) {
        return Some(Rule::STOP);
    }
    let (op, cfa_off) = match row.cfa() {
        CfaRule::RegisterAndOffset { register: SP, offset } => (op::SP, *offset),
        CfaRule::RegisterAndOffset { register: FP, offset } => (op::FP, *offset),
        _ => return None,
    };
    // The caller's sp is the CFA, unless something else is said.
    if row.register(SP).is_some() {
        return None;
    }
    let (ra_op, slot) = match (saved(row, FP)?, saved(row, LR)?) {
        (Saved::Kept, Saved::Kept) => (ra_op::LINK, 0),
        (Saved::Kept, Saved::At(ra)) => (ra_op::RA_ONLY, ra),
        (Saved::At(fp), Saved::Kept) => (ra_op::FP_ONLY, fp),
        (Saved::At(fp), Saved::At(ra)) if ra.checked_sub(fp)? == 8 => (ra_op::PAIR, fp),
        (Saved::At(fp), Saved::At(ra)) => (ra_op::apart(fp.checked_sub(ra)?)?, ra),
    };
    Some(Rule {
        op,
        fp_op: ra_op,
        fp_off: i16::try_from(slot / 8).ok()?,
        cfa_off: i32::try_from(cfa_off).ok()?,
    })
}
