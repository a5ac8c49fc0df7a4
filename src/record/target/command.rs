//! The program that a command names, examined before its start.

use std::env;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::anyhow;

use crate::elf::Elf;
use crate::proc;
use crate::record::contract::error::RecordError;

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
    if has_slash(command) {
        return Some(PathBuf::from(command));
    }
    in_path(command).find(|path| is_executable(path))
}

/// Whether a command is a path, for which PATH is not searched.
fn has_slash(command: &OsStr) -> bool {
    command.as_bytes().contains(&b'/')
}

/// Returns the files in the folders of PATH that the command may mean.
fn in_path(command: &OsStr) -> impl Iterator<Item = PathBuf> + use<'_> {
    /// What `execvp` searches without PATH.
    const DEFAULT: &str = match cfg!(target_env = "musl") {
        true => "/usr/local/bin:/bin:/usr/bin",
        false => "/bin:/usr/bin",
    };
    let search = env::var_os("PATH").unwrap_or_else(|| DEFAULT.into());
    let folders: Vec<PathBuf> = env::split_paths(&search).collect();
    folders.into_iter().map(move |folder| folder.join(command))
}

/// Returns the file that `execvp` would run, or the error with which it would fail.
pub(crate) fn startable(command: &OsStr) -> io::Result<PathBuf> {
    if command.is_empty() {
        return Err(io::ErrorKind::NotFound.into());
    }
    let Some(path) = find(command) else {
        let is_there = in_path(command).any(|path| path.exists());
        let kind = if is_there { io::ErrorKind::PermissionDenied } else { io::ErrorKind::NotFound };
        return Err(kind.into());
    };
    path.metadata()?;
    match is_executable(&path) {
        true => Ok(path),
        false => Err(io::ErrorKind::PermissionDenied.into()),
    }
}

/// Returns the error of a program that could not be started because of this.
pub(crate) fn not_started(command: &OsStr, error: &io::Error) -> RecordError {
    if command.is_empty() {
        return RecordError::NoCommand(anyhow!("the command is empty: name a program after --"));
    }
    let name = command.display();
    let has_slash = has_slash(command);
    let found = match has_slash {
        true => Some(PathBuf::from(command)).filter(|path| path.exists()),
        false => in_path(command).find(|path| path.exists()),
    };
    let is_missing = error.kind() == io::ErrorKind::NotFound;
    let why = match &found {
        None if is_missing && has_slash => "there is no such file",
        None if is_missing => "no folder of PATH has such a program; give its path, or change PATH",
        Some(_) if is_missing => "the interpreter or loader that it names is missing",
        Some(path) if path.is_dir() => "it is a directory",
        Some(path) if !is_executable(path) => "it is not executable: `chmod +x` changes that",
        _ => &error.to_string(),
    };
    let text = anyhow!("cannot start {name}: {why}");
    match is_missing && found.is_none() {
        true => RecordError::NoCommand(text),
        false => RecordError::NotExecutable(text),
    }
}

/// Returns whether the file is regular and any user may execute it.
fn is_executable(path: &Path) -> bool {
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
