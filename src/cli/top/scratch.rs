//! A directory for a trace that nobody keeps.
//!
//! # Invariants
//! - Only this user can look into it. It goes with the value, and before that as soon as nobody needs
//!   the names of the files any more: then nothing is left even after a SIGKILL.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::unistd::mkdtemp;

use crate::trace::index_path;

/// The directory.
#[derive(Debug)]
pub(super) struct Scratch {
    /// None as soon as it is gone.
    directory: Option<PathBuf>,
    trace: PathBuf,
}

impl Scratch {
    /// Makes one where temporary files are to be.
    pub(super) fn new() -> io::Result<Self> {
        let directory = mkdtemp(&std::env::temp_dir().join("traceprof-top-XXXXXX"))?;
        let trace = directory.join("top.trace");
        Ok(Self { directory: Some(directory), trace })
    }

    /// Where the trace goes.
    pub(super) fn trace(&self) -> &Path {
        &self.trace
    }

    /// Removes all names. What is open stays readable and writable.
    pub(super) fn remove(&mut self) {
        if let Some(directory) = self.directory.take() {
            // Only what is ours, by name; what cannot be removed is for whoever cleans up there.
            let _ = fs::remove_file(&self.trace);
            let _ = fs::remove_file(index_path(&self.trace));
            let _ = fs::remove_dir(directory);
        }
    }
}

impl Drop for Scratch {
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
        let scratch = Scratch::new().unwrap();
        let directory = scratch.trace().parent().unwrap().to_owned();
        assert_eq!(fs::metadata(&directory).unwrap().permissions().mode() & 0o777, 0o700);
        fs::write(scratch.trace(), "x").unwrap();
        fs::write(index_path(scratch.trace()), "x").unwrap();
        drop(scratch);
        assert!(!directory.exists());
    }
}
