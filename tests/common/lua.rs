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

    /// Returns the command of a program of Debian 12 that contains the branch for OpenResty, if it is
    /// here: `nginx` or `nvim`. The other value is the directory of its packages.
    pub(crate) fn inside(program: &str) -> Option<(Command, PathBuf)> {
        let root = tool("luajit").join("openresty");
        let folders = ["usr/sbin", "usr/bin"].map(|folder| root.join(folder).join(program));
        let mut command = Command::new(folders.into_iter().find(|path| path.exists())?);
        let libraries = [LIBRARIES, "lib/x86_64-linux-gnu"].map(|folder| root.join(folder));
        let libraries = std::env::join_paths(libraries).expect("paths without a colon");
        command.env("LD_LIBRARY_PATH", libraries);
        Some((command, root))
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
