//! The releases of LuaJIT that tests record: the system's, and one that `scripts/test` unpacks.

use std::path::PathBuf;
use std::process::Command;

use super::{script, tool};

/// Where Debian's packages have libraries.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// LuaJIT of one release of Debian.
#[derive(Debug, Clone)]
pub(crate) struct LuaJit {
    /// The directory of its packages, unless those are the system's.
    root: Option<PathBuf>,
}

impl LuaJit {
    /// Returns that of a release of Debian, if it is here: `bookworm` is the system's.
    pub(crate) fn of(release: &str) -> Option<Self> {
        let root = (release != "bookworm").then(|| tool("luajit").join(release));
        let found = Self { root };
        found.program().exists().then_some(found)
    }

    /// Returns a library of a release, if it is here. `openresty` is the branch for that in Debian
    /// 12.
    pub(crate) fn library(release: &str, name: &str) -> Option<PathBuf> {
        let root = match release {
            "bookworm" => PathBuf::from("/"),
            release => tool("luajit").join(release),
        };
        Some(root.join(LIBRARIES).join(name)).filter(|path| path.exists())
    }

    fn program(&self) -> PathBuf {
        self.root.clone().unwrap_or_else(|| PathBuf::from("/")).join("usr/bin/luajit")
    }

    /// Returns the command that runs a script of `tests/targets/lua` with an option.
    pub(crate) fn runs(&self, name: &str, option: &str) -> Command {
        let mut command = Command::new(self.program());
        if let Some(root) = &self.root {
            let libraries = root.join(LIBRARIES);
            command = Command::new(libraries.join("ld-linux-x86-64.so.2"));
            command.arg("--library-path").arg(&libraries).arg(self.program());
        }
        command.arg(option).arg(script(&format!("lua/{name}")));
        command
    }
}
