//! What is known before an instruction.

use traceprof_abi::unwind::Rule;
use traceprof_abi::unwind::rule::{fp_op, op};

/// Largest distance from the CFA that a rule has, in bytes.
const DISTANCE_MAX: i32 = 1 << 24;

/// What rbp holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rbp {
    /// The caller's value.
    Caller,
    /// An address so many bytes below the CFA.
    Frame(i32),
    /// Another value.
    Other,
}

/// What is known before an instruction. Distances are in bytes below the CFA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FrameState {
    /// The distance of the stack pointer, if it is known.
    sp: Option<i32>,
    rbp: Rbp,
    /// The distance of the slot with the caller's rbp.
    saved: Option<i32>,
}

impl FrameState {
    /// The first instruction of a function.
    pub(super) const CALLED: Self = Self { sp: Some(8), rbp: Rbp::Caller, saved: None };

    /// Whether the return address is at the top of the stack, and rbp is the caller's.
    pub(super) fn is_at_return(&self) -> bool {
        self.sp == Some(8) && self.rbp == Rbp::Caller
    }

    /// Whether the stack is aligned as it must be at a call.
    pub(super) fn is_aligned(&self) -> bool {
        self.sp.is_none_or(|sp| sp % 16 == 0)
    }

    /// Returns what two states agree on, if they say where the return address is.
    pub(super) fn meet(&self, other: &Self) -> Option<Self> {
        let rbp = if self.rbp == other.rbp { self.rbp } else { Rbp::Other };
        let sp = self.sp.filter(|_| self.sp == other.sp);
        let is_saved = rbp == self.rbp || self.saved.is_some();
        (self.saved == other.saved && is_saved).then_some(Self { sp, rbp, saved: self.saved })
    }

    /// Returns the distance of the stack pointer, what rbp holds, and the slot of the caller's rbp.
    #[cfg(test)]
    pub(super) fn parts(&self) -> (Option<i32>, Rbp, Option<i32>) {
        (self.sp, self.rbp, self.saved)
    }

    /// Whether the stack pointer is known.
    pub(super) fn is_known(&self) -> bool {
        self.sp.is_some()
    }

    /// Moves the stack pointer down by so many bytes. A slot that is left is lost.
    pub(super) fn lower(&mut self, bytes: i32) {
        self.set_sp(self.sp.and_then(|sp| sp.checked_add(bytes)));
    }

    /// Makes the stack pointer this distance.
    pub(super) fn set_sp(&mut self, distance: Option<i32>) {
        self.sp = distance.filter(|it| it.abs() < DISTANCE_MAX);
        if self.sp.is_some_and(|sp| self.saved.is_some_and(|saved| saved > sp)) {
            self.saved = None;
        }
    }

    /// Makes the stack pointer an address at this offset from rbp.
    pub(super) fn set_sp_from_rbp(&mut self, offset: i32) {
        let Rbp::Frame(distance) = self.rbp else { return self.set_sp(None) };
        self.set_sp(distance.checked_sub(offset));
    }

    /// Makes rbp the stack pointer.
    pub(super) fn frame(&mut self) {
        self.set_rbp(self.sp.map_or(Rbp::Other, Rbp::Frame));
    }

    /// Gives rbp a value.
    pub(super) fn set_rbp(&mut self, value: Rbp) {
        self.rbp = value;
    }

    /// Notes that rbp is stored at this offset from the stack pointer.
    pub(super) fn store_rbp(&mut self, offset: i32) {
        let slot = self.sp.and_then(|sp| sp.checked_sub(offset));
        let is_slot = slot.is_some_and(|it| it % 8 == 0 && it.abs() < DISTANCE_MAX);
        if self.rbp == Rbp::Caller && is_slot {
            self.saved = slot;
        }
    }

    /// Notes that something is stored at this offset from the stack pointer. Code that changes its
    /// return address does not return to its caller.
    pub(super) fn store(&mut self, offset: i32) {
        let slot = self.sp.and_then(|sp| sp.checked_sub(offset));
        let overlaps = |other: i32| slot.is_some_and(|slot| slot.abs_diff(other) < 8);
        if self.saved.is_some_and(overlaps) {
            self.saved = None;
        }
        if overlaps(8) {
            self.sp = None;
        }
    }

    /// Notes that rbp is loaded from this offset from the stack pointer.
    pub(super) fn load_rbp(&mut self, offset: i32) {
        let slot = self.sp.and_then(|sp| sp.checked_sub(offset));
        let is_saved = slot.is_some() && slot == self.saved;
        self.set_rbp(if is_saved { Rbp::Caller } else { Rbp::Other });
    }

    /// Returns the rule of an instruction with this state.
    pub(super) fn rule(&self) -> Option<Rule> {
        let (op, cfa_off) = match (self.sp, self.rbp) {
            // Below the return address, which may be overwritten.
            (Some(..8), _) => return None,
            (Some(sp), _) => (op::SP, sp),
            (None, Rbp::Frame(distance)) => (op::FP, distance),
            _ => return None,
        };
        let (fp_op, fp_off) = match (self.rbp, self.saved) {
            (Rbp::Caller, _) => (fp_op::SAME, 0),
            (_, Some(slot)) => (fp_op::AT_CFA, -slot / 8),
            _ => (fp_op::CLEAR, 0),
        };
        let fp_off = i16::try_from(fp_off).ok()?;
        let rule = Rule { op, fp_op, fp_off, cfa_off };
        Some(if rule == (Rule { op: op::FP, ..Rule::FP_STD }) { Rule::FP_STD } else { rule })
    }
}
