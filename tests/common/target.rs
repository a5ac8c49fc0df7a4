//! A running target process, which is killed when the value is dropped.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{OWN_EXIT_CODE, Snapshot, program, wait_until};

/// A target that reported that it is ready.
pub(crate) struct Target {
    child: Child,
    pid: i32,
    own_code: i32,
    stdout: BufReader<ChildStdout>,
    facts: HashMap<String, String>,
}

impl Target {
    /// Starts a program from `tests/targets`.
    pub(crate) fn start(name: &str, args: &[&str]) -> Self {
        let mut command = Command::new(program(name));
        command.args(args);
        Self::spawn(command)
    }

    /// Starts a command that behaves like the programs in `tests/targets`.
    pub(crate) fn spawn(mut command: Command) -> Self {
        let mut child =
            command.stdout(Stdio::piped()).stdin(Stdio::null()).spawn().expect("target");
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        let (pid, own_code) = (child.id() as i32, OWN_EXIT_CODE);
        let mut target = Self { child, pid, own_code, stdout, facts: HashMap::new() };
        while target.read_line().expect("a target that gets ready") != "ready" {}
        target.settle();
        target
    }

    /// Like [`Self::spawn`], for a command whose only child is the target and that exits with the
    /// target's code.
    pub(crate) fn spawn_inside(command: Command) -> Self {
        let mut target = Self::spawn(command);
        let outer = target.pid;
        let children = std::fs::read_to_string(format!("/proc/{outer}/task/{outer}/children"));
        let children = children.expect("children of the started command");
        target.pid = children.trim().parse().expect("one child");
        target.settle();
        target
    }

    /// Sets an exit code other than that of most targets.
    pub(crate) fn with_code(mut self, code: i32) -> Self {
        self.own_code = code;
        self
    }

    /// Waits until the target is quiet: new threads still change their masks and map their arenas.
    /// After a while it goes on with a target that never becomes quiet.
    fn settle(&self) {
        let mut last = Snapshot::take(self.pid());
        let begin = Instant::now();
        // On a busy machine a new thread waits for its first turn.
        wait_until(Duration::from_secs(2), || {
            sleep(Duration::from_millis(10));
            let before = std::mem::replace(&mut last, Snapshot::take(self.pid()));
            let is_late = begin.elapsed() > Duration::from_millis(500);
            (before == last || is_late) && !last.may_have_new_threads()
        });
    }

    /// Reads a line and remembers `key value` pairs; `None` at the end of the output.
    pub(crate) fn read_line(&mut self) -> Option<String> {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("output of the target");
        if line.is_empty() {
            return None;
        }
        let line = line.trim_end().to_owned();
        if let Some((key, value)) = line.split_once(' ') {
            self.facts.insert(key.into(), value.into());
        }
        Some(line)
    }

    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    pub(crate) fn send(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid()), signal).expect("a signal to the target");
    }

    /// Returns the number that the target reported under this key.
    pub(crate) fn fact(&self, key: &str) -> u64 {
        let value = self.facts.get(key);
        value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {key} reported"))
    }

    /// Returns everything that the target reported.
    pub(crate) fn facts(&self) -> &HashMap<String, String> {
        &self.facts
    }

    /// Checks the report of `eintr`: no call ended with EINTR, or with a wrong result. `told` is what
    /// the recorders printed.
    pub(crate) fn assert_no_call_was_interrupted(&self, told: &str) {
        let is_broken =
            |(key, value): &(&String, &String)| key.starts_with("eintr") && value.as_str() != "0";
        let broken: Vec<_> = self.facts.iter().filter(is_broken).collect();
        assert!(broken.is_empty(), "{broken:?}\n{told}");
        assert_eq!(self.fact("wrong"), 0, "{:?}\n{told}", self.facts);
    }

    pub(crate) fn has_exited(&mut self) -> bool {
        self.child.try_wait().expect("state of the target").is_some()
    }

    /// Waits for the exit without asking for it.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        while self.read_line().is_some() {}
        self.child.wait().expect("end of the target")
    }

    /// Checks that the target is alive and makes progress, and that it exits normally when asked
    /// to.
    pub(crate) fn goes_on_and_ends_by_itself(&mut self) {
        assert!(!self.has_exited(), "the target ended early: {:?}", self.child.try_wait());
        // A guardian whose recorder was killed may hold the target for a moment. A target that
        // waits for children of vfork is nearly always in state D.
        let goes_on =
            wait_until(Duration::from_secs(30), || matches!(self.state(), 'R' | 'S' | 'D'));
        assert!(goes_on, "state {}", self.state());
        sleep(Duration::from_millis(50));
        self.send(Signal::SIGTERM);
        let ended = wait_until(Duration::from_secs(20), || self.has_exited());
        assert!(ended, "the target does not react to SIGTERM, state {}", self.state());
        let status = self.wait();
        assert_eq!(status.code(), Some(self.own_code), "{status}");
    }

    /// Returns the state letter of the main thread.
    pub(crate) fn state(&self) -> char {
        state(Path::new(&format!("/proc/{}/stat", self.pid())))
    }

    /// Returns the state letters of all threads.
    pub(crate) fn states(&self) -> String {
        let entries = std::fs::read_dir(format!("/proc/{}/task", self.pid()));
        let entries = entries.expect("threads of the target").filter_map(Result::ok);
        entries.map(|entry| state(&entry.path().join("stat"))).collect()
    }
}

/// Returns the state letter in a stat file, or `?` if the thread no longer exists.
fn state(file: &Path) -> char {
    let stat = std::fs::read_to_string(file).unwrap_or_default();
    stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()).unwrap_or('?')
}

impl Drop for Target {
    fn drop(&mut self) {
        if self.pid != self.child.id() as i32 && !matches!(self.child.try_wait(), Ok(Some(_))) {
            let _ = kill(Pid::from_raw(self.pid), Signal::SIGKILL);
        }
        // The process may have been reaped or may have exited, which leaves nothing to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
