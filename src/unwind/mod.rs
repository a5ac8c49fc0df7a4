//! Compiles call frame information into the tables that stacks are stepped with.
//!
//! A module's `.eh_frame`, `.debug_frame` and, of Go programs, `.gopclntab` become rows of compact
//! rules ([`compile()`]), with those of its debug file where it says nothing itself ([`CallFrames`]); the
//! [`TableWriter`] lays modules out in the tables segment and publishes snapshots of the target's
//! mappings.
//!
//! # Invariants
//! - Modules come from the target's file system: any bytes are ordinary input.
//! - What cannot be expressed becomes a rule that ends the walk with a reason, never a guess.
//!
//! # Does not
//! - step: that is `traceprof_abi::unwind`, which runs in the target too ([`OutsideUnwinder`] has it
//!   step over a copy of a stack);
//! - know where modules are mapped, or which.

mod amend;
mod cfi;
mod code;
mod compile;
mod entries;
mod error;
mod evidence;
mod gap;
mod go;
mod machine;
mod outside;
mod rows;
mod separate;
mod subroutines;
mod trampolines;
mod writer;

#[cfg(test)]
mod tests;

pub use compile::{ModuleTable, Statistics, compile, compile_image, compile_with};
pub use entries::function_starts;
pub use error::CompileError;
pub use evidence::Evidence;
pub use outside::{OutsideStack, OutsideUnwinder, StackCopy};
pub use separate::CallFrames;
pub use trampolines::{TRAMPOLINE_PROBE, trampolines};
pub use writer::{ExecRange, ModuleRef, TableWriter, TablesFull};
