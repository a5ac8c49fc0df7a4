//! Names of threads of Node.js: those of the program, of its workers, and of its pools, against
//! what the threads say of themselves.

use std::collections::BTreeMap;
use std::fs;

use serde_json::Value;
use traceprof::trace::load;

use crate::common::{Node, Target, needs_recording, record, skip, together, traceprof};

/// What Node.js 24 calls the threads whose names the program cannot tell.
const OWN_NAMES: [(&str, &str); 3] = [
    ("V8Worker", "V8 platform"),
    ("DelayedTaskSche", "V8 delayed tasks"),
    ("SignalInspector", "inspector signal"),
];

/// Returns the names by thread id that are expected: those that the program tells, and those of
/// the kernel's names where these are clear.
fn expected(target: &Target, version: u32) -> BTreeMap<u32, String> {
    let facts = target.facts().iter();
    let told = facts.filter_map(|(key, name)| Some((key.strip_prefix("thread-")?, name)));
    let mut names: BTreeMap<u32, String> =
        told.map(|(tid, name)| (tid.parse().unwrap(), name.clone())).collect();
    assert_eq!(names.len(), 8, "{names:?}");
    let threads = fs::read_dir(format!("/proc/{}/task", target.pid())).unwrap();
    for thread in threads.map(|it| it.unwrap()).filter(|_| version == 24) {
        let own = fs::read_to_string(thread.path().join("comm")).unwrap();
        if let Some((_, name)) = OWN_NAMES.iter().find(|(known, _)| *known == own.trim()) {
            let tid = thread.file_name().into_string().unwrap().parse().unwrap();
            names.insert(tid, (*name).to_owned());
        }
    }
    assert!(version != 24 || names.len() == 8 + 4 + 2, "{names:?}");
    names
}

/// Returns the names of all threads of a process as `stacks --json` prints them.
fn shown_by_stacks(pid: i32) -> BTreeMap<u32, String> {
    let output = traceprof(&["stacks", "--json", "--pid", &pid.to_string()]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let all: Value = serde_json::from_slice(&output.stdout).unwrap();
    let name =
        |it: &Value| (it["tid"].as_u64().unwrap() as u32, it["name"].as_str().unwrap().to_owned());
    all["threads"].as_array().unwrap().iter().map(name).collect()
}

fn threads_have_names(version: u32) {
    needs_recording!();
    let Some(node) = Node::of(version) else {
        skip!("node {version}: not installed");
    };
    let _machine = together();
    let mut target = Target::spawn(node.runs("node_threads.js", &[]));
    let expected = expected(&target, version);
    let outcome = record(target.pid(), 3, &["--freq", "499"]);
    let loaded = load(&outcome.trace.path()).expect("a trace");
    let threads = || loaded.threads.iter().map(|it| it.thread());
    let recorded: BTreeMap<u32, &str> =
        threads().filter_map(|it| Some((it.tid, it.runtime_name.as_deref()?))).collect();
    let nameless: Vec<_> = threads().filter(|it| it.runtime_name.is_none()).collect();
    assert!(nameless.is_empty(), "{nameless:?}");
    // Those that the program tells all work.
    for (tid, name) in expected.iter().filter(|(_, name)| !is_own(name)) {
        assert_eq!(recorded.get(tid), Some(&name.as_str()), "thread {tid} of {recorded:?}");
    }
    // The kernel's name is there as well.
    assert!(threads().all(|it| !it.name.is_empty() && it.name.len() <= 15));
    let shown = shown_by_stacks(target.pid());
    for (tid, name) in &expected {
        assert_eq!(shown.get(tid), Some(name), "thread {tid} of {shown:?}");
    }
    for (tid, name) in recorded {
        assert_eq!(shown.get(&tid).map(String::as_str), Some(name), "thread {tid}");
    }
    let count = |name| shown.values().filter(|it| *it == name).count();
    let counts = OWN_NAMES.map(|(_, name)| count(name));
    assert_eq!((counts, shown.len()), ([4, 1, 1], 14), "{shown:?}");
    // A thread is selected by its name in each view that tells threads apart.
    for view in
        [&["print", "--threads"][..], &["print", "--timeline"], &["print", "--by", "thread"]]
    {
        let text = outcome.trace.view(&[view, &["--thread", "worker 2*"]].concat());
        assert!(text.contains("worker 2 (a name)"), "{view:?}: {text}");
    }
    target.goes_on_and_ends_by_itself();
}

/// Returns whether the program cannot tell which thread has this name.
fn is_own(name: &str) -> bool {
    OWN_NAMES.iter().any(|(_, it)| *it == name)
}

#[test]
fn threads_of_18_have_names() {
    threads_have_names(18);
}

#[test]
fn threads_of_20_have_names() {
    threads_have_names(20);
}

#[test]
fn threads_of_22_have_names() {
    threads_have_names(22);
}

#[test]
fn threads_of_24_have_names() {
    threads_have_names(24);
}
