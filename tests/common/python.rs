//! The Python interpreters of this machine.

use std::path::PathBuf;
use std::process::Command;

/// An interpreter.
#[derive(Debug, Clone)]
pub(crate) struct Python {
    /// The minor version of Python 3.
    pub(crate) minor: u32,
    pub(crate) path: PathBuf,
}

impl Python {
    /// Returns a command that runs a script from `tests/targets`.
    pub(crate) fn runs(&self, script: &str) -> Command {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/targets");
        let mut command = Command::new(&self.path);
        command.arg(format!("{folder}/{script}"));
        command
    }
}

/// Returns one interpreter of each version from 3.8 on: the system's, or one that pyenv installed.
pub(crate) fn pythons() -> Vec<Python> {
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".pyenv"));
    let root = std::env::var_os("PYENV_ROOT").map(PathBuf::from).or(home);
    let kept = root.and_then(|root| std::fs::read_dir(root.join("versions")).ok());
    let kept = kept.into_iter().flatten().flatten().map(|it| it.path().join("bin/python3"));
    let system = std::iter::once(PathBuf::from("/usr/bin/python3"));
    let mut found: Vec<Python> = system.chain(kept).filter_map(python).collect();
    found.sort_by_key(|it| it.minor);
    found.dedup_by_key(|it| it.minor);
    found
}

fn python(path: PathBuf) -> Option<Python> {
    let asked = "import sys; print(sys.version_info[1])";
    let output = Command::new(&path).args(["-c", asked]).output().ok()?;
    let minor = String::from_utf8(output.stdout).ok()?.trim().parse().ok()?;
    (8..=14).contains(&minor).then_some(Python { minor, path })
}
