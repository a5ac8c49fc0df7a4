//! Why a file could not be written, to be told more than once.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use super::TraceError;

/// A failed write or sync.
#[derive(Debug, Clone)]
pub(super) struct Failure {
    /// The file.
    pub(super) path: PathBuf,
    /// Its end may still be written: what was written is what the file holds.
    pub(super) may_close: bool,
    code: Option<i32>,
    text: String,
}

impl Failure {
    /// What `error` says of the file at `path`.
    pub(super) fn new(error: TraceError, path: &Path, may_close: bool) -> Self {
        let (code, text) = match error {
            TraceError::Io { source, .. } => (source.raw_os_error(), source.to_string()),
            other => (None, other.to_string()),
        };
        Self { path: path.to_owned(), may_close, code, text }
    }

    /// The same error once more.
    pub(super) fn source(&self) -> io::Error {
        match self.code {
            Some(code) => io::Error::from_raw_os_error(code),
            None => io::Error::other(self.text.clone()),
        }
    }

    /// The same error once more.
    pub(super) fn error(&self) -> TraceError {
        TraceError::write(&self.path, self.source())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
