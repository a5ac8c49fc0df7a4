//! What takes the bytes of one of the two files.
//!
//! # Invariants
//! - After a failed write the file is cut back to what was whole before.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use super::TraceError;

/// A file, or what stands for one in tests.
pub(super) trait Sink: Write + Send + std::fmt::Debug {
    /// Cuts what was written to `bytes` bytes.
    fn cut(&mut self, bytes: u64) -> io::Result<()>;
    /// Makes what was written survive a crash of the machine.
    fn sync(&mut self) -> io::Result<()>;
    /// Time since any fixed moment: when to sync depends on it.
    fn uptime(&self) -> Duration;
    /// Gives up the room that was kept free for the last words.
    fn release(&mut self);
}

/// One of the two files.
#[derive(Debug)]
pub(super) struct Target {
    sink: Box<dyn Sink>,
    pub(super) path: PathBuf,
    bytes: u64,
    synced: u64,
    torn: bool,
}

impl Target {
    pub(super) fn new(sink: Box<dyn Sink>, path: PathBuf) -> Self {
        Self { sink, path, bytes: 0, synced: 0, torn: false }
    }

    /// Bytes written and not cut off again.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// It could not be cut back: nothing may follow what lies at its end.
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

    /// Appends all of it, or nothing.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), TraceError> {
        if let Err(source) = self.sink.write_all(bytes) {
            self.cut(self.bytes);
            return Err(TraceError::write(&self.path, source));
        }
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Takes what was written so far as a state to go back to, without asking the disk for it.
    pub(super) fn assume_synced(&mut self) {
        self.synced = self.bytes;
    }

    /// Makes what was written durable. After a failure nobody knows what of it is on the disk, and
    /// another attempt would wrongly succeed: what was not synced before is cut off.
    pub(super) fn sync(&mut self) -> Result<(), TraceError> {
        if let Err(source) = self.sink.sync() {
            self.cut(self.synced);
            return Err(TraceError::write(&self.path, source));
        }
        self.synced = self.bytes;
        Ok(())
    }

    /// What a file has beyond its last whole frame is harmless, but nothing can follow it.
    fn cut(&mut self, bytes: u64) {
        self.torn |= self.sink.cut(bytes).is_err();
        self.bytes = bytes;
    }
}
