//! The versions of PHP that tests record: the system's, and one that `scripts/test` unpacks.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{script, tool};

/// Where Debian's packages have libraries.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// PHP of one version.
#[derive(Debug, Clone)]
pub(crate) struct Php {
    /// The minor version, as in PHP 8.2.
    pub(crate) minor: u32,
    /// The directory of its packages: that of the system, or of unpacked ones.
    root: PathBuf,
}

impl Php {
    /// Returns the versions that are here.
    pub(crate) fn all() -> Vec<Self> {
        let system = Self { minor: 2, root: PathBuf::from("/") };
        let unpacked = Self { minor: 4, root: tool("php").join("8.4") };
        [system, unpacked].into_iter().filter(|it| it.file("usr/bin/php8").exists()).collect()
    }

    /// Returns a version, if it is here.
    pub(crate) fn of(minor: u32) -> Option<Self> {
        Self::all().into_iter().find(|it| it.minor == minor)
    }

    /// Returns the file whose name ends with the version.
    fn file(&self, beginning: &str) -> PathBuf {
        self.root.join(format!("{beginning}.{}", self.minor))
    }

    fn has_own_library(&self) -> bool {
        self.root != Path::new("/")
    }

    fn program(&self, file: &Path) -> Command {
        if !self.has_own_library() {
            return Command::new(file);
        }
        let libraries = self.root.join(LIBRARIES);
        let mut command = Command::new(libraries.join("ld-linux-x86-64.so.2"));
        command.arg("--library-path").arg(libraries).arg(file);
        command
    }

    /// Returns the command that runs it without the settings of the system, with these options.
    pub(crate) fn command(&self, options: &[&str]) -> Command {
        let mut command = self.program(&self.file("usr/bin/php8"));
        command.arg("-n").args(options);
        command
    }

    /// Returns the command that runs a script of `tests/targets/php`.
    pub(crate) fn runs(&self, name: &str, options: &[&str]) -> Command {
        let mut command = self.command(options);
        command.arg(script(&format!("php/{name}")));
        command
    }

    /// Returns the server that runs scripts for other servers.
    pub(crate) fn server(&self) -> Command {
        let mut command = self.program(&self.file("usr/sbin/php-fpm8"));
        command.arg("-n");
        command
    }

    /// Returns the options that load the extension with the cache of compiled code, and its
    /// compiler with this mode if there is one.
    pub(crate) fn with_cache(&self, compiler: Option<&str>) -> Vec<String> {
        let extension = self.root.join("usr/lib/php").join(match self.minor {
            2 => "20220829/opcache.so",
            _ => "20240924/opcache.so",
        });
        let mut options = vec![
            format!("-dzend_extension={}", extension.display()),
            "-dopcache.enable_cli=1".to_owned(),
        ];
        if let Some(mode) = compiler {
            options.push("-dopcache.jit_buffer_size=64M".to_owned());
            options.push(format!("-dopcache.jit={mode}"));
        }
        options
    }
}
