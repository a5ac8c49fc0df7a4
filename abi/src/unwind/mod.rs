//! Table-driven unwinding: the compact rules that both sides read, and the pure code that steps by
//! them.
//!
//! A frame word is the frame's program counter. Its top bit ([`RETURN_ADDRESS`]) marks a return
//! address, for which the lookup uses the byte before it. The leaf, and the frame that a signal
//! interrupted, are exact.
//!
//! `tables` reads the tables that the recorder compiled, `code_heap` those of code that changes,
//! `walk` goes up the stack, and `x86_64` and
//! `aarch64` apply a rule to a frame of their architecture. They compute with numbers only, so
//! every host compiles all of them.
//!
//! # Invariants
//! - No panic, no allocation, and a bound on every loop: this code runs in a signal handler of
//!   another program.

#[cfg(not(loom))]
pub mod aarch64;
pub mod code_heap;
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
pub use walk::{Memory, Unwound, unwind, walk_words_max};
#[cfg(all(not(loom), target_arch = "x86_64"))]
pub use x86_64::{RBP, RSP, Registers};

/// Marks a frame word as a return address.
pub const RETURN_ADDRESS: u64 = 1 << 63;

/// Returns the address under which a frame word's rule is found: an AVMA inside the calling
/// instruction.
pub fn lookup_avma(frame: u64) -> u64 {
    (frame & !RETURN_ADDRESS) - (frame >> 63)
}

/// Returns the flags of a trace: why its unwinding ended, and the epoch of the mappings at its
/// unwinding. Equal frames of different epochs are different traces, since another file may have
/// replaced a mapped one.
pub fn trace_flags(end: EndReason, epoch: u16) -> u32 {
    end as u32 | u32::from(epoch) << 16
}

/// Returns the number of the [`EndReason`] in a trace's flags.
pub fn trace_end(flags: u32) -> u16 {
    flags as u16
}

/// Stands for an [`EndReason`] in the flags of a trace that is not a stack. Its frames are the
/// attributes of an OpenTelemetry thread context record: the first word is their length in bytes.
/// The other words hold the bytes, eight to a word, the first in the lowest bits.
pub const ATTRIBUTES: u16 = 0x100;
const _: () = assert!(ATTRIBUTES as usize >= EndReason::ALL.len());

/// Returns the epoch in a trace's flags.
pub fn trace_epoch(flags: u32) -> u16 {
    (flags >> 16) as u16
}

/// The reason why an unwinding ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum EndReason {
    /// The unwinding reached a frame that is known to be outermost.
    Root = 0,
    /// The pc is in a gap of the unwind information, and no plausible caller was found.
    Gap = 1,
    /// The pc is in no known module.
    NoModule = 2,
    /// The rule at the pc cannot be applied in this frame.
    BadRule = 3,
    /// The stack pointer or a saved value is outside the stack.
    Range = 4,
    /// The stack has more frames than [`walk_words_max`] words can hold.
    Depth = 5,
    /// Stack memory could not be read.
    Unreadable = 6,
    /// The stack continues beyond the end of its copy.
    Copied = 7,
    /// The chain of frames ended with a zero, in no frame that is known to be outermost. A register
    /// that code uses for something else may have held the zero.
    Unproven = 8,
}

impl EndReason {
    /// All reasons, in the order of their numbers.
    pub const ALL: [Self; 9] = [
        Self::Root,
        Self::Gap,
        Self::NoModule,
        Self::BadRule,
        Self::Range,
        Self::Depth,
        Self::Unreadable,
        Self::Copied,
        Self::Unproven,
    ];

    /// Returns the reason with this number.
    pub fn from_number(number: u16) -> Option<Self> {
        Self::ALL.get(number as usize).copied()
    }

    /// Returns the reason's name in reports.
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
            Self::Unproven => "unproven root",
        }
    }
}
