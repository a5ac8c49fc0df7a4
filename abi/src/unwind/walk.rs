//! The walk up a stack: looks up a rule for each frame and has the architecture apply it.
//!
//! # Invariants
//! - At most `frames.len()` steps, each with a bounded number of loads.
//! - Nothing is read but through [`Memory`], and nothing through [`Memory::load`] outside
//!   [`Memory::bounds`].
//!
//! # Does not
//! - know registers or instructions: those are in the architecture's file.

use super::rule::{Rule, op};
use super::tables::{Module, RBX_LOST, Range, Snapshot};
use super::{EndReason, RETURN_ADDRESS};
use crate::sync::{AtomicU64, Ordering};

/// The registers of a machine, to unwind from.
pub trait Machine {
    /// Its frames.
    type Frame: Climb;

    /// The frame that they are of.
    fn leaf(&self) -> Self::Frame;
}

/// A machine's frame on the way up.
pub trait Climb {
    /// Its program counter.
    fn pc(&self) -> u64;

    /// The pc is where the frame runs, not where a call returns to.
    fn is_exact(&self) -> bool;

    /// Moves to the caller.
    fn step(&mut self, lookup: &mut Lookup, memory: &mut impl Memory) -> Result<(), EndReason>;
}

/// The stack that is walked.
pub trait Memory {
    /// One 8-byte load that never faults. Asked only for multiples of 8 within the bounds.
    fn load(&mut self, avma: u64) -> Option<u64>;

    /// Called after a signal frame or a stack switch: the bounds are derived anew from this sp.
    /// False if there is no stack known at `sp`.
    fn rebound(&mut self, sp: u64) -> bool;

    /// The stack's readable range [lo, hi).
    fn bounds(&self) -> (u64, u64);

    /// Eight bytes of code, or of what code names as the place of a jump's target, at any address
    /// at all, never faulting. Only asked in code without unwind information; `None` costs such a
    /// frame its caller and nothing else.
    fn load_code(&mut self, _avma: u64) -> Option<u64> {
        None
    }
}

/// What an unwinding found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unwound {
    /// Frame words written.
    pub depth: usize,
    /// Why there are no more.
    pub end: EndReason,
}

/// Unwinds from `registers` and stores the frame words, leaf first. `frames.len()` is the depth
/// limit.
pub fn unwind(
    snapshot: &Snapshot,
    registers: &impl Machine,
    memory: &mut impl Memory,
    frames: &[AtomicU64],
) -> Unwound {
    let mut frame = registers.leaf();
    let mut lookup = Lookup::new(snapshot);
    let mut depth = 0usize;
    for word in frames {
        let mark = if frame.is_exact() { 0 } else { RETURN_ADDRESS };
        // Relaxed: the words are the caller's own until it publishes them.
        word.store((frame.pc() & !RETURN_ADDRESS) | mark, Ordering::Relaxed);
        depth = depth.wrapping_add(1);
        if let Err(end) = frame.step(&mut lookup, memory) {
            return Unwound { depth, end };
        }
    }
    Unwound { depth, end: EndReason::Depth }
}

/// One stack word at or above `floor` and below the upper bound.
#[inline]
pub(super) fn word(memory: &mut impl Memory, floor: u64, avma: u64) -> Result<u64, EndReason> {
    let (lo, hi) = memory.bounds();
    if avma < floor || avma < lo || avma & 7 != 0 || hi < 8 || avma > hi.wrapping_sub(8) {
        return Err(EndReason::Range);
    }
    memory.load(avma).ok_or(EndReason::Unreadable)
}

/// Rule lookups in one snapshot. Neighbouring frames are often of one module, so the last one is
/// kept.
#[derive(Debug)]
pub struct Lookup<'s> {
    snapshot: &'s Snapshot<'s>,
    range: Option<&'s Range>,
    /// The table of `range`; `None` for anonymous code.
    module: Option<Module<'s>>,
}

impl<'s> Lookup<'s> {
    pub(super) fn new(snapshot: &'s Snapshot<'s>) -> Self {
        Self { snapshot, range: None, module: None }
    }

    /// The rule at an address, and where it keeps the caller's rbx.
    #[inline]
    pub(super) fn rule(&mut self, avma: u64) -> Result<(Rule, i16), EndReason> {
        let range = match self.range {
            Some(range) if range.start <= avma && avma < range.end => range,
            _ => self.enter(avma)?,
        };
        Ok(match &self.module {
            Some(module) => module.rule_and_rbx(avma.wrapping_sub(range.bias)),
            None => (Rule::GAP_FP, RBX_LOST),
        })
    }

    /// The rule at an address, if that is in the range that was looked up last.
    #[inline]
    pub(super) fn rule_beside(&self, avma: u64) -> Option<Rule> {
        let range = self.range.filter(|range| range.start <= avma && avma < range.end)?;
        self.module.as_ref().map(|module| module.rule(avma.wrapping_sub(range.bias)))
    }

    /// Takes up the range that an address lies in.
    #[inline]
    fn enter(&mut self, avma: u64) -> Result<&'s Range, EndReason> {
        let range = self.snapshot.range(avma).ok_or(EndReason::NoModule)?;
        self.module = self.snapshot.module(range);
        if self.module.is_none() && range.module != 0 {
            return Err(EndReason::NoModule);
        }
        self.range = Some(range);
        Ok(range)
    }

    /// The address is that of a signal trampoline.
    pub(super) fn is_trampoline(&self, avma: u64) -> bool {
        self.op(avma) == Some(op::SIGNAL)
    }

    /// The address is in code that keeps frame pointers, as far as is known, and has no unwind
    /// information.
    pub(super) fn is_generated(&self, avma: u64) -> bool {
        self.op(avma) == Some(op::GAP_FP)
    }

    /// The op at an address of another range, most likely, than the one that was looked up last.
    fn op(&self, avma: u64) -> Option<u8> {
        let range = self.snapshot.range(avma)?;
        match self.snapshot.module(range) {
            Some(module) => Some(module.rule(avma.wrapping_sub(range.bias)).op),
            None => (range.module == 0).then_some(op::GAP_FP),
        }
    }

    /// Both addresses lie in one row of a module's table.
    pub(super) fn is_one_row(&self, one: u64, other: u64) -> bool {
        let row = |avma: u64| {
            let range = self.snapshot.range(avma)?;
            let row = self.snapshot.module(range)?.row(avma.wrapping_sub(range.bias))?;
            Some((range.module, range.bias, row))
        };
        row(one).is_some_and(|one| row(other) == Some(one))
    }

    /// The address lies in an executable range.
    pub(super) fn is_code(&self, avma: u64) -> bool {
        self.snapshot.range(avma).is_some()
    }
}
