//! Views of a trace: pure functions from a [`Profile`] to a writer.
//!
//! Invariants: the same trace gives the same bytes; text from the trace is escaped; no recursion
//! follows the depth of a stack. Does not open files other than the trace, print to a terminal or
//! know of arguments.

pub mod calls;
mod date;
pub mod dump;
pub mod escape;
pub mod export;
mod load;
mod names;
mod profile;
mod rows;
mod summary;
pub mod tree;

pub use load::load;
pub use profile::{Profile, ThreadGrower, ThreadProfile};
pub use rows::Limits;
