//! Tasks of asyncio: the name of the task that runs, as a tag of samples, and the coroutines that
//! await each other.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;
use traceprof::trace::{self, FrameKind, TASK_TAG, TagKey, TextId};

use crate::common::{
    Minor, Python, Target, Trace, needs_recording, record_cpu, record_cpu_and_end, skip, together,
    traceprof,
};

/// The largest number of bytes of a task's name.
const NAME_MAX: usize = 128;

/// What the samples of a trace say of each function that works.
#[derive(Default)]
struct Seen {
    /// The names of tasks, and the number of samples with each.
    names: BTreeMap<String, BTreeMap<String, u64>>,
    /// The Python functions below it, outermost first.
    callers: BTreeMap<String, BTreeSet<String>>,
}

fn seen(path: &std::path::Path) -> Seen {
    let trace = trace::load(path).expect("a trace");
    let keys = TagKey::of(&trace.metadata);
    let tag = keys.iter().position(|key| key.name == TASK_TAG);
    let mut seen = Seen::default();
    for thread in &trace.threads {
        thread.for_each_sample(&mut |sample, stack| {
            let locations = stack.iter().map(|id| &trace.locations[id.0 as usize]);
            let python = locations.filter(|location| location.kind == FrameKind::Python);
            let names: Vec<&str> = python
                .map(|it| trace.methods[it.method.0 as usize].name.as_str())
                .map(|name| name.rsplit_once('.').map_or(name, |(_, name)| name))
                .collect();
            let is_work = |name: &&str| name.starts_with("work_") || *name == "outside";
            let Some(at) = names.iter().position(is_work) else { return };
            let text = tag.map(|tag| sample.tags[tag]).filter(|number| *number != 0);
            let text = text.map(|number| trace.texts[&TextId(number - 1)].clone());
            let function = names[at].to_owned();
            let count = seen.names.entry(function.clone()).or_default();
            *count.entry(text.unwrap_or_default()).or_default() += 1;
            seen.callers.entry(function).or_default().insert(names[..at].join(";"));
        });
    }
    seen
}

/// Starts the program, and returns it with the names that its tasks told, by function.
fn start(python: &Python) -> (Target, BTreeMap<String, String>) {
    let target = Target::spawn(python.script("tasks.py"));
    let told = target.facts().iter();
    let told = told.filter_map(|(key, value)| Some((key.strip_prefix("task_")?, value)));
    let shown = |name: &str| match name.len() > NAME_MAX {
        true => format!("{}…", &name[..NAME_MAX]),
        false => name.to_owned(),
    };
    let names = told.map(|(function, name)| (function.to_owned(), shown(name))).collect();
    (target, names)
}

#[test]
fn samples_of_tasks_have_their_names() {
    needs_recording!();
    let pythons = Python::of(14);
    if pythons.is_empty() {
        skip!("python 3.14: not installed");
    }
    let _machine = together();
    for python in pythons {
        let (target, told) = start(&python);
        assert_eq!(told.len(), 7, "{told:?}");
        let outcome = record_cpu(target.pid(), Duration::from_secs(3), &["--freq", "997"]);
        let seen = seen(&outcome.trace.path());
        let (mut right, mut wrong, mut without) = (0, Vec::new(), 0);
        for (function, names) in &seen.names {
            for (name, count) in names {
                match told.get(function).map_or("", String::as_str) {
                    expected if expected == name => right += count,
                    _ if name.is_empty() => without += count,
                    expected => wrong.push((function, name, expected, count)),
                }
            }
        }
        assert!(wrong.is_empty(), "{python}: {wrong:?}");
        assert!(right > 300 && without * 100 <= right, "{python}: {right}, {without} without");
        assert_eq!(seen.names.len(), told.len() + 1, "{:?}", seen.names);
        check_views(&outcome.trace, &told);
        check_stacks(target.pid(), &told);
    }
}

#[test]
fn samples_of_the_deepest_stacks_have_the_names_of_tasks() {
    needs_recording!();
    let Some(python) = Python::of(14).pop() else { skip!("python 3.14: not installed") };
    let _machine = together();
    let target = Target::spawn(python.script("deep_task.py"));
    let outcome = record_cpu_and_end(target, Duration::from_secs(1), &["--freq", "499"]);
    let names = seen(&outcome.trace.path()).names.remove("work_deep").unwrap_or_default();
    let named = names.get("deep").copied().unwrap_or_default();
    assert!(named > 50 && names.len() == 1, "{names:?}");
}

/// Checks that views show the names.
fn check_views(trace: &Trace, told: &BTreeMap<String, String>) {
    let path = trace.path();
    let path = path.to_str().expect("a path");
    let run = |args: &[&str]| {
        let output = traceprof(args).output().expect("traceprof");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };
    let table = run(&["print", path, "--by", "task", "--top", "20"]);
    let same = run(&["print", path, "--by", "tag:asyncio.task", "--top", "20"]);
    assert_eq!(table, same);
    for name in ["first", "größe €uro", "of another loop", "short"] {
        assert!(table.contains(name), "{name}: {table}");
    }
    assert!(table.contains(&told["work_silent"]), "{table}");
}

/// Checks that `stacks` shows the name of a running task.
fn check_stacks(pid: i32, told: &BTreeMap<String, String>) {
    let pid = pid.to_string();
    let mut with_task = 0;
    for _ in 0..20 {
        let output = traceprof(&["stacks", "--json", "--pid", &pid]).output().expect("traceprof");
        let all: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
        for thread in all["threads"].as_array().expect("threads") {
            let names = thread["frames"].as_array().expect("frames").iter();
            let names = names.filter_map(|frame| frame["function"].as_str());
            let work = names.filter_map(|name| told.get(name)).next();
            let shown = &thread["work"]["tags"][TASK_TAG];
            if let Some(name) = work {
                // Both are read while the thread is stopped.
                assert_eq!(shown, name.as_str(), "{thread}");
                with_task += 1;
            }
        }
    }
    assert!(with_task > 3, "{with_task}");
}

/// Checks that the coroutines of a task are the callers, in their order.
fn check_coroutines(minor: Minor) {
    needs_recording!();
    let pythons = Python::of(minor);
    if pythons.is_empty() {
        skip!("python 3.{minor}: not installed");
    }
    let _machine = together();
    for python in pythons {
        let (target, told) = start(&python);
        let outcome = record_cpu(target.pid(), Duration::from_secs(1), &["--freq", "997"]);
        let seen = seen(&outcome.trace.path());
        for function in told.keys() {
            let callers = seen.callers.get(function).unwrap_or_else(|| panic!("no {function}"));
            let is_chain = |callers: &String| {
                callers.starts_with("<module>;run;") && callers.ends_with(";works;between;leaf")
                    || callers.contains(";other_loop;run;")
                        && callers.ends_with(";works;between;leaf")
            };
            assert!(callers.iter().all(is_chain), "{python}, {function}: {callers:?}");
        }
    }
}

#[test]
fn coroutines_in_3_11_are_callers() {
    check_coroutines(11);
}

#[test]
fn coroutines_in_3_12_are_callers() {
    check_coroutines(12);
}

#[test]
fn coroutines_in_3_13_are_callers() {
    check_coroutines(13);
}

#[test]
fn coroutines_in_3_14_are_callers() {
    check_coroutines(14);
}
