//! The agent: the code that runs inside the target. Its signal handler unwinds, stores the sample
//! and returns.
//!
//! It is built twice: as an ordinary library, for lints and tests, and by the tool's build script
//! with `--cfg agent_image` as a freestanding shared object (only then is `image` compiled). The
//! recorder lays out and relocates the object. The target only maps it.
//!
//! # Invariants
//! - No allocation, no lock, no libc, no thread-local storage, no panic; loops are bounded.
//! - Every early exit of the handler increments a counter of the control block.
//! - The agent writes only to the data segment, the thread's own stack and the signal frame.
//!
//! # Does not
//! - open files, start threads or keep descriptors.
#![cfg_attr(not(test), no_std)]
#![deny(unsafe_op_in_unsafe_fn)]

pub mod clock;
pub mod context;
pub mod cost;
pub mod entry;
pub mod event;
pub mod event_expiry;
pub mod frame;
#[cfg(agent_image)]
pub mod image;
pub mod memory;
pub mod objects;
pub mod otel_record;
pub mod own_stack;
pub mod prime;
pub mod probe;
pub mod rate;
pub mod runtime;
pub mod sample;
pub mod signal;
pub mod stack;
pub mod sys;
pub mod thread;
pub mod timer;
pub mod timer_expiry;
