//! PHP of all versions that are here: callers, lines and names of functions, against what the
//! programs say of themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use traceprof::trace::{FrameKind, LazyTrace, LocationId, Objects, Window};

use crate::common::{Outcome, Php, Target, needs_recording, record_cpu, skip, together};

/// Options of a recording whose samples all have the functions.
const OPTIONS: [&str; 3] = ["--freq", "1999", "--no-kernel"];

/// A program in which each function whose name begins with `c_` has one caller.
const SINGLE: &str = include_str!("targets/php/single.php");

/// Returns where each function of `single.php` is called: its caller, and the lines of the calls.
/// `c_deep` has two callers, one of which is itself.
fn calls() -> BTreeMap<&'static str, Vec<(&'static str, u32)>> {
    let mut calls = BTreeMap::<&str, Vec<_>>::new();
    let mut caller = "";
    for (number, line) in (1..).zip(SINGLE.lines()) {
        if let Some((_, definition)) = line.split_once("function c_") {
            caller = definition.split_once('(').expect("parameters").0;
        }
        if let Some((_, called)) = line.split_once("// calls c_") {
            let caller = if line.contains("while") || caller != "run" { caller } else { "run" };
            let caller = if called == "run" { "{main}" } else { caller };
            calls.entry(called).or_default().push((caller, number));
        }
    }
    calls
}

/// A frame of a stack.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Frame {
    name: String,
    file: String,
    line: u32,
    kind: FrameKind,
}

/// What the objects of a trace say of a location.
fn frame(objects: &Objects, id: LocationId) -> Frame {
    let location = &objects.locations[id.0 as usize];
    let method = &objects.methods[location.method.0 as usize];
    let file = location.file.clone().unwrap_or_default();
    Frame { name: method.name.clone(), file, line: location.line, kind: location.kind }
}

/// Calls a function with the frames of PHP of each stack, root first.
fn for_each_stack(outcome: &Outcome, mut check: impl FnMut(&[Frame])) {
    let trace = LazyTrace::open(&outcome.trace.path()).expect("a trace");
    let objects = trace.load_objects().expect("objects");
    let mut pass = |_, _: &_, stack: &[LocationId]| {
        let frames = stack.iter().map(|id| frame(&objects, *id));
        check(&frames.filter(|it| it.kind == FrameKind::Php).collect::<Vec<_>>());
    };
    trace.for_each_sample(&Window::default(), &mut pass).expect("samples");
}

/// Returns the part of a name behind the class and the namespace.
fn own_name(name: &str) -> Option<&str> {
    name.rsplit([':', '\\']).next()?.strip_prefix("c_")
}

#[derive(Debug, Default)]
struct Seen {
    /// Number of calls between functions of the program.
    calls: u64,
    /// Number of innermost frames, and of those with a line.
    leaves: u64,
    with_line: u64,
    functions: BTreeSet<String>,
}

/// Checks that each function has its caller, at the line of the call, in all samples.
fn check_callers(label: &str, outcome: &Outcome) -> Seen {
    let expected = calls();
    let lines: Vec<&str> = SINGLE.lines().collect();
    let (mut seen, mut wrong) = (Seen::default(), BTreeMap::<String, u64>::new());
    for_each_stack(outcome, |stack| {
        let mut caller: Option<(&str, u32)> = None;
        for it in stack {
            if it.name.ends_with("gone]") {
                caller = Some(("?", 0));
            }
            let is_main = it.name == "{main}" && it.file.ends_with("single.php");
            let name = if is_main { Some("{main}") } else { own_name(&it.name) };
            let Some(name) = name else { continue };
            if let Some((by, line)) = caller.filter(|(by, _)| *by != "?") {
                seen.calls += 1;
                let known = expected.get(name).map_or(&[][..], Vec::as_slice);
                if !known.contains(&(by, line)) {
                    *wrong.entry(format!("{by}:{line} calls {name}")).or_default() += 1;
                }
            } else if caller.is_none() && !is_main {
                *wrong.entry(format!("nothing calls {name}")).or_default() += 1;
            }
            caller = Some((name, it.line));
            seen.functions.insert(name.to_owned());
        }
        let Some(leaf) = stack.last().filter(|it| it.file.ends_with("single.php")) else { return };
        seen.leaves += 1;
        seen.with_line += u64::from(leaf.line > 0);
        if leaf.line > 0
            && let Some(name) = own_name(&leaf.name)
        {
            let before = &lines[..leaf.line as usize];
            let definition = before.iter().rev().find_map(|line| line.split_once("function c_"));
            let is_it = definition.is_some_and(|(_, it)| it.starts_with(&format!("{name}(")));
            if !is_it {
                *wrong.entry(format!("{name} at {}", leaf.line)).or_default() += 1;
            }
        }
    });
    assert!(wrong.is_empty(), "{label}: {wrong:#?}\n{seen:?}\n{}", outcome.text());
    seen
}

/// Records a program in which each function has one caller.
fn callers_are_right(minor: u32, options: &[&str]) {
    needs_recording!();
    let Some(php) = Php::of(minor) else {
        skip!("php 8.{minor}: not installed");
    };
    let _machine = together();
    let target = Target::spawn(php.runs("single.php", options));
    let outcome = record_cpu(target.pid(), Duration::from_secs(5), &OPTIONS);
    let label = format!("PHP 8.{minor} {options:?}");
    let seen = check_callers(&label, &outcome);
    eprintln!("{label}: {seen:?}\n{}", outcome.text());
    let all = calls();
    let missing: Vec<_> = all.keys().filter(|name| !seen.functions.contains(**name)).collect();
    assert!(missing.is_empty(), "{label}: no samples in {missing:?}");
    assert!(seen.calls > 20_000, "{label}: {seen:?}");
    let [samples, named] =
        ["samples.php", "samples_named.php"].map(|key| outcome.trace.number(key));
    assert_eq!(samples, named, "{label}: all have names\n{}", outcome.text());
}

#[test]
fn callers_in_8_2_are_right() {
    callers_are_right(2, &[]);
}

#[test]
fn callers_in_8_4_are_right() {
    callers_are_right(4, &[]);
}
