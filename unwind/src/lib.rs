//! Compiles call frame information into the tables that the unwinder steps with.
//!
//! A module's `.eh_frame` and `.debug_frame`, and a Go program's `.gopclntab`, become rows of
//! compact rules ([`compile()`]). A debug file adds the code that the module does not describe
//! ([`CallFrames`]). The [`TableWriter`] lays modules out in the tables segment and publishes
//! snapshots of the target's mappings. It also keeps the tables of code that a runtime generates.
//!
//! # Invariants
//! - Modules come from the target's file system. Arbitrary bytes are expected input.
//! - Call frame information that a rule cannot express becomes a rule that ends the walk with a
//!   reason, never a guess.
//!
//! # Does not
//! - step: `traceprof_abi::unwind` does, which runs in the target too. [`RemoteUnwinder`] runs it
//!   on a copy of a stack.
//! - know where modules are mapped, or which ones are.

#![deny(unsafe_code)]

mod architecture;
mod cfi;
mod code;
mod code_memory;
mod code_writer;
mod compile;
mod corrections;
mod debug_file;
mod dwarf;
mod error;
mod fde;
mod fingerprint;
mod followed;
mod gap;
mod go;
mod interpreter;
mod kept_sp;
mod linkage;
mod python_trampolines;
mod remote;
mod rows;
mod sections;
mod shared_frame;
mod v8_builtins;
mod writer;

#[cfg(test)]
#[path = "../../src/test_turn.rs"]
#[allow(dead_code, reason = "these tests need a part of it")]
mod test_turn;
#[cfg(test)]
mod tests;

pub use code_memory::CodeHeapRef;
pub use compile::{ModuleTable, Statistics, compile, compile_image, compile_with};
pub use debug_file::CallFrames;
pub use error::CompileError;
pub use fde::function_starts;
pub use fingerprint::StackFingerprint;
pub use python_trampolines::{TRAMPOLINE_PROBE, python_trampolines};
pub use remote::{RemoteStack, RemoteUnwinder, StackCopy};
pub use writer::{ExecRange, ModuleRef, TableWriter, TablesFull};
