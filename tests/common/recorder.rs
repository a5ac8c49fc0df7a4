//! The command under test.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use super::{Folded, cpu_clock, scratch_dir, wait_until};

/// How long a target may take to get its CPU time on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);

/// `traceprof` with these arguments, not yet started: that of this build, or the one that
/// `TRACEPROF_TEST_COMMAND` names.
pub(crate) fn traceprof(args: &[&str]) -> Command {
    let given = std::env::var_os("TRACEPROF_TEST_COMMAND");
    let mut command = Command::new(given.unwrap_or(env!("CARGO_BIN_EXE_traceprof").into()));
    command.args(args).stdin(Stdio::null());
    command
}

/// The same command as the user nobody; `None` if this needs root and is not.
pub(crate) fn as_nobody(program: &Path) -> Option<Command> {
    if !super::is_root() {
        return None;
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]).arg(program);
    Some(command)
}

/// What a command left: its output and, possibly, a trace.
pub(crate) struct Outcome {
    pub(crate) output: Output,
    pub(crate) trace: Trace,
}

impl Outcome {
    pub(crate) fn code(&self) -> Option<i32> {
        self.output.status.code()
    }

    /// Both outputs together, for messages and for looking for a line.
    pub(crate) fn text(&self) -> String {
        let Output { stdout, stderr, .. } = &self.output;
        format!("{}{}", String::from_utf8_lossy(stdout), String::from_utf8_lossy(stderr))
    }

    /// Fails the test with everything that was printed unless the code is this.
    pub(crate) fn expect_code(self, code: i32) -> Self {
        assert_eq!(self.code(), Some(code), "{}", self.text());
        assert!(!self.text().contains("panicked"), "{}", self.text());
        self
    }
}

/// A trace in a directory of its own.
pub(crate) struct Trace {
    dir: PathBuf,
    /// Removes the directory with the value.
    _owner: Option<TempDir>,
}

impl Trace {
    pub(crate) fn new() -> Self {
        let owner = scratch_dir();
        Self { dir: owner.path().to_owned(), _owner: Some(owner) }
    }

    /// A trace that is made once in a run of the tests, for the processes of several of them.
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
            // Absent at the first run.
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

    /// A number from the trace's own metadata.
    pub(crate) fn number(&self, key: &str) -> u64 {
        let value = self.metadata(key).as_u64();
        value.unwrap_or_else(|| panic!("no number {key} in the metadata"))
    }

    /// A list of numbers from there.
    pub(crate) fn numbers(&self, key: &str) -> Vec<u64> {
        let value = self.metadata(key);
        let list = value.as_array().unwrap_or_else(|| panic!("no list {key} in the metadata"));
        list.iter().map(|number| number.as_u64().expect("a number")).collect()
    }

    /// The objects of one kind in the data file, by their fields.
    pub(crate) fn objects(&self, kind: &str) -> Vec<serde_json::Value> {
        let dump = self.view(&["dump", "--json"]);
        let objects = dump.lines().map(|line| serde_json::from_str(line).expect(line));
        let of_kind = objects.filter(|object: &serde_json::Value| {
            object["kind"] == kind && object["file"] == "data"
        });
        of_kind.map(|mut object| object["fields"].take()).collect()
    }

    fn metadata(&self, key: &str) -> serde_json::Value {
        let fields = self.objects("METADATA").into_iter().find(|fields| fields["key"] == key);
        fields.map_or(serde_json::Value::Null, |mut fields| fields["value"].take())
    }

    /// Sampling periods of the threads with this name.
    pub(crate) fn periods(&self, thread: &str) -> u64 {
        periods_of(&self.periods_by_label(), thread)
    }

    /// Sampling periods of each thread, by what an export calls it.
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

    /// Runs `traceprof SUBCOMMAND ARGS TRACE`, which must succeed, and returns what it printed.
    pub(crate) fn view(&self, args: &[&str]) -> String {
        let output = traceprof(args).arg(self.path()).output().expect("traceprof");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {} {stderr}", output.status);
        String::from_utf8(output.stdout).expect("text")
    }

    /// The call stacks with their counts.
    pub(crate) fn folded(&self) -> Folded {
        let path = self.dir.join("out.folded");
        let mut command = traceprof(&["export"]);
        command.arg(self.path()).args(["--format", "folded", "--force", "--output"]).arg(&path);
        let output = command.output().expect("traceprof");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "export: {} {stderr}", output.status);
        Folded::parse(&std::fs::read_to_string(path).expect("the exported file"))
    }
}

/// Sampling periods of a thread by its name, of those of all threads by what an export calls them.
pub(crate) fn periods_of(by_label: &HashMap<String, u64>, thread: &str) -> u64 {
    let is_of = |label: &str| {
        let mut words = label.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
        words.any(|it| it == thread)
    };
    by_label.iter().filter(|(label, _)| is_of(label)).map(|(_, n)| n).sum()
}

/// `traceprof record` running beside the test, killed with the value.
pub(crate) struct Recorder {
    child: Option<Child>,
    trace: Option<Trace>,
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

    /// Starts a command that ends with the arguments of `record`, into this trace.
    pub(crate) fn spawn(mut command: Command, trace: Trace) -> Self {
        command.arg("--output").arg(trace.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self { child: Some(command.spawn().expect("traceprof")), trace: Some(trace) }
    }

    /// Takes over a recorder that was started with this trace as its output.
    pub(crate) fn around(child: Child, trace: Trace) -> Self {
        Self { child: Some(child), trace: Some(trace) }
    }

    /// The trace that is being recorded.
    pub(crate) fn trace(&self) -> &Trace {
        self.trace.as_ref().expect("taken only at the end")
    }

    fn child(&mut self) -> &mut Child {
        self.child.as_mut().expect("not yet waited for")
    }

    pub(crate) fn pid(&mut self) -> i32 {
        self.child().id() as i32
    }

    /// The data file that is being written.
    pub(crate) fn output_path(&self) -> PathBuf {
        self.trace.as_ref().expect("not yet waited for").path()
    }

    pub(crate) fn send(&mut self, signal: Signal) {
        kill(Pid::from_raw(self.pid()), signal).expect("a signal to the recorder");
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child().try_wait().expect("state of the recorder").is_some()
    }

    /// Waits until the recorder has its agent in the target, which shows in the target's maps.
    pub(crate) fn wait_until_attached(&mut self, target: i32) {
        let maps = || std::fs::read_to_string(format!("/proc/{target}/maps")).unwrap_or_default();
        let attached = wait_until(Duration::from_secs(60), || {
            let maps = maps();
            maps.contains("/SYSV") || maps.contains("memfd:") || self.has_ended()
        });
        assert!(attached && !self.has_ended(), "not attached: {}", self.collect_text());
    }

    /// Waits until the target has used so much more CPU time: on a busy machine a time on the wall
    /// says little about how much there was to sample.
    pub(crate) fn wait_for_cpu(&mut self, target: i32, cpu: Duration) {
        let start = cpu_clock(target);
        let used = wait_until(PATIENCE, || {
            self.has_ended() || cpu_clock(target).saturating_sub(start) >= cpu
        });
        assert!(used, "the target used less than {cpu:?} in {PATIENCE:?}");
        assert!(!self.has_ended(), "the recorder ended early: {}", self.collect_text());
    }

    /// Records until the target has used so much CPU time since the attach.
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
        output.map_or_else(|error| error.to_string(), |o| String::from_utf8_lossy(&o.stderr).into())
    }

    /// Waits for the end.
    pub(crate) fn finish(mut self) -> Outcome {
        let child = self.child.take().expect("not yet waited for");
        let output = child.wait_with_output().expect("output of traceprof");
        Outcome { output, trace: self.trace.take().expect("taken only here") }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // Already gone is as good as killed.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Records a process for some seconds; the recording must succeed.
pub(crate) fn record(pid: i32, seconds: u32, extra: &[&str]) -> Outcome {
    let (pid, seconds) = (pid.to_string(), seconds.to_string());
    let args = ["--pid", &pid, "--duration", &seconds];
    Recorder::start(&[&args[..], extra].concat()).finish().expect_code(0)
}

/// Records a process until it has used so much CPU time.
pub(crate) fn record_cpu(pid: i32, cpu: Duration, extra: &[&str]) -> Outcome {
    let pid_text = pid.to_string();
    Recorder::start(&[&["--pid", &pid_text][..], extra].concat()).record_cpu(pid, cpu)
}
