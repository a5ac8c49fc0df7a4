//! LuaJIT of all releases that are here: callers, lines and names of functions, against what the
//! programs say of themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use traceprof::trace::FrameKind;

use crate::common::lua_callers::{LuaCallers, SeenCalls};
use crate::common::managed_frames::{ALL_SAMPLES, Frame, for_each_stack};
use crate::common::{
    LuaJit, Outcome, Target, needs_recording, program, record_and_end, record_cpu_and_end, script,
    skip, together, traceprof,
};

/// Returns a program in which each function whose name begins with `c_` has one caller. `deep` has
/// two, one of which is itself.
fn single() -> LuaCallers {
    LuaCallers::of("single.lua", include_str!("targets/lua/single.lua"))
}

/// Checks that stacks reach the root.
fn assert_rooted(release: &str, outcome: &Outcome) {
    let [samples, rooted] = ["samples", "rooted"].map(|key| outcome.trace.number(key));
    assert!(rooted * 100 > samples * 99, "{release}: {rooted} of {samples}\n{}", outcome.text());
}

/// Records a program in which each function has one caller.
fn callers_are_right(release: &str, option: &str) -> Option<(Outcome, SeenCalls)> {
    let luajit = LuaJit::of(release)?;
    let _machine = together();
    let target = Target::spawn(luajit.runs("single.lua", option));
    let outcome = record_cpu_and_end(target, Duration::from_secs(4), &ALL_SAMPLES);
    let label = format!("{release} {option}");
    let seen = single().check(&label, &outcome);
    eprintln!("{label}: {seen:?}\n{}", outcome.text());
    assert!(seen.calls > 10_000, "{label}: {seen:?}");
    assert!(seen.gone * 100 < seen.calls, "{label}: {seen:?}");
    // None of these functions ends.
    assert!(!outcome.text().contains("no code object"), "{label}: {}", outcome.text());
    Some((outcome, seen))
}

/// Records interpreted functions, all of which are there.
fn interpreted_callers_are_right(release: &str) {
    needs_recording!();
    let Some((outcome, seen)) = callers_are_right(release, "-joff") else {
        skip!("LuaJIT of {release}: not installed");
    };
    let missing = single().missing(&seen);
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

/// Returns the lines of the functions of a stack of a script, with 0 for its main chunk.
fn lines(stack: &[Frame]) -> Vec<u32> {
    let line = |frame: &Frame| match frame.name.strip_suffix('>') {
        Some(place) => place.rsplit(':').next().and_then(|line| line.parse().ok()),
        None => (frame.name == "main chunk").then_some(0),
    };
    stack.iter().map(|frame| line(frame).unwrap_or(u32::MAX)).collect()
}

/// Records a program that contains the interpreter, with two states and coroutines that native code
/// resumes.
fn coroutines_that_native_code_resumes_are_right(release: &str, library: &str) {
    needs_recording!();
    let Some(library) = LuaJit::library(release, library) else {
        skip!("{library} of {release}: not installed");
    };
    let _machine = together();
    let mut command = Command::new(program("lua_host"));
    command.arg(library).arg(script("lua/host.lua"));
    let outcome = record_cpu_and_end(Target::spawn(command), Duration::from_secs(3), &ALL_SAMPLES);
    let mut counts = BTreeMap::<Vec<u32>, u64>::new();
    let mut gone = 0;
    for_each_stack(&outcome, FrameKind::Lua, |stack| match stack.iter().any(Frame::is_gone) {
        true => gone += 1,
        false => *counts.entry(lines(stack)).or_default() += 1,
    });
    eprintln!("{release}: {counts:?}, {gone} gone\n{}", outcome.text());
    // The two functions of the coroutine, and those of the program that has made it.
    let [direct, nested] = [vec![8, 2], vec![0, 15, 8, 2]];
    let is_right = |stack: &[u32]| direct.starts_with(stack) || nested.starts_with(stack);
    let wrong: Vec<_> = counts.keys().filter(|stack| !is_right(stack)).collect();
    assert!(wrong.is_empty(), "{release}: {wrong:?} of {counts:?}\n{}", outcome.text());
    let total: u64 = counts.values().sum();
    for stack in [direct, nested] {
        assert!(counts[&stack] > 500, "{release}: {counts:?}");
    }
    assert!(gone * 50 < total, "{release}: {counts:?}, {gone} gone");
    assert_rooted(release, &outcome);
}

#[test]
fn coroutines_in_a_program_with_the_library_are_right() {
    coroutines_that_native_code_resumes_are_right("bookworm", "libluajit-5.1.so.2");
}

#[test]
fn coroutines_in_a_program_with_the_branch_for_openresty_are_right() {
    coroutines_that_native_code_resumes_are_right("openresty", "libluajit-5.1.so.2");
}

/// Records two builds of the interpreter, one of which calls the other one.
fn two_builds_are_told_apart(releases: [&str; 2]) {
    needs_recording!();
    let libraries = releases.map(|release| LuaJit::library(release, "libluajit-5.1.so.2"));
    let [Some(first), Some(second)] = libraries else {
        skip!("LuaJIT of {releases:?}: not installed");
    };
    let _machine = together();
    let mut command = Command::new(program("lua_two"));
    command.args([first, second]).arg(script("lua/two.lua"));
    let outcome = record_cpu_and_end(Target::spawn(command), Duration::from_secs(3), &ALL_SAMPLES);
    let mut counts = BTreeMap::<Vec<u32>, u64>::new();
    let mut gone = 0;
    for_each_stack(&outcome, FrameKind::Lua, |stack| match stack.iter().any(Frame::is_gone) {
        true => gone += 1,
        false => *counts.entry(lines(stack)).or_default() += 1,
    });
    let text = outcome.text();
    eprintln!("{releases:?}: {counts:?}, {gone} gone\n{text}");
    let stacks = [vec![0, 18, 2], vec![0, 18, 14, 8]];
    let wrong = counts.keys().filter(|it| !stacks.iter().any(|stack| stack.starts_with(it)));
    assert_eq!(wrong.count(), 0, "{releases:?}: {counts:?}\n{text}");
    for stack in stacks {
        assert!(counts.get(&stack) > Some(&500), "{releases:?}: {counts:?}\n{text}");
    }
    let total: u64 = counts.values().sum();
    assert!(gone * 50 < total, "{releases:?}: {counts:?}, {gone} gone");
    assert_rooted(&releases.join(" and "), &outcome);
}

#[test]
fn a_build_that_calls_the_branch_for_openresty_is_told_apart() {
    two_builds_are_told_apart(["bookworm", "openresty"]);
}

#[test]
fn the_branch_for_openresty_that_calls_another_build_is_told_apart() {
    two_builds_are_told_apart(["openresty", "bookworm"]);
}

/// Records functions that come and go, whose memory others take.
fn no_function_has_the_name_of_another(option: &str) {
    needs_recording!();
    let Some(luajit) = LuaJit::of("bookworm") else {
        skip!("luajit: not installed");
    };
    let _machine = together();
    let target = Target::spawn(luajit.runs("churn.lua", option));
    let outcome = record_cpu_and_end(target, Duration::from_secs(4), &ALL_SAMPLES);
    let text = include_str!("targets/lua/churn.lua");
    let stubs = (1..)
        .zip(text.lines())
        .filter_map(|(number, line)| Some((number, line.split_once("-- stub ")?.1.to_owned())));
    let stubs: BTreeMap<u32, String> = stubs.collect();
    let (mut right, mut gone, mut wrong) = (0, 0, BTreeMap::<String, u64>::new());
    for_each_stack(&outcome, FrameKind::Lua, |stack| {
        gone += stack.iter().filter(|it| it.is_gone()).count();
        for pair in stack.windows(2) {
            let by = lines(&pair[..1])[0];
            let Some(digit) = stubs.get(&by).filter(|_| pair[0].file.ends_with("churn.lua")) else {
                continue;
            };
            match &pair[1] {
                it if it.is_gone() => {}
                it if it.file == format!("made_{digit}") => right += 1,
                it => *wrong.entry(format!("{digit}: {it:?}")).or_default() += 1,
            }
        }
    });
    let text = outcome.text();
    eprintln!("{option}: {right} right, {gone} gone\n{text}");
    assert!(wrong.is_empty(), "{option}: {wrong:#?}");
    assert!(right > 100, "{option}: {right}\n{text}");
    assert_eq!(gone > 0, text.contains("without a name"), "each has its reason\n{text}");
    // Code is compiled all the time, and freed.
    assert_rooted(option, &outcome);
}

#[test]
fn no_interpreted_function_has_the_name_of_another() {
    no_function_has_the_name_of_another("-joff");
}

#[test]
fn no_compiled_function_has_the_name_of_another() {
    no_function_has_the_name_of_another("-jon");
}

/// `stacks` and mode `wall` show the functions of a program that sleeps in a coroutine, and
/// `doctor` names the interpreter.
#[test]
fn sleepers_have_their_functions() {
    needs_recording!();
    let Some(luajit) = LuaJit::of("bookworm") else {
        skip!("luajit: not installed");
    };
    let _machine = together();
    let target = Target::spawn(luajit.runs("asleep.lua", "-jon"));
    let pid = target.pid().to_string();
    let output = traceprof(&["stacks", "--json", "--pid", &pid]).output().expect("stacks");
    let seen: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    let frames = seen["threads"][0]["frames"].as_array().expect("frames");
    let frames = frames.iter().filter(|frame| frame["kind"] == "lua");
    let found: Vec<u64> = frames.map(|frame| frame["line"].as_u64().unwrap_or(0)).collect();
    assert_eq!(found, [3, 7, 12, 19], "{seen}");
    let output = traceprof(&["doctor", "--pid", &pid]).output().expect("doctor");
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find(|line| line.contains("LuaJIT 2.1.")).unwrap_or_default();
    assert!(line.ends_with(": functions, lines"), "{text}");
    let options = ["--mode", "wall"];
    let outcome = record_and_end(target, 1, &options);
    let mut stacks = BTreeSet::new();
    for_each_stack(&outcome, FrameKind::Lua, |stack| {
        stacks.insert((lines(stack), stack.iter().map(|it| it.line).collect::<Vec<_>>()));
    });
    let expected = (vec![0, 11, 6, 2], vec![19, 12, 7, 3]);
    assert_eq!(stacks, BTreeSet::from([expected]), "{}", outcome.text());
}
