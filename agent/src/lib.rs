//! The agent: what runs inside the target. A signal handler that unwinds, stores and returns.
//!
//! It is built twice: as an ordinary library, so that lints and tests see it, and by the tool's
//! build script with `--cfg agent_image` as a freestanding shared object (`image` is compiled
//! only there). The recorder lays the object out and relocates it; the target only attaches it.
//!
//! # Invariants
//! - No allocation, no lock, no libc, no thread-local storage, no panic; loops are bounded.
//! - Every early exit of the handler adds to a counter of the control block.
//! - Nothing but the data segment, the thread's own stack and the signal frame is touched.
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
pub mod frame;
#[cfg(agent_image)]
pub mod image;
pub mod memory;
pub mod prime;
pub mod rate;
pub mod record;
pub mod sample;
pub mod signal;
pub mod stack;
pub mod sys;
pub mod thread;
pub mod timer;
pub mod timer_expiry;
