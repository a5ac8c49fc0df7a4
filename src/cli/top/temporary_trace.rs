//! A directory for a trace that is not kept.
//!
//! # Invariants
//! - Only this user can read it. It is removed with the value, or earlier, when the file names are
//!   not needed any more. Nothing is left then, even after a SIGKILL.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::unistd::mkdtemp;

use crate::trace::index_path;

/// The directory.
#[derive(Debug)]
pub(super) struct TemporaryTrace {
    /// None once it is removed.
    directory: Option<PathBuf>,
    trace: PathBuf,
}

impl TemporaryTrace {
    /// Makes a directory in TMPDIR or /tmp.
    pub(super) fn new() -> io::Result<Self> {
        let directory = mkdtemp(&std::env::temp_dir().join("traceprof-top-XXXXXX"))?;
        let trace = directory.join("top.trace");
        Ok(Self { directory: Some(directory), trace })
    }

    /// The path of the trace.
    pub(super) fn trace(&self) -> &Path {
        &self.trace
    }

    /// Removes the directory. Open files stay readable and writable.
    pub(super) fn remove(&mut self) {
        if let Some(directory) = self.directory.take() {
            // Only our own files, by name. What cannot be removed stays.
            let _ = fs::remove_file(&self.trace);
            let _ = fs::remove_file(index_path(&self.trace));
            let _ = fs::remove_dir(directory);
        }
    }
}

impl Drop for TemporaryTrace {
    fn drop(&mut self) {
        self.remove();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn it_is_private_and_leaves_nothing() {
        let temporary = TemporaryTrace::new().unwrap();
        let directory = temporary.trace().parent().unwrap().to_owned();
        assert_eq!(fs::metadata(&directory).unwrap().permissions().mode() & 0o777, 0o700);
        fs::write(temporary.trace(), "x").unwrap();
        fs::write(index_path(temporary.trace()), "x").unwrap();
        drop(temporary);
        assert!(!directory.exists());
    }
}
