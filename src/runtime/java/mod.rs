//! HotSpot: the machine of OpenJDK 8, 11, 17, 21 and 25.
//!
//! `exports` reads the file that contains the machine: libjvm. A machine describes itself to its
//! debugger in tables; `tables` reads them, and `layout` takes all offsets from there.
//! `machine` finds the machine in a live process. `heaps` and `blob` find the code at an
//! address, `compiled` the methods in it, and `method` their names and lines. `unloads` counts what
//! may change what names were read from. `threads` has the names of threads, `waits` what they wait
//! for, `compiling` what those of the compilers compile, and `carried` where a handler finds the
//! virtual threads that they carry. `code_scan` finds new code, `arrival` says since when it is
//! there, `blob_code` what is known of it, and `follow` makes its unwind rules.

mod arrival;
mod blob;
mod blob_code;
mod carried;
mod class_name;
mod code_changes;
mod code_layout;
mod code_scan;
mod compiled;
mod compiling;
mod exports;
mod follow;
#[cfg(any(test, fuzzing))]
pub mod fuzz_entry;
mod heap_watch;
mod heaps;
#[cfg(any(test, fuzzing))]
mod image;
mod known_blocks;
mod layout;
mod lines;
mod machine;
mod method;
mod numbers;
mod objects;
mod segment_map;
mod tables;
#[cfg(test)]
pub(crate) mod tests;
mod thaw;
mod thread_fields;
mod thread_finder;
mod threads;
mod unloads;
mod waits;

pub use blob::{BlobKind, CodeBlob, CompiledIdentity};
pub use carried::carried_block;
pub use code_changes::{CodeChanges, ScanBudget, ScanDepth, ScannedCode};
pub use code_scan::CodeScan;
pub use compiled::{CompiledCode, JavaPosition};
pub use exports::{JavaExports, has_agent};
pub use machine::{JavaMachine, JavaReader};
pub use method::{InterpretedMethod, JavaMethod};
pub use thread_finder::JavaWaits;
pub use threads::JavaThread;
pub use unloads::{UnloadCount, may_redefine};
pub use waits::{JavaActivity, JavaState, RunningCode};
