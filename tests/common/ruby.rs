//! The versions of Ruby that tests record: the system's, and one that `scripts/test` unpacks.

use std::path::PathBuf;
use std::process::Command;

use super::{script, tool};

/// Where Debian's packages have libraries.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// Ruby of one version.
#[derive(Debug, Clone)]
pub(crate) struct Ruby {
    /// The minor version, as in Ruby 3.1.
    pub(crate) minor: u32,
    /// The directory of its packages, unless those are the system's.
    root: Option<PathBuf>,
}

impl Ruby {
    /// Returns the versions that are here.
    pub(crate) fn all() -> Vec<Self> {
        let system = Self { minor: 1, root: None };
        let unpacked = Self { minor: 3, root: Some(tool("ruby").join("3.3")) };
        [system, unpacked].into_iter().filter(|it| it.program().exists()).collect()
    }

    /// Returns a version, if it is here.
    pub(crate) fn of(minor: u32) -> Option<Self> {
        Self::all().into_iter().find(|it| it.minor == minor)
    }

    fn program(&self) -> PathBuf {
        let root = self.root.clone().unwrap_or_else(|| PathBuf::from("/"));
        root.join(format!("usr/bin/ruby3.{}", self.minor))
    }

    /// Returns the command that runs it with these options. Unpacked ones have no gems.
    pub(crate) fn command(&self, options: &[&str]) -> Command {
        let Some(root) = &self.root else {
            let mut command = Command::new(self.program());
            command.args(options);
            return command;
        };
        let libraries = root.join(LIBRARIES);
        let mut command = Command::new(libraries.join("ld-linux-x86-64.so.2"));
        command.arg("--library-path").arg(&libraries).arg(self.program());
        let version = format!("ruby/3.{}.0", self.minor);
        let folders = [root.join("usr/lib").join(&version), libraries.join(&version)];
        command.env("RUBYLIB", std::env::join_paths(folders).expect("paths without colons"));
        command.arg("--disable-gems").args(options);
        command
    }

    /// Returns the command that runs a script of `tests/targets/ruby`.
    pub(crate) fn runs(&self, name: &str) -> Command {
        let mut command = self.command(&[]);
        command.arg(script(&format!("ruby/{name}")));
        command
    }
}
