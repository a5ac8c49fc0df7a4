//! Python code around native functions and other interpreters of `placed.py`: the order of all
//! frames of a stack is known.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use traceprof::trace::{self, FrameKind};

use crate::common::{
    Minor, Python, Target, needs_recording, record_cpu, record_cpu_and_end, skip, together,
    traceprof, variant,
};

/// Starts a scenario.
fn start(python: &Python, scenario: &str) -> Target {
    let library = variant("nest.so", "python/nest.c", "cc", &["-shared", "-fPIC"]);
    let mut command = python.script("placed.py");
    command.arg(library).arg(scenario);
    Target::spawn(command)
}

/// Whether a frame is one of those whose order is known: of Python, of the library, or of the module
/// that runs other interpreters.
fn is_known(kind: &str, name: &str, module: &str) -> bool {
    kind == "python" || name.starts_with("nest_") || module.contains("interpreters.cpython")
}

/// Returns the known frames of each thread, outermost first, as `stacks` shows them.
fn shown(pid: i32) -> Vec<(i64, String)> {
    let pid = pid.to_string();
    let output = traceprof(&["stacks", "--json", "--pid", &pid]).output().expect("traceprof");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let all: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    let threads = all["threads"].as_array().expect("threads").iter();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    threads
        .map(|thread| {
            let frames = thread["frames"].as_array().expect("frames").iter().rev();
            let frames = frames.map(|it| [&it["kind"], &it["function"], &it["module"]].map(text));
            let names = frames.filter(|[kind, name, module]| is_known(kind, name, module));
            (
                thread["tid"].as_i64().expect("a tid"),
                joined(names.map(|[_, name, module]| (name, module))),
            )
        })
        .collect()
}

/// Returns names with `;` between. All frames of another module are one.
fn joined(frames: impl Iterator<Item = (String, String)>) -> String {
    let mut names: Vec<String> = frames
        .map(|(name, module)| {
            if module.contains("interpreters.cpython") { "[run]".to_owned() } else { plain(&name) }
        })
        .collect();
    names.dedup();
    names.join(";")
}

/// Returns the name without what it is defined in.
fn plain(name: &str) -> String {
    name.rsplit_once('.').map_or(name, |(_, name)| name).to_owned()
}

/// Returns the known frames of all samples.
fn recorded(path: &Path) -> Vec<String> {
    let trace = trace::load(path).expect("a trace");
    let mut stacks = Vec::new();
    for thread in &trace.threads {
        thread.for_each_sample(&mut |_, stack| {
            let frames = stack.iter().filter_map(|id| {
                let location = &trace.locations[id.0 as usize];
                let method = &trace.methods[location.method.0 as usize];
                let module = method.module.map(|id| trace.modules[id.0 as usize].path.clone());
                let module = module.unwrap_or_default();
                let is_python = location.kind == FrameKind::Python;
                let kind = if is_python { "python" } else { "native" };
                let is_known = is_known(kind, &method.name, &module);
                is_known.then(|| (method.name.clone(), module))
            });
            stacks.push(joined(frames));
        });
    }
    stacks
}

/// Checks all scenarios with an interpreter.
fn check(minor: Minor) {
    needs_recording!();
    let pythons = Python::of(minor);
    if pythons.is_empty() {
        skip!("python 3.{minor}: not installed");
    }
    let _machine = together();
    for python in pythons {
        let frames = |scenario: &str| {
            let target = start(&python, scenario);
            let threads = shown(target.pid());
            let main = threads.iter().find(|(tid, _)| *tid == i64::from(target.pid()));
            (main.expect("the main thread").1.clone(), threads)
        };
        assert_eq!(
            frames("cleared").0,
            "<module>;cleared;nest_a;__del__;nest_b;<lambda>;hold",
            "{python}"
        );
        let within = "<module>;within;nest_a;outer_1;[run];<module>;inner_0;inner_1";
        assert_eq!(frames("within").0, within, "{python}");
        let (main, threads) = frames("lent");
        assert_eq!(main, "<module>;lent", "{python}");
        let other = threads.iter().find(|(_, frames)| frames.contains("_bootstrap"));
        let other = &other.expect("the other thread").1;
        assert!(other.contains("run;<lambda>;[run]"), "{python}: {other}");
        if minor >= 12 {
            assert!(other.ends_with("[run];<module>;inner_0;inner_1"), "{python}: {other}");
        }
        check_recorded(&python);
    }
}

fn check_recorded(python: &Python) {
    let half = Duration::from_millis(500);
    let target = start(python, "works");
    let stacks = recorded(&record_cpu(target.pid(), half, &["--freq", "1999"]).trace.path());
    let expected = "<module>;works;nest_a;outer_2;[run];<module>;inner_0;inner_1";
    let right = stacks.iter().filter(|stack| *stack == expected).count();
    let others: Vec<_> = stacks.iter().filter(|stack| *stack != expected).take(5).collect();
    assert!(right * 100 >= stacks.len() * 99 && right > 60, "{python}: {right} {others:?}");
    drop(target);
    let target = start(python, "frees");
    let stacks = recorded(&record_cpu_and_end(target, half, &["--freq", "1999"]).trace.path());
    let is_right = |stack: &&String| stack.starts_with("<module>;frees");
    let wrong: Vec<_> = stacks.iter().filter(|stack| !is_right(stack)).collect();
    assert!(wrong.len() * 100 <= stacks.len(), "{python}: {wrong:?}");
    // In the callback, and while Python frees what the callback has used.
    let within = stacks.iter().filter(|it| it.starts_with("<module>;frees;nest_a;makes")).count();
    let after = stacks.iter().filter(|it| *it == "<module>;frees;nest_a").count();
    assert!(within > 10 && after > 10, "{python}: {within}, {after}");
}

#[test]
fn frames_in_3_8_are_in_their_places() {
    check(8);
}

#[test]
fn frames_in_3_9_are_in_their_places() {
    check(9);
}

#[test]
fn frames_in_3_10_are_in_their_places() {
    check(10);
}

#[test]
fn frames_in_3_11_are_in_their_places() {
    check(11);
}

#[test]
fn frames_in_3_12_are_in_their_places() {
    check(12);
}

#[test]
fn frames_in_3_13_are_in_their_places() {
    check(13);
}

#[test]
fn frames_in_3_14_are_in_their_places() {
    check(14);
}
