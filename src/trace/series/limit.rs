//! The limit for the files of a trace.
//!
//! # Invariants
//! - There is room for the end: closing metadata, the last frame, the sorted index.

use crate::trace::{TraceError, TraceWriter};

/// Room for the end, whatever the limit is.
const END_BYTES: u64 = 64 << 10;
/// So much need not be written to find out how much it is.
const WAITING: u64 = 64 << 10;

/// How many bytes both files may have together.
#[derive(Debug)]
pub(super) struct Limit {
    /// From here on the recording should end,
    near: u64,
    /// and from here on nothing is taken any more.
    last: u64,
    is_near: bool,
}

impl Limit {
    pub(super) fn new(bytes: u64) -> Self {
        // A sorted index has pages and their checksums besides what the journal has.
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
            // It takes less when it is compressed; how much shows when it is written.
            writer.flush()?;
        }
        self.is_near |= written(writer) + WAITING >= self.near;
        Ok(written(writer) + (writer.unwritten_bytes() as u64) < self.last)
    }
}
