//! Threads, compared with what `jstack` prints.

use std::collections::HashMap;

use super::machines::{JavaProgram, machines};
use crate::runtime::java::{JavaState, JavaThread, RunningCode};

/// A thread as `jstack` prints it.
#[derive(Debug, PartialEq, Eq)]
struct Printed {
    name: String,
    state: Option<String>,
}

fn printed(text: &str) -> HashMap<u32, Printed> {
    let mut found = HashMap::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let Some((name, rest)) = line.strip_prefix('"').and_then(|it| it.rsplit_once('"')) else {
            continue;
        };
        // Threads without a number are no Java threads.
        let Some(rest) = rest.strip_prefix(" #") else { continue };
        let nid = rest.split_once("nid=").map(|(_, nid)| nid.split(' ').next().unwrap());
        let bracketed = || rest.split_once('[')?.1.split_once(']').map(|(tid, _)| tid);
        let number = nid.or_else(bracketed).unwrap();
        let tid = match number.strip_prefix("0x") {
            Some(digits) => u32::from_str_radix(digits, 16).unwrap(),
            None => number.parse().unwrap(),
        };
        let state = lines.peek().and_then(|it| it.trim().strip_prefix("java.lang.Thread.State: "));
        found.insert(tid, Printed { name: name.to_owned(), state: state.map(str::to_owned) });
    }
    found
}

/// Returns the state as `jstack` prints it.
fn state_text(state: JavaState) -> &'static [&'static str] {
    match state {
        JavaState::New => &["NEW"],
        JavaState::Runnable => &["RUNNABLE"],
        JavaState::Blocked => &["BLOCKED (on object monitor)"],
        JavaState::InObjectWait => {
            &["WAITING (on object monitor)", "TIMED_WAITING (on object monitor)"]
        }
        JavaState::Parked => &["WAITING (parking)", "TIMED_WAITING (parking)"],
        JavaState::Sleeping => &["TIMED_WAITING (sleeping)"],
        JavaState::Terminated => &["TERMINATED"],
    }
}

/// Returns a name without the characters that `jstack` prints as something else.
fn common(name: &str) -> String {
    name.chars().filter(|it| (*it as u32) < 0x1_0000 && *it != '\u{fffd}').collect()
}

fn check(program: &JavaProgram, version: u8) -> HashMap<String, JavaThread> {
    let (machine, ..) = program.machine();
    let text = program.asked("jstack", &[]);
    let memory = program.memory();
    let ours = machine.now(&memory).threads().unwrap();
    let theirs = printed(&text);
    let mut compared = 0;
    for thread in &ours {
        let Some(printed) = theirs.get(&thread.inner_tid) else { continue };
        let name = thread.name.as_deref().unwrap();
        assert_eq!(common(name), common(&printed.name), "Java {version}");
        let expected = state_text(thread.activity.state.unwrap());
        if let Some(state) = &printed.state {
            assert!(expected.contains(&state.as_str()), "Java {version}: {thread:?} {printed:?}");
        }
        compared += 1;
    }
    // The thread that answered may have begun or ended meanwhile, and a pool's.
    assert!(compared >= 12 && compared + 2 >= theirs.len(), "{compared} of {}", theirs.len());
    ours.into_iter().filter_map(|it| Some((it.name.clone()?, it))).collect()
}

fn check_all(options: impl Fn(u8) -> Option<Vec<&'static str>>) {
    for (version, launcher) in machines() {
        let Some(options) = options(version) else { continue };
        let program = JavaProgram::start(&launcher, &options, 100);
        let threads = check(&program, version);
        let worker = "the worker of größe 世界 😀 with a long name";
        let waits = |name: &str| threads[name].activity.waits_on().unwrap_or_default();
        assert_eq!(waits(worker), "LockSupport.park");
        assert_eq!(waits("blocked"), "a monitor of Machine$Lock");
        assert_eq!(waits("waiting"), "Object.wait of Machine$Lock");
        assert_eq!(waits("parked"), "LockSupport.park");
        assert_eq!(waits("parked for a lock"), "LockSupport.park for Machine$Lock");
        assert_eq!(waits("sleeping"), "Thread.sleep");
        assert_eq!(waits("Signal Dispatcher"), "the Java machine");
        assert_eq!(threads["reading"].activity.running, Some(RunningCode::Native));
        assert_eq!(threads["reading"].activity.waits_on(), None);
        assert_eq!(threads[""].activity.state, Some(JavaState::Sleeping));
        let mounted: Vec<&str> =
            threads.values().filter_map(|it| it.virtual_thread.as_deref()).collect();
        let expected: &[&str] = if version > 17 { &["virtual worker"] } else { &[] };
        assert_eq!(mounted, expected, "Java {version}");
    }
}

#[test]
fn threads_are_those_that_jstack_prints() {
    check_all(|_| Some(vec![]));
}

/// Options that change how objects are stored.
#[test]
fn names_are_read_however_objects_are_stored() {
    check_all(|_| Some(vec!["-XX:-UseCompressedOops"]));
    check_all(|version| {
        (version < 25).then(|| vec!["-XX:-UseCompressedOops", "-XX:-UseCompressedClassPointers"])
    });
    check_all(|version| (version >= 17).then(|| vec!["-XX:+UseZGC"]));
    check_all(|version| (version == 21).then(|| vec!["-XX:+UseZGC", "-XX:+ZGenerational"]));
    check_all(|version| (version == 25).then(|| vec!["-XX:+UseCompactObjectHeaders"]));
    check_all(|_| Some(vec!["-XX:+UseParallelGC"]));
}
