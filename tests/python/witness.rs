//! py-spy, a profiler of Python that stops the process for each sample, as a second witness.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use super::functions::FunctionShares;
use crate::common::{Folded, cpu_clock, scratch_dir, tool, wait_until};

/// The file with the profile.
const OUTPUT: &str = "out.raw";
/// How long py-spy may use no CPU time, on an overloaded machine.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long py-spy takes to end, on an overloaded machine.
const END_MAX: Duration = Duration::from_secs(60);

/// A `py-spy record` that runs beside the test and is killed when the value is dropped.
pub(super) struct PySpy {
    child: Child,
    dir: TempDir,
    /// The CPU time that it had used at a moment.
    seen: (Duration, Instant),
}

/// Returns the command, if `scripts/test` has unpacked it.
pub(super) fn command() -> Option<PathBuf> {
    Some(tool("py-spy/bin/py-spy")).filter(|command| command.exists())
}

impl PySpy {
    /// Starts a recording. The sampling rate is in Hz of wall clock time.
    pub(super) fn start(command: &Path, pid: i32, rate: u32, options: &[&str]) -> Self {
        let dir = scratch_dir();
        let command = command_line(command, pid, rate, options, dir.path());
        Self::spawn(command, dir)
    }

    /// Starts a recording that also has the threads, and the lines at which functions begin. Returns
    /// when it takes samples.
    pub(super) fn start_sampling(command: &Path, pid: i32, rate: u32, options: &[&str]) -> Self {
        let mut witness = Self::start(command, pid, rate, &[&["--threads"][..], options].concat());
        let mut status = None;
        let is_up = wait_until(Duration::from_secs(60), || {
            status = witness.child.try_wait().expect("py-spy");
            witness.told().contains("Sampling process") || status.is_some()
        });
        assert!(is_up && status.is_none(), "py-spy: {status:?}\n{}", witness.told());
        witness
    }

    fn spawn(mut command: Command, dir: TempDir) -> Self {
        let told = File::create(dir.path().join("told")).expect("a file");
        let also = told.try_clone().expect("a descriptor");
        command.stdin(Stdio::null()).stdout(told).stderr(also);
        let seen = (Duration::ZERO, Instant::now());
        Self { child: command.spawn().expect("py-spy"), dir, seen }
    }

    fn told(&self) -> String {
        fs::read_to_string(self.dir.path().join("told")).unwrap_or_default()
    }

    /// Whether py-spy has used no CPU time since the last call that returned false, for so long that
    /// it takes no samples. It may wait forever for the stop of a thread that goes on, while it holds
    /// others.
    pub(super) fn hangs(&mut self) -> bool {
        let used = cpu_clock(self.child.id() as i32);
        if used != self.seen.0 {
            self.seen = (used, Instant::now());
        }
        self.seen.1.elapsed() > PATIENCE
    }

    /// Ends a py-spy that hangs: it holds threads of the process.
    pub(super) fn end_if_it_hangs(witness: &mut Option<Self>) {
        if witness.as_mut().is_some_and(Self::hangs) {
            eprintln!("py-spy hangs");
            *witness = None;
        }
    }

    /// Ends the recording and returns its stacks. `None` if py-spy hangs.
    pub(super) fn finish(self) -> Option<Folded> {
        Some(Folded::parse(&plain(&self.end()?)))
    }

    /// Like [`Self::finish`], but returns the shares of the functions.
    pub(super) fn finish_with_shares(self) -> Option<FunctionShares> {
        Some(shares(&self.end()?))
    }

    /// Returns the profile. `None` if py-spy does not end: it may take signals of the process
    /// forever, so that it uses some CPU time.
    fn end(mut self) -> Option<String> {
        let since = Instant::now();
        kill(Pid::from_raw(self.child.id() as i32), Signal::SIGINT).expect("a signal to py-spy");
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("py-spy") {
                break status;
            }
            if self.hangs() || since.elapsed() > END_MAX {
                eprintln!("py-spy hangs");
                return None;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let text = fs::read_to_string(self.dir.path().join(OUTPUT));
        let why = || format!("py-spy ended with {status}: {}", self.told());
        Some(text.unwrap_or_else(|error| panic!("{error}: {}", why())))
    }
}

fn command_line(program: &Path, pid: i32, rate: u32, options: &[&str], dir: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(["record", "--format", "raw", "--function", "--full-filenames"]);
    command.args(options).args(["--rate", &rate.to_string(), "--pid", &pid.to_string()]);
    command.arg("--output").arg(dir.join(OUTPUT));
    command
}

impl Drop for PySpy {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the stacks with the names of functions only.
fn plain(raw: &str) -> String {
    let mut text = String::new();
    for (stack, count) in stacks(raw) {
        let names: Vec<&str> =
            stack.iter().map(|frame| frame.rsplit_once(" (").map_or(*frame, |it| it.0)).collect();
        text += &format!("{} {count}\n", names.join(";"));
    }
    text
}

/// Returns the shares of functions in stacks with their threads.
fn shares(raw: &str) -> FunctionShares {
    let mut shares = FunctionShares::new();
    for (stack, count) in stacks(raw) {
        let thread = |frame: &str| {
            let (id, _) = frame.strip_prefix("thread (")?.split_once(')')?;
            // Where it does not know the thread's id, it shows another one, in hexadecimal.
            Some(id.parse::<i32>().ok())
        };
        let at = stack.iter().position(|frame| thread(frame).is_some());
        let at = at.unwrap_or_else(|| panic!("no thread: {stack:?}"));
        let functions: Vec<String> = stack[at + 1..].iter().map(|it| (*it).to_owned()).collect();
        shares.add(thread(stack[at]).flatten(), &functions, count, count);
    }
    shares
}

/// Returns the stacks of a raw profile with their counts. The frame that Python adds below each
/// `__init__`, from 3.12 on, is left out.
fn stacks(raw: &str) -> impl Iterator<Item = (Vec<&str>, u64)> {
    raw.lines().map(|line| {
        let (stack, count) = line.rsplit_once(' ').expect("a count");
        let frames = stack.split(';').filter(|frame| !frame.starts_with("__init__ (__init__"));
        (frames.collect(), count.parse().expect("a number"))
    })
}

#[test]
fn raw_stacks_become_plain() {
    let raw = "<module> (a.py:1);f (b c.py:2);__init__ (__init__:1);A.__init__ (a.py:3) 4\n";
    assert_eq!(plain(raw), "<module>;f;A.__init__ 4\n");
}

#[test]
fn raw_stacks_become_shares() {
    let raw = "process 7:\"python3 a b\";thread (8): my name;<module> (a.py:1);f (b c.py:2) 4\n\
               process 7:\"python3 a b\";thread (7): main 3\nthread (0x7F): x;g (a.py:3) 12\n";
    let shares = shares(raw);
    assert!((shares.share_of("f") - 0.25).abs() < 1e-9 && (shares.draws() - 16.0).abs() < 1e-9);
    assert!((shares.share_of("my name") - 0.0).abs() < 1e-9);
}
