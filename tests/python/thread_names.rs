//! The names that Python programs give their threads, against the program's own list and py-spy.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;
use traceprof::trace::load;

use super::witness;
use crate::common::{
    Python, Target, needs_recording, record, skip, some_pythons, together, traceprof,
};

/// Names by thread id.
type Names = BTreeMap<u32, String>;

/// Returns the names that `stacks` shows, of threads whose name is not the kernel's.
fn shown_by_stacks(pid: &str) -> Names {
    let shown = traceprof(&["stacks", "--json", "--pid", pid]).output().expect("stacks");
    let shown: Value = serde_json::from_slice(&shown.stdout).expect("JSON");
    let threads = shown["threads"].as_array().expect("threads").iter();
    let named = threads.filter(|it| it["name"] != it["comm"]);
    let name = |it: &Value| {
        (it["tid"].as_u64().expect("an id") as u32, it["name"].as_str().expect("a name").to_owned())
    };
    named.map(name).collect()
}

/// Returns the names that py-spy shows.
fn shown_by_py_spy(pid: &str) -> Option<Names> {
    let mut command = Command::new(witness::command()?);
    let shown = command.args(["dump", "--json", "--pid", pid]).output().expect("py-spy");
    let shown: Value = serde_json::from_slice(&shown.stdout).ok()?;
    let name = |it: &Value| {
        Some((it["os_thread_id"].as_u64()? as u32, it["thread_name"].as_str()?.to_owned()))
    };
    Some(shown.as_array()?.iter().filter_map(name).collect())
}

/// Checks names against those that the program tells. The kernel's name may be the same, from 3.14
/// on, and then is no other name.
fn check(python: &Python, what: &str, found: &Names, told: &Names) {
    for (tid, name) in told {
        let is_kernels = python.minor >= 14 && name.len() <= 15;
        let found = found.get(tid).or_else(|| is_kernels.then_some(name));
        assert_eq!(found, Some(name), "{python}: thread {tid} in {what}");
    }
    let others: Vec<_> = found.iter().filter(|(tid, _)| !told.contains_key(tid)).collect();
    assert!(others.is_empty(), "{python}: {what} names threads without a name: {others:?}");
}

#[test]
fn threads_have_the_names_that_the_program_gives_them() {
    needs_recording!();
    let pythons = some_pythons(37);
    if pythons.is_empty() {
        skip!("python 3.8 or later: not installed");
    }
    let _machine = together();
    for python in pythons {
        let mut target = Target::spawn(python.script("thread_names.py"));
        let pid = target.pid().to_string();
        let outcome = record(target.pid(), 3, &["--freq", "499"]);
        let facts = target.facts();
        let told: Names = serde_json::from_str(&facts["names"]).expect("names");
        let nameless: BTreeSet<u32> = serde_json::from_str(&facts["nameless"]).expect("ids");
        assert_eq!((told.len(), nameless.len()), (112, 10), "{python}");
        let loaded = load(&outcome.trace.path()).expect("a trace");
        let threads = loaded.threads.iter().map(|it| it.thread());
        let named = threads.clone().filter_map(|it| Some((it.tid, it.runtime_name.clone()?)));
        check(&python, "the trace", &named.collect(), &told);
        // The kernel's name is there as well.
        // From 3.14 on, it may end in the middle of a character.
        let kernels = threads.clone().map(|it| it.name.replace('\u{fffd}', "?"));
        let odd: Vec<_> = kernels.filter(|it| it.is_empty() || it.len() > 15).collect();
        assert!(odd.is_empty(), "{python}: {odd:?}");
        check(&python, "stacks", &shown_by_stacks(&pid), &told);
        let view = outcome.trace.view(&["print", "--by", "thread", "--top", "999"]);
        assert!(view.contains(" \"worker-"), "{python}: {view}");
        // A thread is selected by either name.
        for pattern in ["pool_*", "python*"] {
            let some = outcome.trace.view(&["print", "--tree", "--thread", pattern]);
            assert!(some.contains("\"pool_1\"") || pattern != "pool_*", "{python}: {some}");
        }
        match shown_by_py_spy(&pid) {
            Some(theirs) => {
                // In 3.13 it does not find the name of an object of a class with slots, and in
                // 3.14 it may find none.
                let is_found = |tid: &u32| theirs.get(tid).is_some_and(|name| !name.is_empty());
                let both = theirs.iter().filter(|(tid, _)| !nameless.contains(tid));
                let both = both.filter(|(tid, _)| is_found(tid));
                let both: Names = both.map(|(tid, name)| (*tid, name.clone())).collect();
                let told: Names = told.into_iter().filter(|(tid, _)| is_found(tid)).collect();
                assert_eq!(both, told, "{python}: py-spy");
                assert!(both.len() >= 111 || python.minor >= 14, "{python}: {}", both.len());
                eprintln!("{python}: {} names as py-spy and the program", both.len());
            }
            None => eprintln!("{python}: {} names, and no py-spy", told.len()),
        }
        target.goes_on_and_ends_by_itself();
    }
}
