//! py-spy, a profiler of Python that stops the process for each sample, as a second witness.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::common::{Folded, scratch_dir, tool};

/// A `py-spy record` that runs beside the test and is killed when the value is dropped.
pub(super) struct PySpy {
    child: Child,
    dir: TempDir,
}

/// Returns the command, if `scripts/test` has unpacked it.
pub(super) fn command() -> Option<PathBuf> {
    Some(tool("py-spy/bin/py-spy")).filter(|command| command.exists())
}

impl PySpy {
    /// Starts a recording. The sampling rate is in Hz of wall clock time.
    pub(super) fn start(command: &Path, pid: i32, rate: u32, options: &[&str]) -> Self {
        let dir = scratch_dir();
        let mut py_spy = Command::new(command);
        py_spy.args(["record", "--format", "raw", "--function", "--full-filenames"]);
        py_spy.args(options).args(["--rate", &rate.to_string(), "--pid", &pid.to_string()]);
        py_spy.arg("--output").arg(dir.path().join("out.raw"));
        py_spy.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self { child: py_spy.spawn().expect("py-spy"), dir }
    }

    /// Ends the recording and returns its stacks.
    pub(super) fn finish(mut self) -> Folded {
        kill(Pid::from_raw(self.child.id() as i32), Signal::SIGINT).expect("a signal to py-spy");
        let status = self.child.wait().expect("py-spy");
        let text = std::fs::read_to_string(self.dir.path().join("out.raw"));
        let text = text.unwrap_or_else(|error| panic!("py-spy ended with {status}: {error}"));
        Folded::parse(&plain(&text))
    }
}

impl Drop for PySpy {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the stacks with the names of functions only. The frame that Python adds below each
/// `__init__`, from 3.12 on, is left out.
fn plain(raw: &str) -> String {
    let mut text = String::new();
    for line in raw.lines() {
        let (stack, count) = line.rsplit_once(' ').expect("a count");
        let frames = stack.split(';').filter(|frame| !frame.starts_with("__init__ (__init__"));
        let names: Vec<&str> =
            frames.map(|frame| frame.rsplit_once(" (").map_or(frame, |(name, _)| name)).collect();
        text += &format!("{} {count}\n", names.join(";"));
    }
    text
}

#[test]
fn raw_stacks_become_plain() {
    let raw = "<module> (a.py:1);f (b c.py:2);__init__ (__init__:1);A.__init__ (a.py:3) 4\n";
    assert_eq!(plain(raw), "<module>;f;A.__init__ 4\n");
}
