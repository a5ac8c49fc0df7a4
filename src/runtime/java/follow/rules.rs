//! The rules for what is known before each instruction.

use traceprof_abi::unwind::Rule;
use traceprof_abi::unwind::rule::{fp_op, method, op};

use super::flow::Flow;
use super::state::{Base, R13, RBP, RBX, RSP, State, TrackedValue};
use super::{Followed, GeneratedCode, GeneratedKind};

/// Returns the rows of a piece of code.
pub(super) fn rows(code: &GeneratedCode<'_>, flow: &Flow<'_>) -> Followed {
    let mut rows = Rows { list: Vec::new() };
    let (mut instructions, mut unknown) = (0, 0);
    let unreached = Unreached::of(code);
    let mut rule = Rule::BAD;
    flow.each(|offset, state, is_call| {
        let Some((state, is_other)) = state else {
            return rows.push(offset, unreached.rule(offset));
        };
        if is_other {
            rule = rule_in(code, state);
        }
        instructions += 1;
        unknown += usize::from(rule == Rule::BAD);
        rows.push(offset, rule);
        if is_call {
            // A frame that has called is looked up at the last byte of its call.
            rows.push(offset + 1, called(code, state, rule));
        }
    });
    let mut followed = Followed { rows: rows.list, instructions, unknown, is_cut: false };
    for handler in code.deoptimized.handlers {
        followed.insert_byte(handler.wrapping_sub(1), deoptimized(code));
    }
    followed
}

/// Rows with ascending offsets, of which no neighbours are equal.
struct Rows {
    list: Vec<(u32, Rule)>,
}

impl Rows {
    fn push(&mut self, offset: u32, rule: Rule) {
        if self.list.last().is_none_or(|(_, last)| *last != rule) {
            self.list.push((offset, rule));
        }
    }
}

/// The rules of bytes that no path reaches.
struct Unreached {
    /// The rule, and from which offset on it applies.
    known: Option<(u32, Rule)>,
}

impl Unreached {
    fn of(code: &GeneratedCode<'_>) -> Self {
        let from = match code.kind {
            GeneratedKind::Method => code.frame_complete.zip(code.body()),
            GeneratedKind::Interpreter => Some((0, State::interpreted())),
            _ => None,
        };
        Self { known: from.map(|(offset, state)| (offset, rule(&state))) }
    }

    fn rule(&self, offset: u32) -> Rule {
        let known = self.known.filter(|(from, _)| offset >= *from);
        known.map_or(Rule::BAD, |(_, rule)| rule)
    }
}

/// Returns the rule for a state in code of a kind.
fn rule_in(code: &GeneratedCode<'_>, state: &State) -> Rule {
    match (rule(state), code.kind) {
        (rule, GeneratedKind::Poll) if rule.op == op::SP => Rule { op: op::SP_INJECTED, ..rule },
        // The method made no call, which the other rules assume.
        (_, GeneratedKind::Poll) => Rule::BAD,
        (rule, _) => rule,
    }
}

/// Returns the rule of a frame that has called. It knows no registers but the stack and the frame
/// pointer.
fn called(code: &GeneratedCode<'_>, state: &State, exact: Rule) -> Rule {
    let is_for_called =
        [op::SP, op::SP_INJECTED, op::FP, op::DEREF_SP_ADD, op::INTERPRETED, op::RETURN_BELOW];
    if is_for_called.contains(&exact.op) {
        return exact;
    }
    if code.kind == GeneratedKind::Poll {
        return Rule::BAD;
    }
    let saved = by_address_below(state).or_else(|| by_saved_address(state));
    saved.or_else(|| code.body().map(|body| rule(&body))).unwrap_or(Rule::BAD)
}

/// Returns the rule of a frame whose return address was replaced by that of a handler.
fn deoptimized(code: &GeneratedCode<'_>) -> Rule {
    let bytes = i32::try_from(code.frame_words).ok().and_then(|words| words.checked_mul(8));
    match bytes {
        Some(cfa_off) if cfa_off >= 16 => Rule {
            cfa_off,
            fp_op: fp_op::AT_CFA,
            fp_off: code.deoptimized.original_words,
            ..Rule::plain(op::DEOPTIMIZED)
        },
        _ => Rule::BAD,
    }
}

/// Returns the rule for a state.
pub(super) fn rule(state: &State) -> Rule {
    let is_interpreter = state.holder(TrackedValue::Sender).is_some()
        || state.slot_of(TrackedValue::Sender).is_some();
    let found = match is_interpreter {
        true => interpreted(state).or_else(|| from_sender(state)),
        false => by_sp(state)
            .or_else(|| by_return_register(state))
            .or_else(|| by_moved_address(state))
            .or_else(|| by_address_below(state))
            .or_else(|| by_register(state))
            .or_else(|| by_saved_address(state)),
    };
    found.unwrap_or(Rule::BAD)
}

/// Returns the rule with the place of the caller's frame pointer. A slot is preferred: a frame may
/// have it where the frames below have lost the register.
fn with_fp(state: &State, rule: Rule) -> Rule {
    let slot = |base: Base| {
        let mut slots = state.slots().iter();
        let (slot, _) =
            slots.find(|(it, value)| it.0 == base && *value == TrackedValue::CallerFp)?;
        let offset = if base == Base::Cfa { slot.1 } else { state.distance_from_sp(*slot)? };
        i16::try_from(offset / 8).ok()
    };
    if let Some(fp_off) = slot(Base::Cfa) {
        return Rule { fp_op: fp_op::AT_CFA, fp_off, ..rule };
    }
    if state.register(RBP) == TrackedValue::CallerFp {
        return Rule { fp_op: fp_op::SAME, ..rule };
    }
    match slot(Base::Second) {
        Some(fp_off) => Rule { fp_op: fp_op::AT_SP, fp_off, ..rule },
        None => Rule { fp_op: fp_op::CLEAR, ..rule },
    }
}

fn has_return_slot(state: &State) -> bool {
    state.slot((Base::Cfa, -8)) == TrackedValue::ReturnAddress
}

/// The stack pointer is at a known distance from the return address.
fn by_sp(state: &State) -> Option<Rule> {
    match state.register(RSP) {
        TrackedValue::Cfa(at) if has_return_slot(state) => {
            Some(with_fp(state, Rule { cfa_off: -at, ..Rule::plain(op::SP) }))
        }
        // The caller goes on with an instruction that does not follow its call.
        TrackedValue::Cfa(at) if state.slot((Base::Cfa, -8)) == TrackedValue::Handler => {
            Some(with_fp(state, Rule { cfa_off: -at, ..Rule::plain(op::SP_INJECTED) }))
        }
        _ => None,
    }
}

/// The frame was removed, and the return address was pushed below other words.
fn by_address_below(state: &State) -> Option<Rule> {
    let (Base::Cfa, slot) = state.slot_of(TrackedValue::ReturnAddress)? else { return None };
    match state.register(RSP) {
        TrackedValue::Cfa(sp) if state.register(RBP) == TrackedValue::CallerFp && slot < -8 => {
            let fp_off = i16::try_from((-8 - slot) / 8).ok()?;
            Some(Rule { cfa_off: slot + 8 - sp, fp_off, ..Rule::plain(op::RETURN_BELOW) })
        }
        _ => None,
    }
}

/// The return address was popped.
fn by_return_register(state: &State) -> Option<Rule> {
    let register = state.holder(TrackedValue::ReturnAddress)?;
    match state.register(RSP) {
        TrackedValue::Cfa(at) if state.register(RBP) == TrackedValue::CallerFp => {
            Some(Rule { cfa_off: -at, ..Rule::plain(op::RA_REG_LEAF + register as u8) })
        }
        _ => None,
    }
}

/// The return address was moved to a lower address, and a register has the CFA.
fn by_moved_address(state: &State) -> Option<Rule> {
    let sender = state.holder(TrackedValue::Cfa(0)).filter(|it| *it != RSP)?;
    moved(state, sender)
}

/// Returns the rule for a return address at the stack pointer and the caller's in a register.
fn moved(state: &State, sender: usize) -> Option<Rule> {
    let distance = |value: TrackedValue| {
        let mut slots = state.slots().iter().filter(|(_, it)| *it == value);
        slots.find_map(|(slot, _)| state.distance_from_sp(*slot))
    };
    let offset = u16::try_from(distance(TrackedValue::ReturnAddress)?).ok()?;
    let [low, high] = offset.to_le_bytes();
    let location = begun(state);
    let rule = Rule {
        cfa_off: i32::from_le_bytes([low, high, 0, location]),
        ..Rule::plain(op::SENDER_LEAF + sender as u8)
    };
    if state.register(RBP) == TrackedValue::CallerFp {
        return Some(rule);
    }
    let saved = i16::try_from(distance(TrackedValue::CallerFp)? / 8).ok()?;
    Some(Rule { fp_op: fp_op::AT_SP, fp_off: saved, ..rule })
}

/// The distance of the stack pointer is unknown, and a register has an address of the stack.
fn by_register(state: &State) -> Option<Rule> {
    if !has_return_slot(state) {
        return None;
    }
    let known = |(number, value): (usize, TrackedValue)| match value {
        TrackedValue::Cfa(at) if number != RSP => Some((number, at)),
        _ => None,
    };
    // The frame pointer is known in frames that have called as well.
    let frame = known((RBP, state.register(RBP)));
    let (number, at) = frame.or_else(|| state.registers().find_map(known))?;
    let op = if number == RBP { op::FP } else { op::REG_LEAF + number as u8 };
    Some(with_fp(state, Rule { cfa_off: -at, ..Rule::plain(op) }))
}

/// An address of the stack was saved at a known distance from the stack pointer.
fn by_saved_address(state: &State) -> Option<Rule> {
    if !has_return_slot(state) {
        return None;
    }
    state.slots().iter().find_map(|(slot, value)| {
        let (TrackedValue::Cfa(at), Some(offset)) = (*value, state.distance_from_sp(*slot)) else {
            return None;
        };
        let words = u8::try_from(-at / 8).ok().filter(|_| at % 8 == 0 && at <= 0)?;
        let offset = u32::try_from(offset).ok().filter(|offset| *offset < 1 << 24)?;
        let cfa_off = (offset | u32::from(words) << 24) as i32;
        Some(with_fp(state, Rule { cfa_off, ..Rule::plain(op::DEREF_SP_ADD) }))
    })
}

/// Returns where the method is that has not begun to run.
fn begun(state: &State) -> u8 {
    match state.register(RBX) {
        TrackedValue::Method => method::IN_RBX,
        _ => method::NONE,
    }
}

/// The frame of the interpreter is complete, or all of it that leads to the caller.
fn interpreted(state: &State) -> Option<Rule> {
    let TrackedValue::Cfa(fp) = state.register(RBP) else { return None };
    let at = |distance: i32| state.slot((Base::Cfa, fp + distance));
    let is_linked = [at(8), at(0), at(-8)]
        == [TrackedValue::ReturnAddress, TrackedValue::CallerFp, TrackedValue::Sender];
    let location = match at(-24) {
        TrackedValue::Method => method::IN_FRAME,
        _ => begun(state),
    };
    let cfa_off = i32::from_le_bytes([0, 0, 0, location]);
    is_linked.then(|| Rule { cfa_off, ..Rule::plain(op::INTERPRETED) })
}

/// The frame of the interpreter is not complete, or no longer.
fn from_sender(state: &State) -> Option<Rule> {
    // Several registers may have it. The lowest number would do as well.
    let sender = [R13, RSP, RBX].into_iter().find(|it| state.register(*it) == TrackedValue::Sender);
    let sender = sender.or_else(|| state.holder(TrackedValue::Sender))?;
    if let Some(rule) = moved(state, sender).filter(|_| sender != RSP) {
        return Some(rule);
    }
    let address = state.holder(TrackedValue::ReturnAddress)?;
    let is_kept = state.register(RBP) == TrackedValue::CallerFp;
    let locations = [sender as u8, RBP as u8, address as u8];
    is_kept.then(|| Rule::from(op::FROM_REGISTERS, begun(state), locations))
}
