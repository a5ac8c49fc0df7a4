//! Attach sampling profiler for Linux.
//!
//! # Architecture
//! The target does the least possible: a signal handler that unwinds, stores and returns
//! (`traceprof-agent`). Everything that can be done outside is done here, in the recorder, over
//! shared memory whose layout is in [`traceprof_abi`].
//!
//! Floors, with dependencies downwards only (checked by `tests/tidy.rs`):
//!
//! | floor | modules | knows |
//! |---|---|---|
//! | 4 | [`cli`] | arguments, terminal, exit codes |
//! | 3 | [`record`], [`view`] (not each other) | the story of a recording; pure views of a trace |
//! | 2 | [`inject`], [`unwind`], [`symbol`], [`trace`] (not each other) | one mechanism each |
//! | 1 | [`elf`], [`proc`] | parsers |
//! | 0 | [`traceprof_abi`] | what both processes share |
#![deny(unsafe_code)]

pub mod cli;
pub mod elf;
pub mod inject;
pub mod proc;
pub mod record;
pub mod symbol;
pub mod trace;
pub mod unwind;
pub mod view;
