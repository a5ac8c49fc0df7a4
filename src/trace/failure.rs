//! The reason why a file could not be written. It can be reported more than once.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use super::TraceError;

/// A failed write or sync.
#[derive(Debug, Clone)]
pub(super) struct WriteFailure {
    /// The file.
    pub(super) path: PathBuf,
    /// Whether the end of the file may still be written: the file holds exactly what was written.
    pub(super) may_close: bool,
    code: Option<i32>,
    text: String,
}

impl WriteFailure {
    /// Creates the failure from `error` for the file at `path`.
    pub(super) fn new(error: TraceError, path: &Path, may_close: bool) -> Self {
        let (code, text) = match error {
            TraceError::Io { source, .. } => (source.raw_os_error(), source.to_string()),
            other => (None, other.to_string()),
        };
        Self { path: path.to_owned(), may_close, code, text }
    }

    /// Returns the operating system's error again.
    pub(super) fn source(&self) -> io::Error {
        match self.code {
            Some(code) => io::Error::from_raw_os_error(code),
            None => io::Error::other(self.text.clone()),
        }
    }

    /// Returns the trace error again.
    pub(super) fn error(&self) -> TraceError {
        TraceError::write(&self.path, self.source())
    }
}

impl fmt::Display for WriteFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
