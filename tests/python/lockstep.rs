//! Stacks of `lockstep.py`, which holds still in calls of many kinds and tells the frames of all its
//! threads. `stacks` and recordings must show the same functions, files and lines.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::time::Duration;

use nix::sys::stat::Mode;
use serde_json::Value;

use super::recorded::{Frame, samples_by_thread};
use crate::common::{
    Python, Random, Target, is_long_run, record, scratch_dir, traceprof, wait_until,
};

/// The most different stacks that a message shows.
const SHOWN_MAX: usize = 6;

/// How the stacks at a moment are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// By `stacks`, from outside.
    Stacks,
    /// By a recording: threads that sleep from outside, and those that run in their handlers.
    Recording,
}

impl Way {
    /// Returns after how many moments one is compared. In a long run, `stacks` does so at each.
    fn part(self) -> u64 {
        match (self, is_long_run()) {
            (Self::Stacks, true) => 1,
            (Self::Stacks, false) | (Self::Recording, true) => 5,
            (Self::Recording, false) => 35,
        }
    }

    /// Returns the stacks of a process's threads, each with its Python frames, and the report.
    fn take(self, pid: i32) -> (BTreeMap<i32, Vec<Vec<Frame>>>, String) {
        if self == Self::Stacks {
            return (frames_shown(&stacks(pid)), String::new());
        }
        let outcome = record(pid, 1, &["--mode", "cpu,wall", "--freq", "199"]);
        (samples_by_thread(&outcome.trace.path()), outcome.text())
    }
}

/// Compares the stacks at some moments. Returns the number of stacks.
pub(super) fn check(python: &Python, way: Way) -> usize {
    let folder = scratch_dir();
    let gate = folder.path().join("gate");
    nix::unistd::mkfifo(&gate, Mode::S_IRUSR | Mode::S_IWUSR).expect("a gate");
    let mut command = python.script("lockstep.py");
    command.arg(&gate);
    let mut target = Target::spawn(command);
    let mut gate = OpenOptions::new().write(true).open(gate).expect("the gate");
    let (mut compared, mut moments, mut wrong) = (0, 0, Vec::new());
    let turn = Random::new(5).below(way.part());
    loop {
        let line = target.read_line().expect("a moment");
        if line == "done" {
            break;
        }
        let told: Value = serde_json::from_str(&line).expect("a moment as JSON");
        moments += 1;
        if moments % way.part() != turn {
            gate.write_all(b"x").expect("the gate");
            continue;
        }
        assert!(wait_until(Duration::from_secs(60), || is_reading(target.pid())), "{line}");
        let (shown, report) = way.take(target.pid());
        for thread in told["threads"].as_array().expect("threads") {
            let tid = thread["tid"].as_i64().expect("a thread id") as i32;
            let (expected, found) = (frames_told(thread), shown.get(&tid));
            let found = found.unwrap_or_else(|| panic!("no thread {tid}: {line}\n{report}"));
            compared += found.len();
            let others = found.iter().filter(|stack| **stack != expected);
            wrong.extend(others.map(|it| difference(&told["moment"], thread, &expected, it)));
        }
        gate.write_all(b"x").expect("the gate");
    }
    assert!(moments > 30, "{python}: {moments} moments");
    let shown = wrong.iter().take(SHOWN_MAX).map(String::as_str).collect::<Vec<_>>().join("\n");
    assert!(wrong.is_empty(), "{python}: {} of {compared} differ\n{shown}", wrong.len());
    compared
}

/// Whether the main thread of a process is in the system call `read`. The program tells a moment
/// before it holds still.
fn is_reading(pid: i32) -> bool {
    let call = std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
    call.starts_with(&format!("{} ", libc::SYS_read))
}

fn stacks(pid: i32) -> Value {
    let output = traceprof(&["stacks", "--json", "--pid", &pid.to_string()]).output();
    let output = output.expect("traceprof");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

fn frames_told(thread: &Value) -> Vec<Frame> {
    let frames = thread["frames"].as_array().expect("frames");
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    frames.iter().map(|it| (text(&it[0]), text(&it[1]), it[2].as_u64().expect("a line"))).collect()
}

/// Returns the Python frames that `stacks` shows of each thread.
fn frames_shown(shown: &Value) -> BTreeMap<i32, Vec<Vec<Frame>>> {
    let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    let frame =
        |it: &Value| (text(&it["function"]), text(&it["file"]), it["line"].as_u64().unwrap_or(0));
    let threads = shown["threads"].as_array().expect("threads").iter();
    threads
        .map(|thread| {
            let frames = thread["frames"].as_array().expect("frames").iter();
            let python = frames.filter(|frame| frame["kind"] == "python").map(frame).collect();
            (thread["tid"].as_i64().expect("a thread id") as i32, vec![python])
        })
        .collect()
}

/// Returns the first difference of two stacks.
fn difference(moment: &Value, thread: &Value, expected: &[Frame], found: &[Frame]) -> String {
    let at = expected.iter().zip(found).take_while(|(one, other)| one == other).count();
    format!(
        "{moment}, thread {}: {} frames are {}; frame {at} is {:?} and should be {:?}",
        thread["name"],
        expected.len(),
        found.len(),
        found.get(at),
        expected.get(at),
    )
}

#[test]
fn differences_are_found() {
    let told = serde_json::json!({"tid": 7, "frames": [["f", "a.py", 3], ["<module>", "a.py", 9]]});
    let shown = |line: u64, kind: &str| {
        let frames = serde_json::json!([
            {"function": "read", "file": "read.c", "line": 27, "kind": "native"},
            {"function": "f", "file": "a.py", "line": line, "kind": kind},
            {"function": "<module>", "file": "a.py", "line": 9, "kind": "python"},
        ]);
        serde_json::json!({"threads": [{"tid": 6, "frames": []}, {"tid": 7, "frames": frames}]})
    };
    let same = |shown: &Value| frames_shown(shown).get(&7) == Some(&vec![frames_told(&told)]);
    assert!(same(&shown(3, "python")));
    assert!(!same(&shown(4, "python")), "another line");
    assert!(!same(&shown(3, "native")), "a frame is missing");
}
