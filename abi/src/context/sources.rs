//! The context sources: addresses in the target that the recorder has found for the handlers.

use super::TAGS;
use crate::sync::{AtomicU32, AtomicU64};

/// Maximum number of tables that the handlers read.
pub const SOURCES_TABLES: usize = 8;
/// Maximum number of OpenTelemetry variables that the handlers read.
pub const SOURCES_RECORDS: usize = 4;

/// The origins of a sample's context.
pub mod origin {
    /// No origin: the sample has no context.
    pub const NONE: u32 = 0;
    /// A table. This is the value for the first table, and each further one adds 1.
    pub const TABLE: u32 = 1;
    /// A thread context record of OpenTelemetry.
    pub const RECORD: u32 = 0x100;
}

/// The way from the thread pointer to a thread-local variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum RecordKind {
    /// At a fixed offset from the thread pointer.
    Offset = 1,
    /// Through glibc's vector of blocks (DTV), with 16 bytes for each module.
    Glibc = 2,
    /// Through musl's vector of blocks, with 8 bytes for each module.
    Musl = 3,
}

impl RecordKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Offset, Self::Glibc, Self::Musl];
}

/// A thread-local pointer to a thread context record.
#[repr(C)]
#[derive(Debug, Default)]
pub struct RecordSource {
    /// [`RecordKind`], stored last. 0 for an unused source.
    pub kind: AtomicU64,
    /// Offset in bytes from the thread pointer (a signed number), or from the start of the module's
    /// block.
    pub offset: AtomicU64,
    /// The module's index in the vector.
    pub module: AtomicU64,
}

/// The sources that the recorder has found. The handlers only read them.
#[repr(C)]
#[derive(Debug, Default)]
pub struct ContextSources {
    /// Number of used [`Self::tables`]. Stored with Release after their addresses.
    pub tables_used: AtomicU32,
    /// Number of used [`Self::records`]. Stored with Release after their locations.
    pub records_used: AtomicU32,
    /// 1 if programs may use the instruction that reads the thread pointer.
    pub has_fsgsbase: AtomicU32,
    pub(crate) reserved: AtomicU32,
    /// Addresses of tables ([`super::ContextTable`]), 0 for one that no longer exists.
    pub tables: [AtomicU64; SOURCES_TABLES],
    /// The OpenTelemetry variables.
    pub records: [RecordSource; SOURCES_RECORDS],
}
#[cfg(not(loom))]
const _: () =
    assert!(size_of::<ContextSources>() == 16 + 8 * SOURCES_TABLES + 24 * SOURCES_RECORDS);
const _: () = assert!(TAGS.is_multiple_of(2));
