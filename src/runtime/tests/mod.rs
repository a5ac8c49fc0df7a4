//! Interpreters that run, and memory that holds anything.

mod image;
mod interpreters;
mod line_tables;
mod live;
mod task_offsets;
mod wild;

/// Where programs that the tests need are put, if they are no packages of the system.
pub(super) const TOOLS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/target/tools");
