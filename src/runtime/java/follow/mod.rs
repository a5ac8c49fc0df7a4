//! Unwind rules of code that HotSpot generated, from the code itself.
//!
//! HotSpot says how large a frame is and from which instruction on it is complete. That is enough
//! for a frame that has called. It is not enough for the topmost one, which may be in a prologue,
//! an epilogue, an intrinsic, a stub or at the edge of the interpreter. So the instructions are
//! followed from the entries: [`state`] is what is known before each, [`step`] what an instruction
//! changes, [`flow`] the paths, and [`rules`] what a handler can do with the result.
//!
//! # Invariants
//! - The code belongs to another process. Any bytes are expected input: the work is bounded by
//!   their number.
//! - Where two paths disagree, the rule is [`Rule::BAD`]. A wrong depth finds the return address of
//!   an earlier call, which looks right.
//!
//! # Does not
//! - read memory, or know where the numbers that describe the code come from.

mod flow;
mod rules;
mod state;
mod step;
#[cfg(test)]
mod tests;

use traceprof_abi::unwind::Rule;

/// The kind of a piece of code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GeneratedKind {
    /// A method that C1 or C2 compiled, or the wrapper of a native method.
    Method,
    /// A part of the interpreter at which methods begin.
    InterpreterEntry,
    /// Another part of the interpreter, in which frames are complete.
    Interpreter,
    /// Calls through method handles, which the interpreter makes like those of methods.
    MethodHandles,
    /// The adapter between the interpreter's calls and those of compiled code.
    Adapter,
    /// Virtual calls, and what comes before a call, which have no frame.
    VirtualCall,
    /// Many functions, of which some entries are known.
    Stubs,
    /// One function of the runtime.
    RuntimeStub,
    /// A function of the runtime to which another one jumps with its frame.
    FramedStub,
    /// The function to which a poll leads in the middle of a method, which calls nothing: the
    /// machine knows the address at which the method goes on, and this code stores it.
    Poll,
    /// Functions that replace frames: of deoptimization, and of traps that deoptimize.
    Deoptimization,
    /// The function to which a method jumps after an exception.
    Exception,
}

/// A piece of code.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GeneratedCode<'a> {
    pub(crate) kind: GeneratedKind,
    /// Address of the first instruction (AVMA).
    pub(crate) start: u64,
    pub(crate) bytes: &'a [u8],
    /// Size of the frame in words with the return address, 0 if it has none.
    pub(crate) frame_words: u32,
    /// Offset of the first instruction with a complete frame, for a method.
    pub(crate) frame_complete: Option<u32>,
    /// Offsets of further entries: the first instruction is one.
    pub(crate) entries: &'a [u32],
    /// Where frames continue that were deoptimized.
    pub(crate) deoptimized: Deoptimized<'a>,
}

/// Where frames of a method continue that were deoptimized.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Deoptimized<'a> {
    /// Offsets of the handlers.
    pub(crate) handlers: &'a [u32],
    /// Distance from the stack pointer to the original return address, in words.
    pub(crate) original_words: i16,
}

/// The rules of a piece of code.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Followed {
    /// Rules and the offsets from which on they apply.
    pub(crate) rows: Vec<(u32, Rule)>,
    /// Number of instructions that were followed.
    pub(crate) instructions: usize,
    /// Number of these without a rule.
    pub(crate) unknown: usize,
    /// Whether the work grew beyond its limit, so that there are no rules.
    pub(crate) is_cut: bool,
}

impl Followed {
    /// Gives one byte a rule of its own.
    pub(crate) fn insert_byte(&mut self, offset: u32, rule: Rule) {
        let Some(end) = offset.checked_add(1) else { return };
        let after = self.rows.partition_point(|(at, _)| *at <= end);
        let Some((_, old)) = after.checked_sub(1).and_then(|at| self.rows.get(at)).copied() else {
            return;
        };
        let first = self.rows.partition_point(|(at, _)| *at < offset);
        self.rows.splice(first..after, [(offset, rule), (end, old)]);
    }
}

/// Longest code that is followed. The longest that is known has 400 KiB.
const CODE_MAX: usize = 2 << 20;

/// Length of a stub through which compiled code calls a method that is not compiled.
pub(crate) const CALL_STUB_LEN: usize = 15;

/// Whether code begins with such a stub: `mov rbx, METHOD; jmp ENTRY`.
pub(crate) fn is_call_stub(code: &[u8]) -> bool {
    code.starts_with(&[0x48, 0xbb]) && code.get(10) == Some(&0xe9)
}

/// Returns the rules of a piece of code.
pub(crate) fn follow(code: &GeneratedCode<'_>) -> Followed {
    if code.kind == GeneratedKind::VirtualCall {
        // Functions without frames, which the machine adds to the code while it runs: what is free
        // now has the same rule later.
        let rule = rules::rule(&state::State::called());
        return Followed { rows: vec![(0, rule)], ..Followed::default() };
    }
    if code.bytes.len() > CODE_MAX {
        return Followed { rows: vec![(0, Rule::BAD)], is_cut: true, ..Followed::default() };
    }
    match flow::Flow::of(code) {
        Some(flow) => rules::rows(code, &flow),
        None => Followed { rows: vec![(0, Rule::BAD)], is_cut: true, ..Followed::default() },
    }
}
