//! Table-driven unwinding: the compact rules that both sides read, and the pure stepping code.
//!
//! A frame word is the frame's program counter; its top bit ([`RETURN_ADDRESS`]) says that it is a
//! return address, so that what is looked up is the byte before it. The leaf and the frame below
//! a signal frame are exact.
//!
//! `tables` reads what the recorder compiled, `walk` goes up the stack, `x86_64` applies a rule to
//! a frame. Another architecture is another file beside that one, with the same items.
//!
//! # Invariants
//! - No panic, no allocation, and a bound on every loop: this runs in a signal handler of a process
//!   that is not ours.

#[cfg(all(test, not(loom), target_arch = "x86_64"))]
mod hostile;
pub mod rule;
#[cfg(not(loom))]
pub mod tables;
#[cfg(all(not(loom), target_arch = "x86_64"))]
mod walk;
#[cfg(all(not(loom), target_arch = "x86_64"))]
mod x86_64;

pub use rule::Rule;
#[cfg(not(loom))]
pub use tables::{Snapshot, Tables};
#[cfg(all(not(loom), target_arch = "x86_64"))]
pub use walk::{Memory, Unwound, unwind};
#[cfg(all(not(loom), target_arch = "x86_64"))]
pub use x86_64::{RBP, RSP, Registers};

/// Marks a frame word as a return address.
pub const RETURN_ADDRESS: u64 = 1 << 63;

/// The address to look a frame word up by: an AVMA inside the calling instruction.
pub fn lookup_avma(frame: u64) -> u64 {
    (frame & !RETURN_ADDRESS) - (frame >> 63)
}

/// Why an unwinding ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum EndReason {
    /// The thread's root was reached.
    Root = 0,
    /// The pc is in a gap of the unwind information and nothing plausible follows.
    Gap = 1,
    /// The pc is in no known module.
    NoModule = 2,
    /// The rule at the pc cannot be applied here.
    BadRule = 3,
    /// The stack pointer or a saved value lies outside the stack.
    Range = 4,
    /// [`crate::layout::DEPTH_MAX`] frames were reached.
    Depth = 5,
    /// Memory that should be stack could not be read.
    Unreadable = 6,
}

impl EndReason {
    /// All reasons, in the order of their numbers.
    pub const ALL: [Self; 7] = [
        Self::Root,
        Self::Gap,
        Self::NoModule,
        Self::BadRule,
        Self::Range,
        Self::Depth,
        Self::Unreadable,
    ];

    /// The reason with this number.
    pub fn from_number(number: u16) -> Option<Self> {
        Self::ALL.get(number as usize).copied()
    }

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Root => "root",
            Self::Gap => "gap",
            Self::NoModule => "no module",
            Self::BadRule => "bad rule",
            Self::Range => "range",
            Self::Depth => "depth",
            Self::Unreadable => "unreadable",
        }
    }
}
