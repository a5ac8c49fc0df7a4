//! The size limit for the files of a trace.
//!
//! # Invariants
//! - The limit leaves space for the end: closing metadata, the last frame, the sorted index.

use crate::trace::{TraceError, TraceWriter};

/// The space for the end, whatever the limit is.
const END_BYTES: u64 = 64 << 10;
/// The number of waiting bytes that need no flush to find their compressed size.
const WAITING: u64 = 64 << 10;

/// The limit for the bytes of both files together.
#[derive(Debug)]
pub(super) struct Limit {
    /// The size at which the recording should end.
    near: u64,
    /// The size at which the writer accepts nothing more.
    last: u64,
    is_near: bool,
}

impl Limit {
    pub(super) fn new(bytes: u64) -> Self {
        // A sorted index has pages and their checksums in addition to the contents of the journal.
        let last = bytes.saturating_sub(END_BYTES + bytes / 64);
        Self { near: last.saturating_sub(bytes / 16), last, is_near: false }
    }

    pub(super) fn is_near(&self) -> bool {
        self.is_near
    }

    pub(super) fn has_room(&mut self, writer: &mut TraceWriter) -> Result<bool, TraceError> {
        let written = TraceWriter::bytes_settled;
        let waiting = writer.unwritten_bytes() as u64;
        if written(writer) + waiting < self.near {
            return Ok(true);
        }
        if waiting >= WAITING {
            // The compressed size is smaller, and known only after the write.
            writer.flush()?;
        }
        self.is_near |= written(writer) + WAITING >= self.near;
        Ok(written(writer) + (writer.unwritten_bytes() as u64) < self.last)
    }
}
