//! Translates one row of aarch64 call frame information into a rule.
//!
//! Rows also describe whether the return address is signed. That needs no rule: the step strips the
//! signature whether there is one or not.

use gimli::{CfaRule, Register, RegisterRule};
use traceprof_abi::unwind::Rule;
use traceprof_abi::unwind::rule::{op, ra_op};

use crate::dwarf::{Fde, UnwindRow};

const FP: Register = Register(29);
const LR: Register = Register(30);
const SP: Register = Register(31);

/// Returns the rule for a row of `fde`.
pub(crate) fn rule(row: &UnwindRow, fde: &Fde<'_>) -> Rule {
    express(row, fde).unwrap_or(Rule::BAD)
}

/// The location of a register's value, as far as rules can express it.
enum SavedRegister {
    /// Still in the register.
    Kept,
    /// At this distance from the CFA.
    At(i64),
}

fn saved(row: &UnwindRow, register: Register) -> Option<SavedRegister> {
    match row.register(register) {
        None | Some(RegisterRule::SameValue) => Some(SavedRegister::Kept),
        Some(RegisterRule::Offset(offset)) if offset % 8 == 0 => Some(SavedRegister::At(offset)),
        _ => None,
    }
}

fn express(row: &UnwindRow, fde: &Fde<'_>) -> Option<Rule> {
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
    // The caller's sp is the CFA, unless the row says otherwise.
    if row.register(SP).is_some() {
        return None;
    }
    let (ra_op, slot) = match (saved(row, FP)?, saved(row, LR)?) {
        (SavedRegister::Kept, SavedRegister::Kept) => (ra_op::LINK, 0),
        (SavedRegister::Kept, SavedRegister::At(ra)) => (ra_op::RA_ONLY, ra),
        (SavedRegister::At(fp), SavedRegister::Kept) => (ra_op::FP_ONLY, fp),
        (SavedRegister::At(fp), SavedRegister::At(ra)) if ra.checked_sub(fp)? == 8 => {
            (ra_op::PAIR, fp)
        }
        (SavedRegister::At(fp), SavedRegister::At(ra)) => {
            (ra_op::separate(fp.checked_sub(ra)?)?, ra)
        }
    };
    Some(Rule {
        op,
        fp_op: ra_op,
        fp_off: i16::try_from(slot / 8).ok()?,
        cfa_off: i32::try_from(cfa_off).ok()?,
    })
}
