//! Rules of functions without call frame information, from their instructions.
//!
//! C libraries, hand-written code and programs of some compilers have none. A function begins with
//! its return address at the top of the stack. From there on, the instructions say how far the
//! stack pointer is from it, and where the caller's rbp is. [`state`] is what is known before an
//! instruction, [`step`] what the instruction changes, [`flow`] the paths.
//!
//! # Invariants
//! - A state is right only if it leads to a return that finds the return address at the top of the
//!   stack. All other code keeps the rule of its gap: a wrong distance finds the return address of
//!   an earlier call, which looks right.
//! - Any bytes are expected input. The work is bounded by their number.

mod flow;
mod state;
mod step;
#[cfg(test)]
mod tests;

use super::rows::RuleRange;

/// Most bytes of a gap that are followed.
const CODE_MAX: usize = 4 << 20;

/// Returns the rules of the functions in a gap, ascending. `starts` are the offsets of known
/// functions, ascending, and `svma` is the address of the gap's first byte.
pub(super) fn parts(code: &[u8], svma: u64, starts: &[u32]) -> Vec<RuleRange> {
    match code.len() <= CODE_MAX {
        true => flow::GapFlow::of(code, svma, starts).parts(),
        false => Vec::new(),
    }
}
