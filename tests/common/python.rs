//! The Python interpreters that tests record: the system's, those of pyenv and of `PATH`, and those
//! that `scripts/test` unpacks from packages.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::host::some_of;
use super::{Random, tool, variant};

/// Where Debian's packages have libraries.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// The second part of a version, as 11 in 3.11.
pub(crate) type Minor = u32;

/// What differs between builds of one version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Build {
    /// The usual one.
    Usual,
    /// Without the interpreter's lock.
    FreeThreaded,
    /// For the C library musl.
    Musl,
}

/// An interpreter.
#[derive(Debug, Clone)]
pub(crate) struct Python {
    pub(crate) minor: Minor,
    pub(crate) build: Build,
    program: PathBuf,
    /// The directory of an unpacked one, which must be told where its modules are.
    unpacked: Option<PathBuf>,
}

impl Python {
    /// Returns all interpreters of this machine, each file once.
    pub(crate) fn all() -> Vec<Self> {
        let mut found = Vec::new();
        let mut add = |python: Self| {
            if !found.iter().any(|known: &Self| known.program == python.program) {
                found.push(python);
            }
        };
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::env::split_paths(&path).chain(pyenv_folders());
        for folder in folders {
            for name in names_in(&folder) {
                if let Some(minor) = minor_of(&name)
                    && let Some(program) = program_at(&folder.join(&name))
                {
                    add(Self { minor, build: Build::Usual, program, unpacked: None });
                }
            }
        }
        unpacked().into_iter().for_each(add);
        found.sort_by_key(|python| python.minor);
        found
    }

    /// Returns the usual interpreters of a version. Without `--long`, returns one of them, which the
    /// seed chooses.
    pub(crate) fn of(minor: Minor) -> Vec<Self> {
        Self::of_build(minor, Build::Usual)
    }

    /// Returns the interpreters of a version and a build, like [`Self::of`].
    pub(crate) fn of_build(minor: Minor, build: Build) -> Vec<Self> {
        let all = Self::all().into_iter();
        let mut fitting: Vec<Self> =
            all.filter(|it| (it.minor, it.build) == (minor, build)).collect();
        if !super::is_long_run() && !fitting.is_empty() {
            let chosen = Random::new(u64::from(minor)).below(fitting.len() as u64);
            fitting = vec![fitting.swap_remove(chosen as usize)];
        }
        fitting
    }

    /// Returns the interpreter of the system.
    pub(crate) fn of_system() -> Option<Self> {
        let program = program_at(Path::new("/usr/bin/python3"))?;
        let minor = minor_of(program.file_name()?.to_str()?)?;
        Some(Self { minor, build: Build::Usual, program, unpacked: None })
    }

    /// Returns an interpreter of a version that is installed with all its modules, and for which
    /// wheels are made.
    pub(crate) fn installed(minor: Minor) -> Option<Self> {
        let fitting = |it: &Self| it.minor == minor && it.unpacked.is_none();
        Self::of_system().filter(fitting).or_else(|| Self::all().into_iter().find(fitting))
    }

    /// Returns a command that runs a script of `tests/targets`.
    pub(crate) fn runs(&self, file: &str) -> Command {
        let mut command = self.command();
        command.arg(super::script(file));
        command
    }

    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// Returns a command that runs this interpreter.
    pub(crate) fn command(&self) -> Command {
        let mut command = match self.loader() {
            Some((loader, libraries)) => {
                let mut command = Command::new(loader);
                command.arg("--library-path").arg(libraries).arg(&self.program);
                command
            }
            None => Command::new(&self.program),
        };
        // The tests' own Python paths belong to another version.
        command.env_remove("PYTHONPATH").env_remove("PYTHONHOME");
        // Bytecode would be written beside the source.
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        if let Some(dir) = &self.unpacked {
            self.prepare(&mut command, dir);
        }
        command
    }

    /// Returns a command that runs a script of `tests/targets/python`.
    pub(crate) fn script(&self, file: &str) -> Command {
        self.runs(&format!("python/{file}"))
    }

    /// Whether the program of its processes is the interpreter, and not a loader. py-spy needs that.
    pub(crate) fn is_own_program(&self) -> bool {
        self.loader().is_none()
    }

    /// Returns the loader of an interpreter that has its own C library, and the folder of that.
    fn loader(&self) -> Option<(PathBuf, PathBuf)> {
        let libraries = self.unpacked.as_ref()?.join(LIBRARIES);
        let loader = libraries.join("ld-linux-x86-64.so.2");
        loader.exists().then_some((loader, libraries))
    }

    /// Sets what an unpacked interpreter finds its modules and libraries with.
    fn prepare(&self, command: &mut Command, dir: &Path) {
        if self.program.starts_with(dir.join("usr")) {
            command.env("PYTHONHOME", dir.join("usr"));
            if self.loader().is_none() {
                command.env("LD_LIBRARY_PATH", dir.join(LIBRARIES));
            }
            return;
        }
        command.env("PYTHONHOME", dir.join("home"));
        command.env("PYTHONPATH", dir.join("freeze_core/lib"));
        let (source, flags) = ("python/launcher.c", ["-shared", "-fPIC"]);
        if self.build == Build::Musl {
            let library = library_to_replace(&self.program);
            let launcher = variant(&library, source, "musl-gcc", &flags);
            command.env("LD_LIBRARY_PATH", launcher.parent().expect("a folder"));
        } else {
            command.env("LD_PRELOAD", variant("launcher.so", source, "cc", &flags));
        }
    }
}

impl std::fmt::Display for Python {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Python 3.{} ({})", self.minor, self.program.display())
    }
}

/// Returns one interpreter of each version that is supported.
pub(crate) fn pythons() -> Vec<Python> {
    let mut found = Python::all();
    found.retain(|python| python.build == Build::Usual && python.minor <= 14);
    found.dedup_by_key(|python| python.minor);
    found
}

/// Returns one interpreter of each version. Without `--long`, returns two, which the seed and this
/// number choose.
pub(crate) fn some_pythons(stream: u64) -> Vec<Python> {
    some_of(pythons(), stream)
}

/// Returns the folders with the interpreters that pyenv has built.
fn pyenv_folders() -> Vec<PathBuf> {
    let root = std::env::var_os("PYENV_ROOT").map(PathBuf::from);
    let root = root.or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".pyenv")));
    let versions = root.and_then(|root| fs::read_dir(root.join("versions")).ok());
    versions.into_iter().flatten().flatten().map(|it| it.path().join("bin")).collect()
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// Returns the version in the name of an interpreter, `python3.11`.
fn minor_of(name: &str) -> Option<Minor> {
    name.strip_prefix("python3.")?.parse().ok().filter(|minor| *minor >= 8)
}

/// Returns the file behind a path, if it is a program. A shim of pyenv is a script.
fn program_at(path: &Path) -> Option<PathBuf> {
    use std::io::Read;
    let program = path.canonicalize().ok()?;
    let mut magic = [0; 4];
    fs::File::open(&program).ok()?.read_exact(&mut magic).ok()?;
    (magic == *b"\x7fELF").then_some(program)
}

/// Returns the interpreters that `install_pythons` of `scripts/install.sh` has unpacked.
fn unpacked() -> Vec<Python> {
    // Programs are told from each other by their real paths.
    let Ok(tools) = tool("python").canonicalize() else { return Vec::new() };
    let mut found = Vec::new();
    for name in names_in(&tools) {
        let dir = tools.join(&name);
        let (number, _) = name.split_once('-').unwrap_or((&name, ""));
        let version = number.trim_end_matches('t');
        let Some(minor) = minor_of(&format!("python{version}")) else { continue };
        let build = match name.strip_prefix(version) {
            Some("t") => Build::FreeThreaded,
            Some("-musl") => Build::Musl,
            _ => Build::Usual,
        };
        let program = format!("python{version}");
        let places =
            [dir.join("usr/bin").join(&program), dir.join("freeze_core/bases").join(program)];
        let Some(program) = places.iter().find_map(|path| program_at(path)) else { continue };
        found.push(Python { minor, build, program, unpacked: Some(dir) });
    }
    found
}

/// Returns the name of the library whose place the launcher takes in a program for musl.
fn library_to_replace(program: &Path) -> String {
    let folder =
        program.ancestors().nth(3).expect("the folder of a wheel").join("freeze_core.libs");
    let names = names_in(&folder);
    names.into_iter().find(|name| name.starts_with("libintl")).expect("a library of the wheel")
}

#[test]
fn names_have_versions() {
    assert_eq!(["python3.8", "python3.14"].map(minor_of), [Some(8), Some(14)]);
    assert_eq!(["python3", "python3.7", "python3.11-config", "python2.7"].map(minor_of), [None; 4]);
}
