//! LuaJIT of all releases that are here: callers, lines and names of functions, against what the
//! programs say of themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use traceprof::trace::FrameKind;

use crate::common::managed_frames::{ALL_SAMPLES, Frame, for_each_stack};
use crate::common::{LuaJit, Outcome, Target, needs_recording, record_cpu_and_end, skip, together};

/// A program in which each function whose name begins with `c_` has one caller.
const SINGLE: &str = include_str!("targets/lua/single.lua");

/// Returns the functions of `single.lua` by the lines on which they start.
fn functions() -> BTreeMap<u32, &'static str> {
    let lines = (1..).zip(SINGLE.lines());
    let function = |(number, line): (u32, &'static str)| {
        let (_, rest) = line.split_once("function c_")?;
        Some((number, rest.split_once('(')?.0))
    };
    lines.filter_map(function).collect()
}

/// Returns where each of them is called: its callers, each with the line. `deep` has two callers,
/// one of which is itself.
fn calls() -> BTreeMap<&'static str, Vec<(&'static str, u32)>> {
    let (functions, mut calls) = (functions(), BTreeMap::<_, Vec<_>>::new());
    for (number, line) in (1..).zip(SINGLE.lines()) {
        if let Some((_, called)) = line.split_once("-- calls c_") {
            let caller = functions.range(..=number).next_back().expect("a function").1;
            let is_main = !line.starts_with(' ');
            calls.entry(called).or_default().push((if is_main { "" } else { *caller }, number));
        }
    }
    calls
}

#[derive(Debug, Default)]
struct Seen {
    /// Number of calls between functions of the program.
    calls: u64,
    /// Number of these without a line.
    without_line: u64,
    /// Number of innermost frames, and of those with a line.
    leaves: u64,
    with_line: u64,
    /// Number of frames without a name.
    gone: u64,
    functions: BTreeSet<&'static str>,
}

/// Returns the name of a function of the program without `c_`, which is empty for its main chunk.
fn name_of(functions: &BTreeMap<u32, &'static str>, frame: &Frame) -> Option<&'static str> {
    if frame.name == "main chunk" {
        return Some("");
    }
    let place = frame.name.strip_prefix("function <")?.strip_suffix('>')?;
    functions.get(&place.rsplit_once(':')?.1.parse().ok()?).copied()
}

/// Checks that each function has its caller, at the line of the call, in all samples.
fn check_callers(label: &str, outcome: &Outcome) -> Seen {
    let (functions, expected) = (functions(), calls());
    let (mut seen, mut wrong) = (Seen::default(), BTreeMap::<String, u64>::new());
    for_each_stack(outcome, FrameKind::Lua, |stack| {
        let mut caller: Option<(&str, u32)> = None;
        for it in stack {
            seen.gone += u64::from(it.is_gone());
            // Functions without a name in the comments are between others.
            let Some(name) = name_of(&functions, it) else {
                caller = None;
                continue;
            };
            if let Some((by, line)) = caller {
                seen.calls += 1;
                seen.without_line += u64::from(line == 0);
                let known = expected.get(name).map_or(&[][..], Vec::as_slice);
                let is_known = known.iter().any(|it| it.0 == by && (line == 0 || it.1 == line));
                if !is_known {
                    *wrong.entry(format!("{by}:{line} calls {name}")).or_default() += 1;
                }
            }
            caller = Some((name, it.line));
            seen.functions.insert(name);
        }
        if let Some(root) = stack.first().filter(|it| it.name != "main chunk" && !it.is_gone()) {
            *wrong.entry(format!("nothing calls {}", root.name)).or_default() += 1;
        }
        let Some(leaf) = stack.last() else { return };
        seen.leaves += 1;
        seen.with_line += u64::from(leaf.line > 0);
        if leaf.line > 0
            && let Some(name) = name_of(&functions, leaf).filter(|it| !it.is_empty())
        {
            let at = functions.range(..=leaf.line).next_back().expect("a function").1;
            if *at != name {
                *wrong.entry(format!("{name} at {}", leaf.line)).or_default() += 1;
            }
        }
    });
    assert!(wrong.is_empty(), "{label}: {wrong:#?}\n{seen:?}\n{}", outcome.text());
    seen
}

/// Checks that stacks reach the root. Code that was compiled just before is not known yet.
fn assert_rooted(release: &str, outcome: &Outcome) {
    let [samples, rooted] = ["samples", "rooted"].map(|key| outcome.trace.number(key));
    assert!(rooted * 100 > samples * 99, "{release}: {rooted} of {samples}\n{}", outcome.text());
}

/// Records a program in which each function has one caller.
fn callers_are_right(release: &str, option: &str) -> Option<(Outcome, Seen)> {
    let luajit = LuaJit::of(release)?;
    let _machine = together();
    let target = Target::spawn(luajit.runs("single.lua", option));
    let outcome = record_cpu_and_end(target, Duration::from_secs(4), &ALL_SAMPLES);
    let label = format!("{release} {option}");
    let seen = check_callers(&label, &outcome);
    eprintln!("{label}: {seen:?}\n{}", outcome.text());
    assert!(seen.calls > 10_000, "{label}: {seen:?}");
    assert!(seen.gone * 100 < seen.calls, "{label}: {seen:?}");
    Some((outcome, seen))
}

/// Records interpreted functions, all of which are there.
fn interpreted_callers_are_right(release: &str) {
    needs_recording!();
    let Some((outcome, seen)) = callers_are_right(release, "-joff") else {
        skip!("LuaJIT of {release}: not installed");
    };
    let all = calls();
    let missing: Vec<_> = all.keys().filter(|name| !seen.functions.contains(**name)).collect();
    assert!(missing.is_empty(), "{release}: no samples in {missing:?}");
    assert!(seen.without_line * 100 < seen.calls, "{release}: {seen:?}");
    assert!(seen.with_line * 10 > seen.leaves * 8, "{release}: {seen:?}");
    assert_rooted(release, &outcome);
}

/// Records compiled functions. Those that are a part of the compiled code of others are not there.
fn compiled_callers_are_right(release: &str) {
    needs_recording!();
    let Some((outcome, seen)) = callers_are_right(release, "-jon") else {
        skip!("LuaJIT of {release}: not installed");
    };
    assert!(seen.functions.len() > 5, "{release}: {seen:?}");
    assert_rooted(release, &outcome);
}

#[test]
fn callers_in_functions_of_debian_12_are_right() {
    interpreted_callers_are_right("bookworm");
}

#[test]
fn callers_in_compiled_functions_of_debian_12_are_right() {
    compiled_callers_are_right("bookworm");
}

#[test]
fn callers_in_functions_of_debian_13_are_right() {
    interpreted_callers_are_right("trixie");
}

#[test]
fn callers_in_compiled_functions_of_debian_13_are_right() {
    compiled_callers_are_right("trixie");
}
