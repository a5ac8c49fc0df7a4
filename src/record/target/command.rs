//! The program that a command names, examined before its start.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::elf::Elf;
use crate::proc;

/// Returns whether the program installs handlers for all signals when it starts, as Go's runtime
/// does.
///
/// A sampling signal from the first instruction on would reach such a handler, which aborts. The
/// recorder samples the program only once its handlers are installed.
pub(crate) fn takes_all_signals(command: &OsStr) -> bool {
    let Some(path) = find(command) else { return false };
    let Ok(bytes) = File::open(path).and_then(proc::map_file) else { return false };
    let Ok(elf) = Elf::parse(&bytes) else { return false };
    [".gopclntab", ".go.buildinfo", ".note.go.buildid"]
        .into_iter()
        .any(|name| elf.section(name).is_some())
}

/// Finds the file that `execvp` would run.
pub(crate) fn find(command: &OsStr) -> Option<PathBuf> {
    let path = Path::new(command);
    if path.components().count() > 1 {
        return Some(path.to_path_buf());
    }
    let search = std::env::var_os("PATH")?;
    std::env::split_paths(&search).map(|folder| folder.join(path)).find(|path| is_executable(path))
}

/// Returns whether the file is regular and any user may execute it.
pub(crate) fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_programs_take_no_signals() {
        assert!(!takes_all_signals(OsStr::new("sh")));
        assert!(!takes_all_signals(OsStr::new("/nonexistent/program")));
        assert!(find(OsStr::new("sh")).is_some_and(|path| path.is_absolute()));
    }
}
