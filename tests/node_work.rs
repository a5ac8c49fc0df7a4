//! Node.js at work: servers, worker threads, threads that sleep, shares of functions, and garbage
//! where the engine has its objects.

use std::collections::BTreeMap;
use std::time::Duration;

use nix::time::ClockId;
use serde_json::Value;

use crate::common::{
    Node, Outcome, Target, needs_recording, program, record_and_end, record_cpu,
    record_cpu_and_end, skip, together, traceprof,
};
use crate::node::{OPTIONS, UNNAMED, assert_named};

/// As [`UNNAMED`], where each request drops a function: its code may be freed before it is read.
const UNNAMED_OF_DROPPED: f64 = 100.0;

fn a_server_has_names(version: u32) {
    needs_recording!();
    let Some(node) = Node::of(version) else {
        skip!("node {version}: not installed");
    };
    let _machine = together();
    let mut target = Target::spawn(node.runs("server.js", &[]));
    let outcome = record_cpu(target.pid(), Duration::from_secs(4), &OPTIONS);
    let folded = outcome.trace.folded();
    let (mut rows, mut templates, mut wrong) = (0, 0, Vec::new());
    for (stack, count) in folded.stacks() {
        let at = |name: &str| stack.iter().position(|frame| frame == name);
        if let Some(inner) = at("renderRow") {
            rows += count;
            if at("renderRows").is_none_or(|outer| outer > inner) {
                wrong.push(stack.join(";"));
            }
        }
        let Some(inner) = stack.iter().position(|it| it.starts_with("template_")) else { continue };
        templates += count;
        if stack[inner - 1] != "answer" {
            wrong.push(stack.join(";"));
        }
    }
    eprintln!("Node.js {version}: {rows} rows, {templates} templates\n{}", outcome.text());
    assert!(wrong.is_empty(), "Node.js {version}: {wrong:#?}");
    assert!(rows > 20 && templates > 200, "Node.js {version}: {rows}, {templates}");
    assert_named(&node, &outcome, UNNAMED_OF_DROPPED);
    target.goes_on_and_ends_by_itself();
    assert!(target.fact("requests") > 100);
}

#[test]
fn a_server_on_18_has_names() {
    a_server_has_names(18);
}

#[test]
fn a_server_on_20_has_names() {
    a_server_has_names(20);
}

#[test]
fn a_server_on_22_has_names() {
    a_server_has_names(22);
}

#[test]
fn a_server_on_24_has_names() {
    a_server_has_names(24);
}

/// The functions of `shares.js`, and their parts of the work in percent.
const PARTS: [(&str, f64); 4] =
    [("s_one", 10.0), ("s_two", 20.0), ("s_three", 30.0), ("s_four", 40.0)];
/// Largest difference of two shares in percentage points, beside the error of sampling.
const POINTS: f64 = 2.0;

/// Returns the largest difference of a share that a number of samples may have.
fn points_at(percent: f64, samples: u64) -> f64 {
    POINTS + 3.0 * (percent * (100.0 - percent) / samples as f64).sqrt()
}

/// Returns the shares in percent of the functions by these weights, and the sum of the weights.
fn shares(weights: &BTreeMap<String, u64>) -> (BTreeMap<&str, f64>, u64) {
    let total: u64 = weights.values().sum();
    let share = |weight: &u64| 100.0 * *weight as f64 / total.max(1) as f64;
    (weights.iter().map(|(name, weight)| (name.as_str(), share(weight))).collect(), total)
}

/// Returns the weights of the innermost functions of `shares.js`.
fn innermost(outcome: &Outcome) -> BTreeMap<String, u64> {
    let mut weights = BTreeMap::new();
    for (stack, count) in outcome.trace.folded().stacks() {
        if let Some(name) = stack.iter().rev().find(|frame| frame.starts_with("s_")) {
            *weights.entry(name.clone()).or_default() += count;
        }
    }
    weights
}

/// A profile that Node.js writes of itself.
struct OwnProfile(Value);

impl OwnProfile {
    /// Returns the number of samples of the innermost functions of `shares.js` between two times of
    /// CLOCK_MONOTONIC in microseconds.
    fn innermost(&self, since_us: u64, until_us: u64) -> BTreeMap<String, u64> {
        let nodes = self.0["nodes"].as_array().unwrap();
        let number = |value: &Value| value.as_u64().unwrap();
        let names: BTreeMap<u64, &str> = nodes
            .iter()
            .map(|it| (number(&it["id"]), it["callFrame"]["functionName"].as_str().unwrap()))
            .collect();
        let children = |it: &Value| it["children"].as_array().cloned().unwrap_or_default();
        let parents: BTreeMap<u64, u64> = nodes
            .iter()
            .flat_map(|it| {
                let of_it = |child: Value| (number(&child), number(&it["id"]));
                children(it).into_iter().map(of_it)
            })
            .collect();
        let samples = self.0["samples"].as_array().unwrap().iter().map(number);
        let deltas = self.0["timeDeltas"].as_array().unwrap().iter();
        let mut time_us = self.0["startTime"].as_i64().unwrap();
        let mut weights = BTreeMap::new();
        for (node, delta) in samples.zip(deltas) {
            time_us += delta.as_i64().unwrap();
            if !(since_us..until_us).contains(&(time_us as u64)) {
                continue;
            }
            let mut stack = std::iter::successors(Some(node), |it| parents.get(it).copied());
            if let Some(node) = stack.find(|it| names[it].starts_with("s_")) {
                *weights.entry(names[&node].to_owned()).or_default() += 1;
            }
        }
        weights
    }
}

fn monotonic_us() -> u64 {
    let now: Duration = ClockId::CLOCK_MONOTONIC.now().unwrap().into();
    now.as_micros() as u64
}

/// Compares the shares of functions with their parts of the work, where they are inlined, and with
/// the engine's own profiler, where they are not: it does not resolve the innermost inlined function.
fn shares_are_those_of_its_own_profiler(version: u32) {
    needs_recording!();
    let Some(node) = Node::of(version) else {
        skip!("node {version}: not installed");
    };
    let _machine = together();
    let target = Target::spawn(node.runs("shares.js", &[]));
    let outcome = record_cpu(target.pid(), Duration::from_secs(3), &OPTIONS);
    let weights = innermost(&outcome);
    let (found, total) = shares(&weights);
    eprintln!("Node.js {version}, inlined: {found:?} of {total}\n{}", outcome.text());
    let annotated = outcome.trace.folded_with(&["--annotate"]);
    // Node.js 24 inlines few of them.
    let inlined = annotated.count_of("s_four_[i]");
    assert!(version >= 24 || inlined * 4 > total, "Node.js {version}: {inlined} of {total}");
    for (name, part) in PARTS {
        let share = found.get(name).copied().unwrap_or(0.0);
        let is_near = (share - part).abs() <= points_at(part, total);
        assert!(is_near, "Node.js {version}: {name} {share:.1} %, not {part} %");
    }
    drop(target);

    let folder = tempfile::tempdir().unwrap();
    let mut options = vec!["--no-turbo-inlining", "--cpu-prof", "--cpu-prof-interval=500"];
    let to = format!("--cpu-prof-dir={}", folder.path().display());
    options.push(&to);
    options.extend((version >= 22).then_some("--no-maglev-inlining"));
    let mut target = Target::spawn(node.runs("shares.js", &options));
    let since_us = monotonic_us();
    let outcome = record_cpu(target.pid(), Duration::from_secs(3), &OPTIONS);
    let until_us = monotonic_us();
    target.goes_on_and_ends_by_itself();
    let profile = std::fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap();
    let profile = std::fs::read(profile.path()).unwrap();
    let profile = OwnProfile(serde_json::from_slice(&profile).unwrap());
    let weights = profile.innermost(since_us, until_us);
    let (expected, of_them) = shares(&weights);
    let weights = innermost(&outcome);
    let (found, total) = shares(&weights);
    eprintln!("Node.js {version}: {found:?} of {total}, {expected:?} of {of_them}");
    for (name, part) in &expected {
        let share = found.get(name).copied().unwrap_or(0.0);
        let is_near = (share - part).abs() <= points_at(*part, total.min(of_them));
        assert!(is_near, "Node.js {version}: {name} {share:.1} %, not {part:.1} %");
    }
    assert!(expected.len() >= PARTS.len() && of_them > 500, "{expected:?} of {of_them}");
}

#[test]
fn shares_in_18_are_those_of_its_own_profiler() {
    shares_are_those_of_its_own_profiler(18);
}

#[test]
fn shares_in_20_are_those_of_its_own_profiler() {
    shares_are_those_of_its_own_profiler(20);
}

#[test]
fn shares_in_22_are_those_of_its_own_profiler() {
    shares_are_those_of_its_own_profiler(22);
}

#[test]
fn shares_in_24_are_those_of_its_own_profiler() {
    shares_are_those_of_its_own_profiler(24);
}

/// A thread of the process runs frames whose slots lead to anything.
fn garbage_is_harmless(version: u32) {
    needs_recording!();
    let Some(node) = Node::of(version) else {
        skip!("node {version}: not installed");
    };
    let _machine = together();
    let mut command = node.runs("single.js", &[]);
    command.env("LD_PRELOAD", program("posing_v8"));
    let mut target = Target::spawn(command);
    let outcome = record_cpu(target.pid(), Duration::from_secs(4), &OPTIONS);
    let stacks = traceprof(&["stacks", "--pid", &target.pid().to_string()]).output().unwrap();
    assert!(stacks.status.success(), "{}", String::from_utf8_lossy(&stacks.stderr));
    target.goes_on_and_ends_by_itself();
    let text = outcome.text();
    let refused = outcome.trace.number("managed_frames.foreign_object");
    eprintln!("Node.js {version}: {refused} frames refused\n{text}");
    assert!(refused > 100, "Node.js {version}: {refused}");
    let folded = outcome.trace.folded();
    // The functions of the program have their names still.
    assert!(folded.count_of("c_turn") > 100, "{text}");
    let gone = folded.count_containing(" gone]");
    assert_eq!(gone > 0, text.contains("without a name"), "each has its reason\n{text}");
}

#[test]
fn garbage_in_18_is_harmless() {
    garbage_is_harmless(18);
}

#[test]
fn garbage_in_20_is_harmless() {
    garbage_is_harmless(20);
}

#[test]
fn garbage_in_22_is_harmless() {
    garbage_is_harmless(22);
}

#[test]
fn garbage_in_24_is_harmless() {
    garbage_is_harmless(24);
}

#[test]
fn functions_of_workers_are_in_their_threads() {
    needs_recording!();
    let nodes = Node::some(61);
    if nodes.is_empty() {
        skip!("node: not installed");
    }
    for node in nodes {
        let _machine = together();
        let target = Target::spawn(node.runs("workers.js", &[]));
        let outcome = record_cpu(target.pid(), Duration::from_secs(3), &OPTIONS);
        assert_named(&node, &outcome, UNNAMED);
        let main = target.pid().to_string();
        let of_main = outcome.trace.folded_with(&["--thread", &main]);
        let counts = |name: &str| (of_main.count_of(name), outcome.trace.folded().count_of(name));
        let [main, first, second] = ["ofMain", "ofFirst", "ofSecond"].map(counts);
        let version = node.version;
        eprintln!("Node.js {version}: {main:?}, {first:?}, {second:?}\n{}", outcome.text());
        assert!(main.0 == main.1 && main.1 > 100, "Node.js {version}: {main:?}");
        assert!(first.0 == 0 && first.1 > 100, "Node.js {version}: {first:?}");
        assert!(second.0 == 0 && second.1 > 100, "Node.js {version}: {second:?}");
    }
}

#[test]
fn stacks_of_six_hundred_functions_are_whole() {
    needs_recording!();
    let nodes = Node::some(67);
    if nodes.is_empty() {
        skip!("node: not installed");
    }
    for node in nodes {
        let _machine = together();
        let target = Target::spawn(node.runs("deep.js", &[]));
        let outcome = record_cpu_and_end(target, Duration::from_secs(2), &OPTIONS);
        let (mut whole, mut all) = (0, 0);
        for (stack, count) in outcome.trace.folded().stacks() {
            if stack.iter().any(|frame| frame == "deepLeaf") {
                let calls = stack.iter().filter(|frame| *frame == "deep").count();
                whole += if calls == 600 { count } else { 0 };
                all += count;
            }
        }
        let (version, text) = (node.version, outcome.text());
        eprintln!("Node.js {version}: {whole} of {all}\n{text}");
        assert!(
            all > 500 && whole * 100 >= all * 99,
            "Node.js {version}: {whole} of {all}\n{text}"
        );
    }
}

#[test]
fn code_of_regular_expressions_has_a_name_and_its_caller() {
    needs_recording!();
    let nodes = Node::some(65);
    if nodes.is_empty() {
        skip!("node: not installed");
    }
    for node in nodes {
        let _machine = together();
        let target = Target::spawn(node.runs("regexp.js", &[]));
        let outcome = record_cpu_and_end(target, Duration::from_secs(2), &OPTIONS);
        let folded = outcome.trace.folded();
        let (version, text) = (node.version, outcome.text());
        let all = folded.count_of("(regular expression)");
        let called = folded.count_of_both("(regular expression)", "matching");
        eprintln!("Node.js {version}: {called} of {all}\n{text}");
        assert!(all == called && all > 500, "Node.js {version}: {called} of {all}\n{text}");
    }
}

/// Each engine has its functions where the one before had others, with the same numbers.
#[test]
fn workers_that_follow_each_other_have_functions_of_their_own() {
    needs_recording!();
    let nodes = Node::some(68);
    if nodes.is_empty() {
        skip!("node: not installed");
    }
    for node in nodes {
        let _machine = together();
        let target = Target::spawn(node.runs("passing_workers.js", &[]));
        let outcome = record_cpu_and_end(target, Duration::from_secs(4), &OPTIONS);
        let trace = traceprof::trace::load(&outcome.trace.path()).expect("a trace");
        let (mut named, mut mixed) = (0, Vec::new());
        for thread in &trace.threads {
            let mut functions = BTreeMap::<String, u64>::new();
            thread.for_each_sample(&mut |sample, stack| {
                for location in stack {
                    let method = trace.locations[location.0 as usize].method;
                    let name = &trace.methods[method.0 as usize].name;
                    if name.starts_with("passing_") {
                        *functions.entry(name.clone()).or_default() += u64::from(sample.weight);
                    }
                }
            });
            named += functions.values().sum::<u64>();
            mixed.extend((functions.len() > 1).then_some(functions));
        }
        let (version, text) = (node.version, outcome.text());
        eprintln!("Node.js {version}: {named} named\n{text}");
        assert!(mixed.is_empty(), "Node.js {version}: {mixed:?}\n{text}");
        assert!(named > 200, "Node.js {version}: {named}\n{text}");
    }
}

/// The functions of `held.js`, innermost first, with the lines that they call or wait in.
const CHAIN: [(&str, u64); 5] = [
    ("heldLeaf", 0),
    ("heldMethod", 13),
    ("heldCallback", 17),
    ("Builtins_ArrayMap", 0),
    ("heldRoot", 20),
];

#[test]
fn stacks_show_the_functions_of_threads_that_run_and_sleep() {
    let nodes = Node::some(62);
    if nodes.is_empty() {
        skip!("node: not installed");
    }
    for (node, how) in nodes.iter().flat_map(|node| [(node, "busy"), (node, "asleep")]) {
        let _machine = together();
        let mut command = node.runs("held.js", &[]);
        command.arg(how);
        let target = Target::spawn(command);
        let pid = target.pid().to_string();
        let output = traceprof(&["stacks", "--json", "--pid", &pid]).output().unwrap();
        let all: Value = serde_json::from_slice(&output.stdout).unwrap();
        let frames = all["threads"][0]["frames"].as_array().unwrap();
        let names: Vec<&str> = frames.iter().map(|it| it["function"].as_str().unwrap()).collect();
        let version = node.version;
        let at = names.iter().position(|name| *name == CHAIN[0].0);
        let at = at.unwrap_or_else(|| panic!("Node.js {version}, {how}: {names:?}"));
        for ((name, line), frame) in CHAIN.iter().zip(&frames[at..]) {
            assert_eq!(frame["function"], *name, "Node.js {version}, {how}: {names:?}");
            let found = frame["line"].as_u64().unwrap_or(0);
            assert!(*line == 0 || found == *line, "Node.js {version}, {how}: {frame}");
        }
        let kind = frames[at]["kind"].as_str().unwrap();
        assert!(kind.starts_with("javascript"), "Node.js {version}, {how}: {kind}");
    }
}

#[test]
fn sleeping_functions_have_their_wall_clock_time() {
    needs_recording!();
    let nodes = Node::some(63);
    if nodes.is_empty() {
        skip!("node: not installed");
    }
    for node in nodes {
        let _machine = together();
        let mut command = node.runs("held.js", &[]);
        command.arg("asleep");
        let target = Target::spawn(command);
        let pid = target.pid().to_string();
        let outcome = record_and_end(target, 2, &["--mode", "wall"]);
        // An attach wakes the thread, and then it may have to wait for a processor.
        let folded = outcome.trace.folded_with(&["--thread", &pid, "--state", "sleeping"]);
        let (version, text) = (node.version, outcome.text());
        let held = folded.percent_of("heldLeaf");
        eprintln!("Node.js {version}: {held} %\n{text}");
        assert!(held > 95.0, "Node.js {version}: {held} %\n{text}");
    }
}

#[test]
fn a_recording_may_demand_names() {
    needs_recording!();
    let nodes = Node::some(64);
    let Some(node) = nodes.first() else {
        skip!("node: not installed");
    };
    let _machine = together();
    let target = Target::spawn(node.runs("single.js", &[]));
    let pid = target.pid().to_string();
    let demand = ["record", "--pid", &pid, "--duration", "1", "--fail-under", "javascript=90"];
    let folder = tempfile::tempdir().unwrap();
    let output = traceprof(&demand).current_dir(folder.path()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("JavaScript"), "{text}");
    // The engine is the one whose samples all have the functions.
    assert!(text.contains("would show no JavaScript functions"), "{text}");
    drop(target);
    // Half of the samples have frames without a function.
    let mut command = node.runs("single.js", &[]);
    command.env("LD_PRELOAD", program("posing_v8"));
    let target = Target::spawn(command);
    let pid = target.pid().to_string();
    let demand = ["record", "--pid", &pid, "--duration", "2", "--fail-under", "javascript=90"];
    let folder = tempfile::tempdir().unwrap();
    let output = traceprof(&demand).current_dir(folder.path()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(5), "{text}");
}
