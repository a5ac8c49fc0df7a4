//! The layouts and algorithms that the recorder and the agent inside the target share (layer 0).
//!
//! Both processes map three memory segments, at constant distances from each other, so that the
//! agent computes the addresses of the other two from its own program counter:
//!
//! | segment | access in the target | at                       | holds                                     |
//! |---------|----------------------|--------------------------|-------------------------------------------|
//! | code    | read, execute        | base                     | the relocated agent image                 |
//! | tables  | read                 | base + [`layout::TABLES_DISTANCE`] | unwind tables, mappings ([`unwind`]) |
//! | data    | read, write          | base + [`layout::DATA_DISTANCE`]   | [`layout::ControlBlock`], [`thread`] slots, [`storage`] |
//!
//! # Invariants
//! - Everything in shared memory is addressed by offset and is `repr(C)`. Its size and offsets are
//!   asserted beside its definition. Any change of them bumps [`ABI_VERSION`].
//! - The data segment consists of atomics only, because both sides write it concurrently. The
//!   target may scribble over it, so the recorder checks whatever it reads.
//! - Code on the handler path does not allocate, lock, panic or loop without a bound.
//!
//! # Does not
//! - know about files, processes, ptrace or symbols;
//! - depend on anything but `core`.
#![cfg_attr(not(test), no_std)]
#![deny(unsafe_op_in_unsafe_fn)]
#[cfg(loom)]
extern crate std;

#[cfg(target_arch = "x86_64")]
pub mod calls;
pub mod clock;
pub mod context;
pub mod event;
pub mod layout;
#[cfg(not(loom))]
pub mod runtime;
#[cfg(not(loom))]
pub mod segment;
pub mod signal;
pub mod storage;
pub mod sync;
pub mod thread;
pub mod unwind;

/// The version of all layouts in this crate. The agent refuses a control block with another
/// version.
pub const ABI_VERSION: u32 = 14;
