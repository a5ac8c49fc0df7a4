//! `stacks` of Python programs, compared with what the programs know of themselves.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::common::{Target, is_long_run, pythons, skip, some_pythons, together, traceprof};

/// A Python frame: function, file and line.
type PythonFrame = (String, String, u64);

/// Returns the threads of a process as `stacks --json` prints them.
fn threads(pid: i32, args: &[&str]) -> Vec<Value> {
    let pid = pid.to_string();
    let mut command = traceprof(&["stacks", "--json", "--pid", &pid]);
    let output = command.args(args).output().expect("traceprof");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let all: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    all["threads"].as_array().expect("threads").clone()
}

fn frames(thread: &Value) -> &[Value] {
    thread["frames"].as_array().expect("frames")
}

/// Returns the Python frames of a thread, innermost first.
fn python_frames(thread: &Value) -> Vec<PythonFrame> {
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let python = frames(thread).iter().filter(|frame| frame["kind"] == "python");
    python
        .map(|frame| {
            let line = frame["line"].as_u64().expect("a line");
            (text(&frame["function"]), text(&frame["file"]), line)
        })
        .collect()
}

#[test]
fn threads_that_hold_still_have_the_frames_that_they_report() {
    let pythons = some_pythons(32);
    if pythons.is_empty() {
        skip!("python 3.8 or later: not installed");
    }
    let _machine = together();
    for python in pythons {
        let mut target = Target::spawn(python.runs("still.py"));
        let told: BTreeMap<i64, Vec<PythonFrame>> =
            serde_json::from_str(&target.facts()["frames"]).expect("frames by thread");
        for _ in 0..if is_long_run() { 100 } else { 3 } {
            let mut compared = 0;
            for thread in threads(target.pid(), &[]) {
                let tid = thread["tid"].as_i64().expect("a tid");
                let Some(expected) = told.get(&tid) else { continue };
                assert_eq!(&python_frames(&thread), expected, "3.{}: {thread}", python.minor);
                assert_eq!(thread["end"], "root", "3.{}: {thread}", python.minor);
                compared += 1;
            }
            assert_eq!(compared, told.len(), "3.{}", python.minor);
        }
        target.goes_on_and_ends_by_itself();
    }
}

#[test]
fn native_frames_of_the_interpreter_are_shown_on_request() {
    let Some(python) = pythons().pop() else { skip!("python 3.8 or later: not installed") };
    let _machine = together();
    let mut target = Target::spawn(python.runs("still.py"));
    let is_main = |thread: &Value| thread["tid"] == target.pid();
    let main = |args: &[&str]| threads(target.pid(), args).into_iter().find(is_main).expect("main");
    let (without, with) = (main(&[]), main(&["--native-frames"]));
    let carriers = |thread: &Value| {
        frames(thread).iter().filter(|frame| frame["kind"] == "interpreter").count()
    };
    assert_eq!(carriers(&without), 0, "{without}");
    assert!(carriers(&with) > 5, "{with}");
    let names = |thread: &Value| {
        let names = frames(thread).iter().map(|frame| frame["function"].clone());
        names.collect::<Vec<_>>()
    };
    assert!(names(&with).iter().any(|name| name == "main"), "the native root: {with}");
    let shown = frames(&with).iter().filter(|frame| frame["kind"] != "interpreter");
    let shown: Vec<Value> = shown.map(|frame| frame["function"].clone()).collect();
    assert_eq!(names(&without), shown);
    let pid = target.pid().to_string();
    let text = traceprof(&["stacks", "--pid", &pid]).output().expect("traceprof").stdout;
    let text = String::from_utf8(text).expect("text");
    let told: BTreeMap<i64, Vec<PythonFrame>> =
        serde_json::from_str(&target.facts()["frames"]).expect("frames by thread");
    let (_, _, line) = told.values().flatten().find(|it| it.0 == "recursive").expect("a frame");
    assert!(
        text.contains(&format!(
            " recursive (still.py:{line})
"
        )),
        "{text}"
    );
    target.goes_on_and_ends_by_itself();
}

/// Checks the functions of a running thread of `callers.py`, innermost first, and returns their
/// number.
fn check_callers(thread: &Value) -> usize {
    let frames = python_frames(thread);
    let names: Vec<&str> = frames.iter().map(|(name, ..)| name.as_str()).collect();
    let unique: Vec<&str> = names.iter().copied().filter(|name| is_unique(name)).collect();
    for pair in unique.windows(2) {
        let caller = pair[0].rsplit_once('_').map(|(caller, _)| caller);
        assert_eq!(caller, Some(pair[1]), "{names:?}\n{thread}");
    }
    if let Some(outermost) = unique.last() {
        assert_eq!(outermost.split('_').count(), 2, "{names:?}\n{thread}");
        let after = names.iter().position(|name| name == outermost).map(|at| &names[at + 1..]);
        let after = after.unwrap_or_default();
        assert_eq!(after.first(), Some(&"run"), "{names:?}\n{thread}");
    }
    unique.len()
}

/// Whether a name is that of a function with one caller.
fn is_unique(name: &str) -> bool {
    name.strip_prefix("n_")
        .is_some_and(|rest| rest.bytes().all(|it| it.is_ascii_digit() || it == b'_'))
}

#[test]
fn frames_of_running_threads_are_of_one_moment() {
    let pythons = some_pythons(33);
    if pythons.is_empty() {
        skip!("python 3.8 or later: not installed");
    }
    let _machine = together();
    for python in pythons {
        let mut target = Target::spawn(python.runs("callers.py"));
        let (mut stacks, mut deep) = (0, 0);
        for _ in 0..if is_long_run() { 500 } else { 4 } {
            for thread in threads(target.pid(), &[]) {
                let depth = check_callers(&thread);
                stacks += usize::from(depth > 0);
                deep += usize::from(depth >= 4);
            }
        }
        eprintln!("3.{}: {stacks} stacks, {deep} of them deep", python.minor);
        assert!(deep * 2 > stacks && stacks > 10, "3.{}: {deep} of {stacks}", python.minor);
        target.goes_on_and_ends_by_itself();
    }
}
