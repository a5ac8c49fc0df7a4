//! The command under test.

use std::collections::HashMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use traceprof::trace::{LazyTrace, Metadata, Value};

use super::{Folded, Target, cpu_clock, program, scratch_dir, wait_until};

/// Timeout of a target's CPU time, for a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);

/// Whether the recorder is a build without optimisation. It takes ten times as long to follow code
/// and to name functions, and other tests run beside it: what comes and goes may be gone by then.
pub(crate) fn is_unoptimised() -> bool {
    cfg!(debug_assertions) && std::env::var_os("TRACEPROF_TEST_COMMAND").is_none()
}

/// Returns `traceprof` with these arguments, not yet started. It is the command of this build, or
/// that of `TRACEPROF_TEST_COMMAND`.
pub(crate) fn traceprof(args: &[&str]) -> Command {
    let given = std::env::var_os("TRACEPROF_TEST_COMMAND");
    let mut command = Command::new(given.unwrap_or(env!("CARGO_BIN_EXE_traceprof").into()));
    command.args(args).stdin(Stdio::null());
    command
}

/// Records a target program from its first instruction to its end.
pub(crate) fn record_command(options: &[&str], name: &str, args: &[&str]) -> Outcome {
    let trace = Trace::new();
    let mut command = traceprof(&["record", "--stats", "--exit-code", "recording"]);
    command.args(options).arg("--output").arg(trace.path()).arg("--").arg(program(name)).args(args);
    let output = command.output().expect("traceprof");
    Outcome { output, trace }
}

/// Returns a command that runs a program as user nobody; `None` if the test does not run as root.
pub(crate) fn as_nobody(program: &Path) -> Option<Command> {
    as_user(65534, program)
}

/// Like [`as_nobody`], as the user with this id.
pub(crate) fn as_user(uid: u32, program: &Path) -> Option<Command> {
    if !super::is_root() {
        return None;
    }
    let mut command = Command::new("setpriv");
    command.args([format!("--reuid={uid}"), format!("--regid={uid}")]);
    command.args(["--clear-groups", "--"]).arg(program);
    Some(command)
}

/// The result of a command: its output and possibly a trace.
pub(crate) struct Outcome {
    pub(crate) output: Output,
    pub(crate) trace: Trace,
}

impl Outcome {
    pub(crate) fn code(&self) -> Option<i32> {
        self.output.status.code()
    }

    /// Returns both outputs together, for messages and to search for a line.
    pub(crate) fn text(&self) -> String {
        let Output { stdout, stderr, .. } = &self.output;
        format!("{}{}", String::from_utf8_lossy(stdout), String::from_utf8_lossy(stderr))
    }

    /// Fails the test with all printed output unless the exit code is `code`.
    pub(crate) fn expect_code(self, code: i32) -> Self {
        assert_eq!(self.code(), Some(code), "{}", self.text());
        assert!(!self.text().contains("panicked"), "{}", self.text());
        self
    }
}

/// A trace in its own directory.
pub(crate) struct Trace {
    dir: PathBuf,
    /// Removes the directory when the trace is dropped.
    _owner: Option<TempDir>,
}

impl Trace {
    pub(crate) fn new() -> Self {
        let owner = scratch_dir();
        Self { dir: owner.path().to_owned(), _owner: Some(owner) }
    }

    /// Returns a trace that is made once for the processes of several tests.
    pub(crate) fn shared(name: &str, record: impl FnOnce(Self) -> Self) -> Self {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&dir).expect("directory of a shared trace");
        let lock = std::fs::File::create(dir.join("lock")).expect("lock of a shared trace");
        let _lock = Flock::lock(lock, FlockArg::LockExclusive).expect("lock of a shared trace");
        let own = || std::process::id().to_string();
        let run = std::env::var("NEXTEST_RUN_ID").unwrap_or_else(|_| own());
        let trace = Self { dir: dir.clone(), _owner: None };
        if std::fs::read_to_string(dir.join("run")).is_ok_and(|it| it == run) {
            return trace;
        }
        for path in [trace.path(), trace.index_path()] {
            // The file does not exist at the first run.
            let _ = std::fs::remove_file(path);
        }
        let trace = record(trace);
        std::fs::write(dir.join("run"), run).expect("name of the run");
        trace
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.dir.join("out.trace")
    }

    pub(crate) fn index_path(&self) -> PathBuf {
        self.dir.join("out.trace.idx")
    }

    /// Returns a number from the trace's metadata.
    pub(crate) fn number(&self, key: &str) -> u64 {
        number_in(&self.metadata(key)).unwrap_or_else(|| panic!("no number {key} in the metadata"))
    }

    /// Returns a list of numbers from the trace's metadata.
    pub(crate) fn numbers(&self, key: &str) -> Vec<u64> {
        let Value::List(list) = self.metadata(key) else {
            panic!("no list {key} in the metadata");
        };
        list.iter().map(|value| number_in(value).expect("a number")).collect()
    }

    /// Returns the objects of one kind in the data file, by their fields.
    pub(crate) fn objects(&self, kind: &str) -> Vec<serde_json::Value> {
        let dump = self.view(&["dump", "--json"]);
        // Most lines are of other kinds, and need not be parsed.
        let lines = dump.lines().filter(|line| line.contains(kind));
        let objects = lines.map(|line| serde_json::from_str(line).expect(line));
        let of_kind = objects.filter(|object: &serde_json::Value| {
            object["kind"] == kind && object["file"] == "data"
        });
        of_kind.map(|mut object| object["fields"].take()).collect()
    }

    /// Returns the last value of a key in the trace's metadata.
    pub(crate) fn metadata(&self, key: &str) -> Value {
        let value = self.all_metadata().remove(key);
        value.unwrap_or_else(|| panic!("no {key} in the metadata"))
    }

    /// Returns the last value of each key in the trace's metadata. This does not read the samples.
    pub(crate) fn all_metadata(&self) -> Metadata {
        let trace = LazyTrace::open(&self.path()).unwrap_or_else(|error| panic!("{error}"));
        trace.metadata().clone()
    }

    /// Returns the sampling periods of the threads with this name.
    pub(crate) fn periods(&self, thread: &str) -> u64 {
        periods_of(&self.periods_by_label(), thread)
    }

    /// Returns the sampling periods of each thread, by the label that an export gives it.
    pub(crate) fn periods_by_label(&self) -> HashMap<String, u64> {
        let path = self.dir.join("threads.folded");
        let mut command = traceprof(&["export", "--threads", "--format", "folded", "--force"]);
        let output = command.arg("--output").arg(&path).arg(self.path()).output();
        let output = output.expect("traceprof");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let mut periods = HashMap::new();
        for line in std::fs::read_to_string(path).expect("the exported file").lines() {
            let (stack, count) = line.rsplit_once(' ').expect("a count");
            let label = stack.split(';').next().expect("a thread").to_owned();
            *periods.entry(label).or_insert(0) += count.parse::<u64>().expect("a number");
        }
        periods
    }

    /// Runs `traceprof SUBCOMMAND ARGS TRACE`, which must succeed, and returns its output.
    pub(crate) fn view(&self, args: &[&str]) -> String {
        let output = traceprof(args).arg(self.path()).output().expect("traceprof");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {} {stderr}", output.status);
        String::from_utf8(output.stdout).expect("text")
    }

    /// Returns the call stacks with their counts.
    pub(crate) fn folded(&self) -> Folded {
        self.folded_with(&[])
    }

    /// Returns the call stacks as these options of the export change them, with their counts.
    pub(crate) fn folded_with(&self, options: &[&str]) -> Folded {
        let path = self.dir.join("out.folded");
        let mut command = traceprof(&["export"]);
        command.arg(self.path()).args(options);
        command.args(["--format", "folded", "--force", "--output"]).arg(&path);
        let output = command.output().expect("traceprof");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "export: {} {stderr}", output.status);
        Folded::parse(&std::fs::read_to_string(path).expect("the exported file"))
    }
}

/// Returns the number that a value is.
pub(crate) fn number_in(value: &Value) -> Option<u64> {
    match value {
        Value::Unsigned(number) => Some(*number),
        _ => None,
    }
}

/// Returns the sampling periods of the thread with this name, from those by label.
pub(crate) fn periods_of(by_label: &HashMap<String, u64>, thread: &str) -> u64 {
    let is_of = |label: &str| {
        let mut words = label.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
        words.any(|it| it == thread)
    };
    by_label.iter().filter(|(label, _)| is_of(label)).map(|(_, n)| n).sum()
}

/// A `traceprof record` that runs beside the test and is killed when the value is dropped.
pub(crate) struct Recorder {
    child: Option<Child>,
    trace: Option<Trace>,
    /// Its messages that were read while it ran.
    seen: Vec<u8>,
}

impl Recorder {
    /// Starts `record ARGS --output TRACE`.
    pub(crate) fn start(args: &[&str]) -> Self {
        Self::start_into(Trace::new(), args)
    }

    /// Starts `record ARGS --output TRACE` with this trace.
    pub(crate) fn start_into(trace: Trace, args: &[&str]) -> Self {
        let mut command = traceprof(&["record"]);
        command.args(args);
        Self::spawn(command, trace)
    }

    /// Starts a command whose last arguments are those of `record`, with this trace as output and
    /// all figures in the closing report.
    pub(crate) fn spawn(mut command: Command, trace: Trace) -> Self {
        let is_quiet =
            command.get_args().any(|it| it == "--quiet" || it == "-q" || it == "--dry-run");
        command.args((!is_quiet).then_some("--stats"));
        command.arg("--output").arg(trace.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self::around(command.spawn().expect("traceprof"), trace)
    }

    /// Wraps a recorder that was started with this trace as output.
    pub(crate) fn around(child: Child, trace: Trace) -> Self {
        Self { child: Some(child), trace: Some(trace), seen: Vec::new() }
    }

    /// Returns the trace that is being recorded.
    pub(crate) fn trace(&self) -> &Trace {
        self.trace.as_ref().expect("taken only at the end")
    }

    fn child(&mut self) -> &mut Child {
        self.child.as_mut().expect("the recorder is not reaped yet")
    }

    pub(crate) fn pid(&mut self) -> i32 {
        self.child().id() as i32
    }

    /// Returns the data file that is being written.
    pub(crate) fn output_path(&self) -> PathBuf {
        self.trace.as_ref().expect("the recorder is not reaped yet").path()
    }

    pub(crate) fn send(&mut self, signal: Signal) {
        kill(Pid::from_raw(self.pid()), signal).expect("a signal to the recorder");
    }

    pub(crate) fn has_exited(&mut self) -> bool {
        self.child().try_wait().expect("state of the recorder").is_some()
    }

    /// Waits until the agent of the recorder is in the target's maps.
    pub(crate) fn wait_until_attached(&mut self, target: i32) {
        let maps = || std::fs::read_to_string(format!("/proc/{target}/maps")).unwrap_or_default();
        let attached = wait_until(Duration::from_secs(60), || {
            let maps = maps();
            maps.contains("/SYSV") || maps.contains("memfd:") || self.has_exited()
        });
        assert!(attached && !self.has_exited(), "not attached: {}", self.collect_text());
    }

    /// Waits until the recorder reports that it samples.
    pub(crate) fn wait_until_sampling(&mut self) {
        self.wait_for_line("sampling ");
    }

    /// Waits until the recorder has begun to print a line that begins like this.
    pub(crate) fn wait_for_line(&mut self, start: &str) {
        let is_it = |line: &[u8]| line.starts_with(start.as_bytes());
        let mut byte = [0];
        while !self.seen.split(|it| *it == b'\n').any(is_it) {
            let stderr = self.child().stderr.as_mut().expect("a pipe");
            let got = stderr.read(&mut byte).expect("messages of the recorder");
            assert!(got == 1, "no line {start}: {}", self.collect_text());
            self.seen.push(byte[0]);
        }
    }

    /// Waits until the target has used this much more CPU time. On a busy machine, elapsed time
    /// says little about how much there was to sample.
    pub(crate) fn wait_for_cpu(&mut self, target: i32, cpu: Duration) {
        self.wait_for_cpu_and(target, cpu, || {});
    }

    /// Like [`Self::wait_for_cpu`], and calls `look` again and again meanwhile.
    pub(crate) fn wait_for_cpu_and(&mut self, target: i32, cpu: Duration, mut look: impl FnMut()) {
        let start = cpu_clock(target);
        let used = wait_until(PATIENCE, || {
            look();
            self.has_exited() || cpu_clock(target).saturating_sub(start) >= cpu
        });
        assert!(used, "the target used less than {cpu:?} in {PATIENCE:?}");
        assert!(!self.has_exited(), "the recorder ended early: {}", self.collect_text());
    }

    /// Records until the target has used this much CPU time since the attach.
    pub(crate) fn record_cpu(mut self, target: i32, cpu: Duration) -> Outcome {
        self.wait_until_attached(target);
        self.wait_for_cpu(target, cpu);
        self.send(Signal::SIGINT);
        self.finish().expect_code(0)
    }

    fn collect_text(&mut self) -> String {
        let Some(mut child) = self.child.take() else { return String::new() };
        let _ = child.kill();
        let output = child.wait_with_output();
        let text = |all: Vec<u8>| String::from_utf8_lossy(&all).into_owned();
        output
            .map_or_else(|error| error.to_string(), |o| text([&self.seen[..], &o.stderr].concat()))
    }

    /// Waits until the recorder exits.
    pub(crate) fn finish(mut self) -> Outcome {
        let child = self.child.take().expect("the recorder is not reaped yet");
        let mut output = child.wait_with_output().expect("output of traceprof");
        output.stderr.splice(0..0, std::mem::take(&mut self.seen));
        Outcome { output, trace: self.trace.take().expect("taken only here") }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // A recorder that has already exited needs no kill.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Records a process for some seconds. The recording must succeed.
pub(crate) fn record(pid: i32, seconds: u32, extra: &[&str]) -> Outcome {
    let (pid, seconds) = (pid.to_string(), seconds.to_string());
    let args = ["--pid", &pid, "--duration", &seconds];
    Recorder::start(&[&args[..], extra].concat()).finish().expect_code(0)
}

/// Like [`record()`], and ends the target.
pub(crate) fn record_and_end(target: Target, seconds: u32, extra: &[&str]) -> Outcome {
    let outcome = record(target.pid(), seconds, extra);
    drop(target);
    outcome
}

/// Like [`record_cpu()`], and ends the target: one that computes would take a processor from what
/// looks at the trace.
pub(crate) fn record_cpu_and_end(target: Target, cpu: Duration, extra: &[&str]) -> Outcome {
    let outcome = record_cpu(target.pid(), cpu, extra);
    drop(target);
    outcome
}

/// Records a process until it has used this much CPU time.
pub(crate) fn record_cpu(pid: i32, cpu: Duration, extra: &[&str]) -> Outcome {
    let pid_text = pid.to_string();
    Recorder::start(&[&["--pid", &pid_text][..], extra].concat()).record_cpu(pid, cpu)
}
