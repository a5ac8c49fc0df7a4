//! The Python interpreters of this machine, and programs that they run.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde::Deserialize;
use tempfile::TempDir;

use traceprof_abi::context::RecordKind;

use super::tools;
use crate::elf::Elf;
use crate::proc::{self, ProcessMemory};
use crate::runtime::{Runtime, RuntimeExports, Unsupported};

/// Returns the supported interpreters, by what they say about themselves: their version and path.
/// The system's are there, and others of every version if somebody has installed them.
pub(super) fn interpreters() -> BTreeMap<(u32, PathBuf), PathBuf> {
    let named = (8..=14).map(|minor| format!("python3.{minor}")).map(PathBuf::from);
    let system = ["/usr/bin/python3", "python3"].map(PathBuf::from);
    let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".pyenv"));
    let pyenv = std::env::var_os("PYENV_ROOT").map(PathBuf::from).or(home);
    let below = |folder: PathBuf| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path().join("bin/python3"))
    };
    let kept = pyenv.map(|root| root.join("versions")).into_iter().chain([tools()]);
    let all = system.into_iter().chain(named).chain(kept.flat_map(below));
    let found = all.filter_map(|program| Some((about(&program)?, program)));
    found.filter(|((minor, _), _)| (8..=14).contains(minor)).collect()
}

fn about(program: &Path) -> Option<(u32, PathBuf)> {
    let asked = "import os, sys; print(sys.version_info[1], os.path.realpath(sys.executable))";
    let output = Command::new(program).args(["-c", asked]).stderr(Stdio::null()).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let (minor, path) = text.trim().split_once(' ')?;
    Some((minor.parse().ok()?, path.into()))
}

/// Returns a script of the tests' targets.
pub(super) fn script(name: &str) -> PathBuf {
    targets().join(name)
}

fn targets() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/targets")
}

/// Builds a target of the tests from its C source. Returns the folder with it.
pub(super) fn built(name: &str, flags: &[&str]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-Wall", "-Werror", "-o"]).arg(folder.path().join(name));
    let output = compiler.arg(script(&format!("{name}.c"))).args(flags).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    folder
}

/// Returns the library with the interpreter that a program uses, if it uses one.
pub(super) fn library_of(program: &Path) -> Option<PathBuf> {
    let mut command = Command::new(program);
    command.args(["-c", "import sys; print('ready', flush=True); sys.stdin.readline()"]);
    let mut target = Program::start(command);
    target.line();
    let mappings = proc::mappings(target.pid()).ok()?;
    let path = mappings.iter().map(|it| it.path.to_string_lossy().into_owned());
    path.filter(|path| path.contains("/libpython3.")).map(PathBuf::from).next()
}

/// What `python_stacks.py` prints.
#[derive(Debug, Deserialize)]
pub(super) struct Witness {
    pub(super) version: String,
    pub(super) threads: Vec<WitnessedThread>,
}

#[derive(Debug, Deserialize)]
pub(super) struct WitnessedThread {
    pub(super) name: String,
    pub(super) tid: i32,
    pub(super) pointer: u64,
    /// Name, file and line, leaf first.
    pub(super) frames: Vec<(String, String, u32)>,
}

/// A program that runs until it is dropped.
pub(super) struct Program {
    pub(super) child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Program {
    pub(super) fn start(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, stdin, stdout: BufReader::new(stdout) }
    }

    pub(super) fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    pub(super) fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line
    }

    pub(super) fn ask(&mut self) {
        writeln!(self.stdin).unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A module with an interpreter, and the process that has loaded it.
pub(super) struct Found {
    pub(super) exports: RuntimeExports,
    pub(super) bias: u64,
    pub(super) vector: RecordKind,
}

impl Found {
    /// Searches the modules of a process.
    pub(super) fn in_process(pid: i32) -> Option<Self> {
        let mappings = proc::mappings(pid).ok()?;
        let program = std::fs::read(format!("/proc/{pid}/exe")).ok()?;
        let loader = Elf::parse(&program).ok()?.interpreter().unwrap_or_default().to_owned();
        let is_musl = loader.contains("-musl");
        let vector = if is_musl { RecordKind::Musl } else { RecordKind::Glibc };
        mappings.iter().filter(|it| it.exec && it.inode != 0).find_map(|mapping| {
            let file = proc::open_mapping(pid, mapping).ok()?;
            let bytes = proc::map_file(&file).ok()?;
            let exports = RuntimeExports::of(&bytes, &mapping.path.to_string_lossy())?;
            let bias = Elf::parse(&bytes).ok()?.bias(mapping.start, mapping.file_offset, true)?;
            Some(Self { exports, bias, vector })
        })
    }

    pub(super) fn locate(&self, pid: i32) -> Result<Option<Runtime>, Unsupported> {
        self.exports.locate(self.bias, &ProcessMemory::of(pid), self.vector)
    }
}
