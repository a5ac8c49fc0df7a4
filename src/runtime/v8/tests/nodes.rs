//! The versions of Node.js on this computer, and programs that they run.

use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use tempfile::TempDir;

use crate::elf::Elf;
use crate::proc::{self, Mapping, ProcessMemory};
use crate::runtime::tests::tools;
use crate::runtime::v8::{V8Exports, V8Machine};
use crate::test_turn::one_by_turn;

const VERSIONS: [u8; 4] = [18, 20, 22, 24];

/// Returns the program of a version, if it is here. Says loudly if it is not, and fails where
/// nothing may be skipped.
pub(crate) fn node(version: u8) -> Option<PathBuf> {
    let path = tools().join(format!("node/node_modules/node{version}/bin/node"));
    let is_here = path.exists();
    if !is_here {
        eprintln!("SKIP: no Node.js {version} here");
        let required = std::env::var_os("TRACEPROF_TEST_REQUIRE").is_some();
        assert!(!required, "a Node.js is missing here, and no test may be skipped");
    }
    is_here.then_some(path)
}

/// Returns the programs of this run that are here, with their versions.
pub(crate) fn nodes() -> Vec<(u8, PathBuf)> {
    let versions = one_by_turn(&VERSIONS);
    versions.filter_map(|version| Some((version, node(version)?))).collect()
}

/// Returns the path of one of the tests' targets.
pub(crate) fn target(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/targets").join(name)
}

/// A program that runs until it is dropped.
pub(crate) struct NodeProgram {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    /// The directory in which it runs.
    _folder: TempDir,
}

impl NodeProgram {
    /// Starts a script of the tests' targets with arguments, and waits until it is ready.
    pub(crate) fn start(node: &Path, options: &[&str], script: &[&str]) -> Self {
        let mut program = Self::run(node, options, script);
        assert_eq!(program.line(), "ready", "{}", node.display());
        program
    }

    /// Starts a script of the tests' targets with arguments.
    pub(crate) fn run(node: &Path, options: &[&str], script: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(node);
        command.args(options).arg(target(script[0])).args(&script[1..]);
        command.current_dir(folder.path());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, stdin, stdout: BufReader::new(stdout), _folder: folder }
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    pub(crate) fn memory(&self) -> ProcessMemory {
        ProcessMemory::of(self.pid())
    }

    /// Returns the next line that the program prints.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Lets the program go on.
    pub(crate) fn go_on(&mut self) {
        writeln!(self.stdin).unwrap();
    }

    /// Stops the program until it is killed. It has then the same memory at each reading, and leaves
    /// the processor to others.
    pub(crate) fn pause(&self) {
        let pid = nix::unistd::Pid::from_raw(self.pid());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGSTOP).unwrap();
    }

    /// Returns the engine of the program.
    pub(crate) fn engine(&self) -> LiveEngine {
        LiveEngine::in_process(self.pid())
    }
}

impl Drop for NodeProgram {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The engine of a process.
pub(crate) struct LiveEngine {
    pub(crate) exports: V8Exports,
    pub(crate) machine: V8Machine,
    pub(crate) bias: u64,
    pub(crate) mappings: Vec<Mapping>,
    /// The addresses of generated code.
    pub(crate) code: Vec<Range<u64>>,
    /// The mappings of the file with the engine that are executable, each with its bias.
    pub(crate) modules: Vec<(Range<u64>, u64)>,
}

impl LiveEngine {
    fn in_process(pid: i32) -> Self {
        let mappings = proc::mappings(pid).unwrap();
        let found = mappings.iter().filter(|it| it.exec && it.inode != 0).find_map(|mapping| {
            let bytes = proc::map_file(proc::open_mapping(pid, mapping).ok()?).ok()?;
            let exports = V8Exports::of(&bytes, &mapping.path.to_string_lossy())?;
            let elf = Elf::parse(&bytes).ok()?;
            let same = mappings.iter().filter(|it| it.exec && it.inode == mapping.inode);
            let with_bias =
                |it: &Mapping| Some((it.start..it.end, elf.bias(it.start, it.file_offset, true)?));
            Some((exports, same.filter_map(with_bias).collect::<Vec<_>>()))
        });
        let (exports, modules) = found.unwrap();
        let bias = modules[0].1;
        let code = anonymous_code(&mappings);
        let machine = exports.locate(bias, &ProcessMemory::of(pid), &code).unwrap().unwrap();
        Self { exports, machine, bias, code, mappings, modules }
    }

    /// Reads the mappings anew: the program makes code all the time.
    pub(crate) fn refresh(&mut self, pid: i32) {
        self.mappings = proc::mappings(pid).unwrap();
        self.code = anonymous_code(&self.mappings);
    }

    /// Returns the address (SVMA) among the engine's own functions. `None` if it is none of them.
    pub(crate) fn builtin(&self, avma: u64) -> Option<u64> {
        let module = self.modules.iter().find(|(range, _)| range.contains(&avma));
        let svma = module.map(|(_, bias)| avma.wrapping_sub(*bias));
        svma.filter(|svma| self.exports.builtins().contains(svma))
    }

    /// Returns whether an address is generated code.
    pub(crate) fn is_generated(&self, avma: u64) -> bool {
        self.code.iter().any(|range| range.contains(&avma))
    }
}

fn anonymous_code(mappings: &[Mapping]) -> Vec<Range<u64>> {
    let code = mappings
        .iter()
        .filter(|it| it.exec && it.inode == 0 && !it.path.as_encoded_bytes().starts_with(b"["));
    code.map(|it| it.start..it.end).collect()
}
