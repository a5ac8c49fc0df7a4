//! Where the handlers look for contexts: addresses in the target, which the recorder has found.

use super::TAGS;
use crate::sync::{AtomicU32, AtomicU64};

/// Tables that are looked at.
pub const SOURCES_TABLES: usize = 8;
/// Variables of OpenTelemetry that are looked at.
pub const SOURCES_RECORDS: usize = 4;

/// What a sample's context comes from.
pub mod origin {
    /// Nothing: the sample has no context.
    pub const NONE: u32 = 0;
    /// A table: its place among the sources, plus 1.
    pub const TABLE: u32 = 1;
    /// A thread context record of OpenTelemetry.
    pub const RECORD: u32 = 0x100;
}

/// How a thread-local variable is found from the thread pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum RecordKind {
    /// At a fixed distance.
    Offset = 1,
    /// By way of glibc's vector of blocks: 16 bytes for each module.
    Glibc = 2,
    /// By way of musl's: 8 bytes for each.
    Musl = 3,
}

impl RecordKind {
    /// All there are.
    pub const ALL: [Self; 3] = [Self::Offset, Self::Glibc, Self::Musl];
}

/// A thread-local pointer to a thread context record.
#[repr(C)]
#[derive(Debug, Default)]
pub struct RecordSource {
    /// [`RecordKind`], stored last; 0 for a source that is not there.
    pub kind: AtomicU64,
    /// Bytes from the thread pointer (as a signed number), or from the start of the module's block.
    pub offset: AtomicU64,
    /// The module's number in the vector.
    pub module: AtomicU64,
}

/// What the recorder has found. The handlers only read it.
#[repr(C)]
#[derive(Debug, Default)]
pub struct ContextSources {
    /// Number of [`Self::tables`] and of [`Self::records`] that are in use: with Release, after
    /// them.
    pub tables_used: AtomicU32,
    /// See above.
    pub records_used: AtomicU32,
    /// 1 if the instruction that reads the thread pointer may be used.
    pub has_fsgsbase: AtomicU32,
    pub(crate) reserved: AtomicU32,
    /// Addresses of tables ([`super::ContextTable`]), 0 for one that is gone.
    pub tables: [AtomicU64; SOURCES_TABLES],
    /// Variables of OpenTelemetry.
    pub records: [RecordSource; SOURCES_RECORDS],
}
#[cfg(not(loom))]
const _: () =
    assert!(size_of::<ContextSources>() == 16 + 8 * SOURCES_TABLES + 24 * SOURCES_RECORDS);
const _: () = assert!(TAGS.is_multiple_of(2));
