//! The destination of the bytes of one of the two files.
//!
//! # Invariants
//! - After a failed write the file is cut back to its complete part.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use super::TraceError;

/// A file, or its replacement in tests.
pub(super) trait Sink: Write + Send + std::fmt::Debug {
    /// Truncates the file to `bytes` bytes.
    fn cut(&mut self, bytes: u64) -> io::Result<()>;
    /// Makes the written data survive a crash of the machine.
    fn sync(&mut self) -> io::Result<()>;
    /// Returns the time since any fixed moment, for the sync schedule.
    fn uptime(&self) -> Duration;
    /// Releases the space that is reserved for the end.
    fn release(&mut self);
}

/// One of the two files of a trace.
#[derive(Debug)]
pub(super) struct TraceFile {
    sink: Box<dyn Sink>,
    pub(super) path: PathBuf,
    bytes: u64,
    synced: u64,
    torn: bool,
}

impl TraceFile {
    pub(super) fn new(sink: Box<dyn Sink>, path: PathBuf) -> Self {
        Self { sink, path, bytes: 0, synced: 0, torn: false }
    }

    /// Returns the number of bytes in the file, without those that were cut off.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns whether a cut failed: nothing may follow the data at its end.
    pub(super) fn is_torn(&self) -> bool {
        self.torn
    }

    /// See [`Sink::uptime`].
    pub(super) fn uptime(&self) -> Duration {
        self.sink.uptime()
    }

    /// See [`Sink::release`].
    pub(super) fn release(&mut self) {
        self.sink.release();
    }

    /// Appends all bytes, or nothing.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), TraceError> {
        if let Err(source) = self.sink.write_all(bytes) {
            self.cut(self.bytes);
            return Err(TraceError::write(&self.path, source));
        }
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Treats the written data as synced, as a state to return to, without a sync of the disk.
    pub(super) fn assume_synced(&mut self) {
        self.synced = self.bytes;
    }

    /// Makes the written data durable. After a failure, the data on the disk is unknown, and
    /// another attempt would wrongly succeed; so data that was not synced before is cut off.
    pub(super) fn sync(&mut self) -> Result<(), TraceError> {
        if let Err(source) = self.sink.sync() {
            self.cut(self.synced);
            return Err(TraceError::write(&self.path, source));
        }
        self.synced = self.bytes;
        Ok(())
    }

    /// Cuts the file back. If that fails, the bytes after the last complete frame are harmless, but
    /// nothing can follow them.
    fn cut(&mut self, bytes: u64) {
        self.torn |= self.sink.cut(bytes).is_err();
        self.bytes = bytes;
    }
}
