//! Table-driven unwinding: the compact rules that both sides read, and the pure stepping code.
//!
//! A frame word is the frame's program counter; its top bit ([`RETURN_ADDRESS`]) says that it is a
//! return address, so that what is looked up is the byte before it. The leaf and the frame below
//! a signal frame are exact.
//!
//! `tables` reads what the recorder compiled, `walk` goes up the stack, `x86_64` and `aarch64`
//! apply a rule to a frame of theirs. They touch nothing but numbers, so each is there on every
//! host.
//!
//! # Invariants
//! - No panic, no allocation, and a bound on every loop: this runs in a signal handler of a process
//!   that is not ours.

#[cfg(not(loom))]
pub mod aarch64;
#[cfg(all(test, not(loom)))]
mod hostile;
pub mod rule;
#[cfg(not(loom))]
pub mod tables;
#[cfg(not(loom))]
mod walk;
#[cfg(not(loom))]
pub mod x86_64;

pub use rule::Rule;
#[cfg(not(loom))]
pub use tables::{Snapshot, Tables};
#[cfg(not(loom))]
pub use walk::{Memory, Unwound, unwind};
#[cfg(all(not(loom), target_arch = "x86_64"))]
pub use x86_64::{RBP, RSP, Registers};

/// Marks a frame word as a return address.
pub const RETURN_ADDRESS: u64 = 1 << 63;

/// The address to look a frame word up by: an AVMA inside the calling instruction.
pub fn lookup_avma(frame: u64) -> u64 {
    (frame & !RETURN_ADDRESS) - (frame >> 63)
}

/// The flags of a trace: why its unwinding ended, and the epoch of the mappings that it was unwound
/// with. Equal frames of different epochs are different traces, since another file may have been
/// mapped in the place of one.
pub fn trace_flags(end: EndReason, epoch: u16) -> u32 {
    end as u32 | u32::from(epoch) << 16
}

/// The number of the [`EndReason`] in a trace's flags.
pub fn trace_end(flags: u32) -> u16 {
    flags as u16
}

/// In place of an [`EndReason`] in the flags of what is no stack: its frames are the attributes of
/// a thread context record of OpenTelemetry. The first word is their length in bytes, the others
/// hold them, eight to a word, the first in the lowest bits.
pub const ATTRIBUTES: u16 = 0x100;
const _: () = assert!(ATTRIBUTES as usize >= EndReason::ALL.len());

/// The epoch in a trace's flags.
pub fn trace_epoch(flags: u32) -> u16 {
    (flags >> 16) as u16
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
    /// The stack goes on where the copy that was taken of it ends.
    Copied = 7,
}

impl EndReason {
    /// All reasons, in the order of their numbers.
    pub const ALL: [Self; 8] = [
        Self::Root,
        Self::Gap,
        Self::NoModule,
        Self::BadRule,
        Self::Range,
        Self::Depth,
        Self::Unreadable,
        Self::Copied,
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
            Self::Copied => "end of the copy",
        }
    }
}
