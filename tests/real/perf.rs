//! `perf record --call-graph dwarf` beside a recording, and its samples.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::REGEXP;
use crate::common::wait_until;

/// perf writes less than this before its first sample.
const HEAD_BYTES: u64 = 16 << 10;

/// `perf record` on a process, which is killed when the value is dropped.
pub(super) struct Perf {
    child: Child,
    path: PathBuf,
}

/// A sample of perf.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PerfSample {
    /// Time on CLOCK_MONOTONIC.
    pub(super) time_ns: u64,
    /// Address in user mode, even if the sample is in the kernel.
    pub(super) pc: u64,
    /// The function, if perf knows it.
    pub(super) name: Option<String>,
    /// The caller, as perf unwound its copy of the stack.
    pub(super) caller: Option<Frame>,
}

/// A frame as perf prints it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Frame {
    /// Offset in the file, or the address of code that is in no file.
    pub(super) offset: u64,
    pub(super) name: Option<String>,
    pub(super) file: String,
}

impl Perf {
    /// Starts perf and waits until it records, in user and kernel mode as far as permitted.
    pub(super) fn start(pid: i32, hz: u32, dir: &Path) -> Self {
        let path = dir.join("perf.data");
        let mut command = Command::new("perf");
        command.args(["record", "-q", "-N", "-k", "CLOCK_MONOTONIC", "-e", "cpu-clock"]);
        command.args(["--call-graph", "dwarf", "-F", &hz.to_string(), "-p", &pid.to_string()]);
        command.arg("-o").arg(&path).stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.stderr(Stdio::null()).spawn().expect("perf");
        let has_hits = || std::fs::metadata(&path).is_ok_and(|file| file.len() > HEAD_BYTES);
        let is_on = wait_until(Duration::from_secs(60), has_hits);
        let perf = Self { child, path };
        assert!(is_on, "perf does not record");
        perf
    }

    /// Stops perf.
    pub(super) fn stop(&mut self) {
        // perf exits by itself when its target does.
        let _ = kill(Pid::from_raw(self.child.id() as i32), Signal::SIGINT);
        self.child.wait().expect("the end of perf");
    }

    /// Returns all samples after perf has exited.
    pub(super) fn samples(self) -> Vec<PerfSample> {
        let mut command = Command::new("perf");
        command.args(["script", "--ns", "-F", "tid,time,ip,sym,dso,uregs", "--max-stack", "2"]);
        // Lines and inlined calls would take perf minutes.
        command.arg("--no-inline");
        let output = command.arg("-i").arg(&self.path).output().expect("perf script");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "perf script: {stderr}");
        parse(&String::from_utf8_lossy(&output.stdout))
    }
}

impl Drop for Perf {
    fn drop(&mut self) {
        // A process that has exited needs no kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Parses a line with thread and time, a line for each frame, kernel first, and the user registers.
fn parse(text: &str) -> Vec<PerfSample> {
    let mut samples = Vec::new();
    let (mut time_ns, mut frames) = (0, Vec::new());
    for line in text.lines() {
        if let Some(frame) = line.strip_prefix('\t') {
            frames.extend(user_frame(frame));
        } else if let Some((_, registers)) = line.split_once(" IP:0x") {
            let word = registers.split(' ').next().unwrap_or_default();
            let pc = u64::from_str_radix(word, 16).expect("a register");
            let mut frames = frames.drain(..);
            let name = frames.next().and_then(|frame| frame.name);
            samples.push(PerfSample { time_ns, pc, name, caller: frames.next() });
        } else if let Some(time) = line.trim_end().strip_suffix(':') {
            let seconds = time.rsplit(' ').next().unwrap_or_default();
            time_ns = seconds.replace('.', "").parse().expect("a time");
            frames.clear();
        }
    }
    samples
}

/// Parses `135731 function (/usr/bin/program)`. Frames of the kernel give `None`.
fn user_frame(line: &str) -> Option<Frame> {
    let (address, rest) = line.trim().split_once(' ')?;
    let (name, file) = rest.rsplit_once(" (")?;
    let offset = u64::from_str_radix(address, 16).ok()?;
    let name = (name != "[unknown]").then(|| plain_name(name));
    let file = file.trim_end_matches(')').to_owned();
    (offset >> 63 == 0).then_some(Frame { offset, name, file })
}

/// Returns a name as ours are: Node.js adds how a function runs and where it is, and has the texts
/// of regular expressions.
fn plain_name(name: &str) -> String {
    if name.starts_with("RegExp:") {
        return REGEXP.to_owned();
    }
    let Some(function) = name.strip_prefix("JS:") else { return name.to_owned() };
    let function = function.trim_start_matches(['~', '^', '+', '*', '\'']);
    match function.rsplit_once(' ') {
        Some(("", _)) => "(anonymous)".to_owned(),
        Some((name, _)) => name.to_owned(),
        None => function.to_owned(),
    }
}

#[test]
fn samples_are_parsed() {
    let text = "26740 81070.332712001: \n\
        \t          135731 evaluate (/usr/bin/python3.11)\n\
        \t          1089e4 [unknown] (/usr/bin/python3.11)\n \
        ABI:2    AX:0x7f0a1417d0b0    IP:0x535731 FLAGS:0x246    SS:0x2b \n\
        \n\
        26740 81070.436175002: \n\
        \tffffffff812fd30b arch_do_signal_or_restart ([kernel.kallsyms])\n\
        \t          1819b3 [unknown] (/usr/bin/python3.11)\n \
        ABI:2    AX:0x601db0    IP:0x5819b3 FLAGS:0x202 \n\
        26740 81070.436176003: \n\
        \tffffffff812fd30b exit ([kernel.kallsyms])\n \
        ABI:0 \n\
        26740 81070.436177004: \n\
        \t29cfff404fe9 JS:*get sum /a/a.js:13:17 (/tmp/perf-1.map)\n \
        ABI:2    IP:0x29cfff404fe9 FLAGS:0x202 \n";
    let sample = |ns: u64, pc, name: Option<&str>| PerfSample {
        time_ns: 81_070_000_000_000 + ns,
        pc,
        name: name.map(str::to_owned),
        caller: None,
    };
    let file = "/usr/bin/python3.11".to_owned();
    let caller = Some(Frame { offset: 0x10_89e4, name: None, file });
    let expected = [
        PerfSample { caller, ..sample(332_712_001, 0x53_5731, Some("evaluate")) },
        sample(436_175_002, 0x58_19b3, None),
        sample(436_177_004, 0x29cf_ff40_4fe9, Some("get sum")),
    ];
    assert_eq!(parse(text), expected);
}
