//! The versions of Node.js that tests record, which `scripts/test` installs.

use std::path::PathBuf;
use std::process::Command;

use super::host::some_of;
use super::{script, tool};

/// Node.js of one version.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    /// The version, as in Node.js 22.
    pub(crate) version: u32,
    program: PathBuf,
}

impl Node {
    /// Returns the versions that are here.
    pub(crate) fn all() -> Vec<Self> {
        let found = [18, 20, 22, 24].into_iter().map(|version| {
            let program = tool("node").join(format!("node_modules/node{version}/bin/node"));
            Self { version, program }
        });
        found.filter(|it| it.program.exists()).collect()
    }

    /// Returns two versions of this run, which the seed chooses, and all in long runs.
    pub(crate) fn some(stream: u64) -> Vec<Self> {
        some_of(Self::all(), stream)
    }

    /// Returns a version, if it is here.
    pub(crate) fn of(version: u32) -> Option<Self> {
        Self::all().into_iter().find(|it| it.version == version)
    }

    /// Returns the command that runs it.
    pub(crate) fn command(&self) -> Command {
        Command::new(&self.program)
    }

    /// Returns the command that runs a script from `tests/targets`, with options of Node.js.
    pub(crate) fn runs(&self, name: &str, options: &[&str]) -> Command {
        let mut command = self.command();
        command.args(options).arg(script(name));
        command
    }
}
