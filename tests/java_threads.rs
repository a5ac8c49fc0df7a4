//! Threads of Java machines: their names in recordings, what they wait for, and what the threads of
//! the compilers compile, against the programs and the machines' own tools.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use traceprof::trace::{LoadedTrace, RunState, TagKey, TextId, VIRTUAL_THREAD_TAG, load};
use traceprof_abi::storage::log::flags::WALL;
use traceprof_abi::unwind::EndReason;

use crate::common::{
    Java, Target, Trace, announce_skip, has_command, needs_recording, record, record_cpu,
    scratch_dir, skip, together, traceprof, wait_until,
};

/// Names by thread id.
type Names = BTreeMap<u32, String>;

/// Returns the threads of a process as `stacks --json` prints them.
fn shown_by_stacks(pid: i32) -> Vec<Value> {
    let output = traceprof(&["stacks", "--json", "--pid", &pid.to_string()]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let all: Value = serde_json::from_slice(&output.stdout).unwrap();
    all["threads"].as_array().unwrap().clone()
}

/// Returns the names that the program tells, of threads that stay.
fn told(target: &Target) -> Names {
    let facts = target.facts().iter();
    let threads = facts.filter_map(|(key, name)| Some((key.strip_prefix("thread-")?, name)));
    threads.map(|(tid, name)| (tid.parse().unwrap(), name.clone())).collect()
}

/// Returns the names that `jstack` prints. Says loudly if it is not here, and fails where nothing
/// may be skipped.
fn shown_by_jstack(pid: i32) -> Option<Names> {
    if !has_command("jstack") {
        announce_skip("jstack: not installed");
        return None;
    }
    let output = Command::new("jstack").arg(pid.to_string()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let name = |line: &str| {
        let (name, rest) = line.strip_prefix('"')?.rsplit_once('"')?;
        let rest = rest.strip_prefix(" #")?;
        let number = match rest.split_once("nid=") {
            Some((_, number)) => number.split(' ').next()?,
            None => rest.split_once('[')?.1.split_once(']')?.0,
        };
        let tid = match number.strip_prefix("0x") {
            Some(digits) => u32::from_str_radix(digits, 16).ok()?,
            None => number.parse().ok()?,
        };
        Some((tid, name.to_owned()))
    };
    Some(text.lines().filter_map(name).collect())
}

/// Returns names without the characters that `jstack` prints as something else.
fn without_wide(names: &Names) -> Names {
    let is_narrow = |it: &char| (*it as u32) < 0x1_0000 && *it != '\u{fffd}';
    names.iter().map(|(tid, name)| (*tid, name.chars().filter(is_narrow).collect())).collect()
}

/// Checks that each thread that stays has its name.
fn check(what: &str, found: &Names, told: &Names) {
    for (tid, name) in told {
        assert_eq!(found.get(tid), Some(name), "thread {tid} in {what}");
    }
}

/// Records a program that gives its threads names, one of them meanwhile, and starts others.
fn check_names(version: u32, idle: u32) {
    needs_recording!();
    let Some(java) = Java::of(version) else { skip!("java {version}: not installed") };
    let _machine = together();
    let mut command = java.runs("Named", &[]);
    command.arg(idle.to_string());
    let mut target = Target::spawn(command);
    // The names of many threads are read one after the other, at a bounded cost.
    let outcome = record(target.pid(), 5 + idle / 150, &["--freq", "499"]);
    let told = told(&target);
    assert_eq!(told.len() as u32, idle + 6);
    let loaded = load(&outcome.trace.path()).expect("a trace");
    let threads = || loaded.threads.iter().map(|it| it.thread());
    let named = |it: &traceprof::trace::Thread| Some((it.tid, it.runtime_name.clone()?));
    let found: Names = threads().filter_map(named).collect();
    check("the trace", &found, &told);
    if let Some(shown) = shown_by_jstack(target.pid()) {
        check("jstack", &without_wide(&shown), &without_wide(&told));
    }
    // The kernel's name is there as well.
    assert!(threads().all(|it| !it.name.is_empty() && it.name.len() <= 15));
    check_ended(&loaded, &told);
    let stacks = shown_by_stacks(target.pid());
    let name =
        |it: &Value| (it["tid"].as_u64().unwrap() as u32, it["name"].as_str().unwrap().to_owned());
    check("stacks", &stacks.iter().map(name).collect(), &told);
    // A thread is selected by either name.
    for pattern in ["after it was renamed", "a name that is *", "a name that is "] {
        let some = outcome.trace.view(&["print", "--tree", "--thread", pattern]);
        let name = if pattern.starts_with("after") { pattern } else { "a name that is far longer" };
        assert!(some.contains(name), "{pattern}: {some}");
    }
    eprintln!("Java {version}: {} names as the program tells", told.len());
    target.goes_on_and_ends_by_itself();
}

/// Checks the names of threads that ended during the recording.
fn check_ended(loaded: &LoadedTrace, told: &Names) {
    let threads = loaded.threads.iter().map(|it| it.thread());
    let ended = threads.filter(|it| it.name.starts_with("a thread that e"));
    let names: Vec<Option<&str>> = ended.map(|it| it.runtime_name.as_deref()).collect();
    let whole: Vec<&str> = names.iter().copied().flatten().collect();
    let number =
        |name: &str| name.strip_prefix("a thread that ends with the number ")?.parse::<u32>().ok();
    let numbers: HashSet<u32> = whole.iter().filter_map(|name| number(name)).collect();
    // The first and the last one may have had too little time to be seen. Beside thousands of
    // threads, the turn of one may come too late.
    let is_enough = numbers.len() >= 4 && numbers.len() + 2 >= names.len();
    assert!(is_enough || told.len() > 1000, "{names:?}");
    assert_eq!(numbers.len(), whole.len(), "{whole:?} beside {} others", told.len());
}

#[test]
fn threads_of_8_have_their_names() {
    check_names(8, 40);
}

#[test]
fn threads_of_11_have_their_names() {
    check_names(11, 40);
}

#[test]
fn threads_of_17_have_their_names() {
    check_names(17, 40);
}

#[test]
fn threads_of_21_have_their_names() {
    check_names(21, 40);
}

#[test]
fn threads_of_25_have_their_names() {
    check_names(25, 40);
}

#[test]
fn two_thousand_threads_of_11_have_their_names() {
    check_names(11, 2000);
}

#[test]
fn two_thousand_threads_of_17_have_their_names() {
    check_names(17, 2000);
}

/// The largest number of bytes of the name of a virtual thread.
const NAME_MAX: usize = 128;
/// Classes whose functions begin and end to run a virtual thread.
const STEPS: [&str; 2] = ["java.lang.VirtualThread", "jdk.internal.vm.Continuation"];

/// A sample of a thread that may carry virtual threads.
struct CarrierSample<'s> {
    /// The functions of the stack.
    names: &'s [&'s str],
    /// Whether they are all of it.
    is_whole: bool,
    /// The name of the virtual thread.
    text: Option<&'s str>,
}

/// Virtual threads that take turns on the same carriers, while objects move.
struct Carried {
    target: Target,
    trace: LoadedTrace,
    recording: Trace,
}

impl Carried {
    /// Records a machine with such a collector.
    fn of(java: &Java, collector: &str) -> Self {
        let target = Target::spawn(java.runs("Carried", &[collector]));
        let options = &["--freq", "997"];
        let recording = record_cpu(target.pid(), Duration::from_secs(3), options).trace;
        let trace = load(&recording.path()).expect("a trace");
        Self { target, trace, recording }
    }

    /// Returns the name of the virtual thread that runs this method.
    fn name(&self, method: &str) -> String {
        match method {
            "latin" => "of größe".to_owned(),
            "wide" => "世界 😀".to_owned(),
            "long" => format!("{}…", &"name ".repeat(50)[..NAME_MAX]),
            _ => format!("virtual #{}", self.target.facts()["number-carried_nameless"]),
        }
    }

    /// Calls `each` for each sample.
    fn for_each_sample(&self, each: &mut dyn FnMut(CarrierSample<'_>)) {
        let loaded = &self.trace;
        let keys = TagKey::of(&loaded.metadata);
        let tag = keys.iter().position(|key| key.name == VIRTUAL_THREAD_TAG);
        for thread in &loaded.threads {
            thread.for_each_sample(&mut |sample, stack| {
                let names = stack.iter().map(|id| &loaded.locations[id.0 as usize]);
                let names = names.map(|it| loaded.methods[it.method.0 as usize].name.as_str());
                let text = tag.and_then(|tag| sample.tags[tag].checked_sub(1));
                let text = text.map(|text| &*loaded.texts[&TextId(text)]);
                let is_whole = sample.end_reason == EndReason::Root as u16;
                each(CarrierSample { names: &names.collect::<Vec<_>>(), is_whole, text });
            });
        }
    }
}

/// Returns which virtual thread of `Carried.java` runs, by the functions of a stack.
fn carried<'n>(names: &[&'n str]) -> Option<&'n str> {
    names.iter().find_map(|name| name.strip_prefix("Carried.carried_"))
}

fn check_virtual_threads(version: u32, collectors: [&str; 2]) {
    needs_recording!();
    let Some(java) = Java::of(version) else { skip!("java {version}: not installed") };
    let _machine = together();
    for collector in collectors {
        let mut program = Carried::of(&java, collector);
        let methods = ["latin", "wide", "long", "nameless"];
        let expected = BTreeMap::from(methods.map(|method| (method, program.name(method))));
        let (mut named, mut without, mut others) = (BTreeMap::new(), 0, 0);
        let mut wrong = Vec::new();
        program.for_each_sample(&mut |CarrierSample { names, is_whole, text }| match (
            carried(names),
            text,
        ) {
            (Some(method), Some(text)) if text == expected[method] => {
                *named.entry(method.to_owned()).or_insert(0u64) += 1;
            }
            (Some(_), None) => without += 1,
            (None, None) => others += u64::from(names.contains(&"Carried.collect")),
            // A carrier that begins or ends to run one, or the rest of the stack is not known.
            (None, Some(text))
                if expected.values().any(|name| name == text)
                    && (!is_whole
                        || names.iter().any(|it| STEPS.iter().any(|step| it.contains(step)))) => {}
            (_, text) => wrong.push((names.join(";"), text.map(str::to_owned))),
        });
        assert!(wrong.is_empty(), "Java {version} {collector}: {wrong:#?}");
        let count: u64 = named.values().sum();
        eprintln!("Java {version} {collector}: {named:?}, {without} without, {others} others");
        assert!(named.len() == 4 && named.values().all(|count| *count > 50), "{named:?}");
        assert!(others > 0, "a thread that carries none");
        // Those in native code and in the kernel.
        assert!(without * 4 < count, "Java {version}: {without} beside {named:?}");
        let grouped = program.recording.view(&["print", "--by", "task"]);
        assert!(grouped.contains(&expected["nameless"]), "{grouped}");
        program.target.goes_on_and_ends_by_itself();
    }
}

#[test]
fn virtual_threads_of_21_have_their_names() {
    check_virtual_threads(21, ["-XX:+UseG1GC", "-XX:+UseParallelGC"]);
}

#[test]
fn virtual_threads_of_25_have_their_names() {
    check_virtual_threads(25, ["-XX:+UseG1GC", "-XX:+UseSerialGC"]);
}

#[test]
fn virtual_threads_whose_objects_move_as_they_run_have_no_names() {
    needs_recording!();
    let Some(java) = Java::of(25) else { skip!("java 25: not installed") };
    let _machine = together();
    let mut program = Carried::of(&java, "-XX:+UseZGC");
    let (mut samples, mut named) = (0, 0);
    program.for_each_sample(&mut |CarrierSample { names, text, .. }| {
        samples += u64::from(carried(names).is_some());
        named += u64::from(text.is_some());
    });
    assert!(samples > 50 && named == 0, "{named} of {samples}");
    program.target.goes_on_and_ends_by_itself();
}

/// What the threads of `Machine.java` wait for.
const WAITS: [(&str, Option<&str>); 8] = [
    ("blocked", Some("a monitor of Machine$Lock")),
    ("waiting", Some("Object.wait of Machine$Lock")),
    ("parked", Some("LockSupport.park")),
    ("parked for a lock", Some("LockSupport.park for Machine$Lock")),
    ("sleeping", Some("Thread.sleep")),
    ("the holder of a lock", Some("Thread.sleep")),
    ("Signal Dispatcher", Some("the Java machine")),
    ("reading", None),
];

fn check_waits(version: u32) {
    needs_recording!();
    let Some(java) = Java::of(version) else { skip!("java {version}: not installed") };
    let _machine = together();
    let mut command = java.runs("Machine", &[]);
    command.arg("100");
    let mut target = Target::spawn(command);
    let outcome = record(target.pid(), 2, &["--mode", "wall"]);
    let loaded = load(&outcome.trace.path()).expect("a trace");
    let texts = ["a monitor", "Object.wait", "LockSupport", "Thread.sleep", "the Java machine"];
    let is_java = |text: &str| texts.iter().any(|known| text.starts_with(known));
    let shown = |stacks: &[Value], name: &str| {
        let named = |it: &&Value| it["name"] == name;
        let shown = stacks.iter().find(named).unwrap_or_else(|| panic!("{name}"));
        shown["call"]["told"][0].as_str().filter(|it| is_java(it)).map(str::to_owned)
    };
    // On a busy machine a thread may be on its way back into its call.
    let mut looks = (0..5).map(|_| shown_by_stacks(target.pid())).peekable();
    for (name, expected) in WAITS {
        let is_shown = |stacks: &Vec<Value>| shown(stacks, name).as_deref() == expected;
        while looks.peek().is_some_and(|stacks| !is_shown(stacks)) {
            let wrong = looks.next().and_then(|stacks| shown(&stacks, name));
            assert_eq!(wrong, None, "Java {version}: {name} in stacks");
        }
        assert!(looks.peek().is_some(), "Java {version}: {name} in stacks");
        let recorded = waits(&loaded, name, is_java);
        let expected: HashSet<Option<&str>> = HashSet::from([expected]);
        assert_eq!(recorded, expected, "Java {version}: {name}\n{}", outcome.text());
    }
    let tree = outcome.trace.view(&["print", "--idle", "--thread", "blocked"]);
    assert!(tree.contains("[sleeping in futex on a monitor of Machine$Lock]"), "{tree}");
    target.goes_on_and_ends_by_itself();
}

/// Returns what a thread waited for in Java while it slept.
fn waits<'t>(
    loaded: &'t LoadedTrace,
    name: &str,
    is_java: impl Fn(&str) -> bool,
) -> HashSet<Option<&'t str>> {
    let mut threads = loaded.threads.iter();
    let found = threads.find(|it| it.thread().runtime_name.as_deref() == Some(name));
    let thread = found.unwrap_or_else(|| panic!("{name}"));
    let mut found = HashSet::new();
    thread.for_each_sample(&mut |sample, _| {
        if sample.flags & WALL != 0 && sample.state == RunState::Sleeping as u8 {
            let on = sample.waits_on.and_then(|text| loaded.texts.get(&text));
            found.insert(on.map(|text| &**text).filter(|text| is_java(text)));
        }
    });
    found
}

#[test]
fn waits_of_8_are_told_in_the_terms_of_java() {
    check_waits(8);
}

#[test]
fn waits_of_11_are_told_in_the_terms_of_java() {
    check_waits(11);
}

#[test]
fn waits_of_17_are_told_in_the_terms_of_java() {
    check_waits(17);
}

#[test]
fn waits_of_21_are_told_in_the_terms_of_java() {
    check_waits(21);
}

#[test]
fn waits_of_25_are_told_in_the_terms_of_java() {
    check_waits(25);
}

/// The machine prints each method that it begins to compile.
#[test]
fn threads_of_the_compilers_tell_what_they_compile() {
    let machines = Java::some(42);
    if machines.is_empty() {
        skip!("java: not installed");
    }
    for java in machines {
        let _machine = together();
        let scratch = scratch_dir();
        let log = scratch.path().join("compilations");
        let options = ["-XX:+PrintCompilation", "-XX:+DisplayVMOutputToStderr"];
        let mut command = java.runs("Compiles", &options);
        command.stderr(fs::File::create(&log).unwrap());
        let mut target = Target::spawn(command);
        let mut told = HashSet::new();
        let has_all = wait_until(Duration::from_secs(120), || {
            for thread in shown_by_stacks(target.pid()) {
                let name = thread["name"].as_str().unwrap();
                let Some(method) = thread["compiles"].as_str() else { continue };
                assert!(name.contains(" CompilerThread"), "{name} compiles {method}");
                told.insert(method.to_owned());
            }
            told.contains("Compiles$Work.hot")
        });
        assert!(has_all, "Java {}: {told:?}", java.version);
        let printed = fs::read_to_string(&log).unwrap();
        for method in &told {
            let printed = printed.contains(&format!(" {} ", printed_name(method)));
            assert!(printed, "Java {}: {method}", java.version);
        }
        eprintln!("Java {}: {told:?}", java.version);
        target.goes_on_and_ends_by_itself();
    }
}

/// Returns the name of a method as a machine prints it.
fn printed_name(method: &str) -> String {
    let (class, name) = method.rsplit_once('.').unwrap();
    format!("{class}::{name}")
}
