//! PHP of all versions that are here: callers, lines and names of functions, against what the
//! programs say of themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;
use traceprof::trace::FrameKind;
use traceprof_abi::unwind::EndReason;

use crate::common::managed_frames::{ALL_SAMPLES, check_shares, for_each_sample, for_each_stack};
use crate::common::{
    Outcome, Php, Target, needs_recording, record_cpu, record_cpu_and_end, skip, together,
    traceprof,
};

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
    /// Number of frames without a name.
    gone: u64,
    with_line: u64,
    functions: BTreeSet<String>,
}

/// Checks that each function has its caller, at the line of the call, in all samples.
fn check_callers(label: &str, outcome: &Outcome) -> Seen {
    let expected = calls();
    let lines: Vec<&str> = SINGLE.lines().collect();
    let (mut seen, mut wrong) = (Seen::default(), BTreeMap::<String, u64>::new());
    for_each_stack(outcome, FrameKind::Php, |stack| {
        let mut caller: Option<(&str, u32)> = None;
        for it in stack {
            if it.name.ends_with("gone]") {
                // Code of files, of strings and of closures lives as long as it runs, and the name
                // of a method that is not there. Generators and fibers are not always linked.
                seen.gone += 1;
                let short = ["included", "evaluated", "closure", "magic", "iterate", "fiber"];
                if caller.is_some_and(|(by, _)| !short.contains(&by)) {
                    *wrong.entry(format!("{caller:?} calls what is gone")).or_default() += 1;
                }
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
fn callers_are_right(minor: u32, options: impl Fn(&Php) -> Vec<String>) {
    needs_recording!();
    let Some(php) = Php::of(minor) else {
        skip!("php 8.{minor}: not installed");
    };
    let _machine = together();
    let options = options(&php);
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let target = Target::spawn(php.runs("single.php", &options));
    let outcome = record_cpu_and_end(target, Duration::from_secs(5), &ALL_SAMPLES);
    let label = format!("PHP 8.{minor} {options:?}");
    let seen = check_callers(&label, &outcome);
    eprintln!("{label}: {seen:?}\n{}", outcome.text());
    let all = calls();
    let missing: Vec<_> = all.keys().filter(|name| !seen.functions.contains(**name)).collect();
    assert!(missing.is_empty(), "{label}: no samples in {missing:?}");
    assert!(seen.calls > 20_000, "{label}: {seen:?}");
    assert!(seen.gone * 50 < seen.calls, "{label}: {seen:?}");
}

#[test]
fn callers_in_8_2_are_right() {
    callers_are_right(2, |_| Vec::new());
}

#[test]
fn callers_in_8_4_are_right() {
    callers_are_right(4, |_| Vec::new());
}

#[test]
fn callers_in_8_2_with_a_cache_are_right() {
    callers_are_right(2, |php| php.with_cache(None));
}

#[test]
fn callers_in_8_4_with_a_cache_are_right() {
    callers_are_right(4, |php| php.with_cache(None));
}

#[test]
fn callers_in_compiled_functions_of_8_2_are_right() {
    callers_are_right(2, |php| php.with_cache(Some("1205")));
}

#[test]
fn callers_in_compiled_functions_of_8_4_are_right() {
    callers_are_right(4, |php| php.with_cache(Some("1205")));
}

#[test]
fn callers_in_compiled_traces_of_8_2_are_right() {
    callers_are_right(2, |php| php.with_cache(Some("1254")));
}

#[test]
fn callers_in_compiled_traces_of_8_4_are_right() {
    callers_are_right(4, |php| php.with_cache(Some("1254")));
}

/// Records functions that come and go, whose memory others take.
fn no_function_has_the_name_of_another(minor: u32) {
    needs_recording!();
    let Some(php) = Php::of(minor) else {
        skip!("php 8.{minor}: not installed");
    };
    let _machine = together();
    let target = Target::spawn(php.runs("churn.php", &["-dmemory_limit=-1"]));
    let outcome = record_cpu_and_end(target, Duration::from_secs(4), &ALL_SAMPLES);
    let (mut right, mut gone, mut wrong) = (0, 0, BTreeMap::<String, u64>::new());
    for_each_stack(&outcome, FrameKind::Php, |stack| {
        let mut digit = None;
        for it in stack {
            gone += u64::from(it.name.ends_with("gone]"));
            if let Some(number) = it.name.strip_prefix("stub_") {
                digit = number.chars().last();
                continue;
            }
            let made = ["made_", "leaf_", "file_"].iter().any(|part| it.name.contains(part));
            if made && digit.is_some() {
                // That of a closure is in its name, from 8.4 on.
                let name = it.name.split('(').next().unwrap_or_default();
                match name.chars().last() == digit {
                    true => right += 1,
                    false => *wrong.entry(format!("{digit:?}: {}", it.name)).or_default() += 1,
                }
            }
        }
    });
    let text = outcome.text();
    eprintln!("PHP 8.{minor}: {right} right, {gone} gone\n{text}");
    assert!(wrong.is_empty(), "PHP 8.{minor}: {wrong:#?}");
    assert!(right > 1000, "PHP 8.{minor}: {right}\n{text}");
    assert_eq!(gone > 0, text.contains("without a name"), "each has its reason\n{text}");
}

#[test]
fn no_function_of_8_2_has_the_name_of_another() {
    no_function_has_the_name_of_another(2);
}

#[test]
fn no_function_of_8_4_has_the_name_of_another() {
    no_function_has_the_name_of_another(4);
}

/// A program of closures that are made, called and dropped.
const CLOSURES: &str = include_str!("targets/php/closures.php");

/// Returns a name without what 8.4 says of the place of a closure.
fn without_place(name: &str) -> String {
    match name.split_once("{closure:") {
        Some((class, _)) => format!("{class}{{closure}}"),
        None => name.to_owned(),
    }
}

/// Records closures, whose memory others take before it is read.
fn dropped_closures_have_names(minor: u32) {
    needs_recording!();
    let Some(php) = Php::of(minor) else {
        skip!("php 8.{minor}: not installed");
    };
    let marks: Vec<Vec<&str>> = CLOSURES
        .lines()
        .map(|line| line.split_once("// in ").map_or_else(Vec::new, |it| it.1.split(' ').collect()))
        .collect();
    let _machine = together();
    let target = Target::spawn(php.runs("closures.php", &[]));
    let outcome = record_cpu_and_end(target, Duration::from_secs(4), &ALL_SAMPLES);
    let (mut frames, mut gone, mut seen) = (0, 0, BTreeSet::new());
    for_each_stack(&outcome, FrameKind::Php, |stack| {
        for pair in stack.windows(2) {
            frames += 1;
            let name = without_place(&pair[0].name);
            gone += u64::from(name.ends_with("gone]"));
            if pair[0].file.ends_with("closures.php") {
                let mark = marks.get((pair[0].line as usize).wrapping_sub(1));
                let is_there = mark.is_some_and(|mark| mark.contains(&name.as_str()));
                assert!(is_there, "{:?}\n{stack:#?}", pair[0]);
                seen.insert(name);
            }
        }
    });
    let text = outcome.text();
    eprintln!("PHP 8.{minor}: {gone} of {frames} gone, {seen:?}\n{text}");
    let expected = marks.iter().flatten().filter(|name| **name != "work");
    let missing: Vec<_> = expected.filter(|name| !seen.contains(**name)).collect();
    assert!(missing.is_empty(), "PHP 8.{minor}: {missing:?}\n{text}");
    assert!(frames > 1000 && gone * 200 < frames, "PHP 8.{minor}: {gone} of {frames}\n{text}");
}

#[test]
fn dropped_closures_of_8_2_have_names() {
    dropped_closures_have_names(2);
}

#[test]
fn dropped_closures_of_8_4_have_names() {
    dropped_closures_have_names(4);
}

/// A program that calls itself more often than there is room for, and then calls `sub`.
const DEEP: &str = "function leaf() { for ($i = 0; $i < 20000; $i++) { $s = $i % 7; } }
    function deep($n) { $n == 0 ? leaf() : deep($n - 1); }
    echo \"ready\\n\";
    while (true) { leaf(); deep(1500); }";

/// Stacks of which the outermost functions are missing say so.
#[test]
fn stacks_without_their_outermost_functions_are_marked() {
    needs_recording!();
    let Some(php) = Php::all().pop() else {
        skip!("php 8.2: not installed");
    };
    let _machine = together();
    let mut command = php.command(&["-r"]);
    command.arg(DEEP);
    let target = Target::spawn(command);
    let outcome = record_cpu(target.pid(), Duration::from_secs(2), &ALL_SAMPLES);
    let (mut whole, mut cut) = (0, 0);
    for_each_sample(&outcome, FrameKind::Php, |sample, stack| {
        if stack.first().is_some_and(|it| it.name == "{eval}") {
            whole += 1;
            assert_eq!(sample.end_reason, EndReason::Root as u16);
        } else if stack.len() > 1000 {
            cut += 1;
            assert_eq!(sample.end_reason, EndReason::Depth as u16);
        }
    });
    assert!(whole > 50 && cut > 50, "{whole} {cut}\n{}", outcome.text());
    let folded = outcome.trace.view(&["export", "--format", "folded", "--output", "-"]);
    for line in folded.lines() {
        assert_eq!(line.starts_with("[truncated];"), !line.contains("{eval}"), "{line}");
    }
    let output = traceprof(&["stacks", "--json", "--pid", &target.pid().to_string()]).output();
    let seen: Value = serde_json::from_slice(&output.expect("stacks").stdout).expect("JSON");
    let thread = &seen["threads"][0];
    let is_cut = thread["frames"].as_array().expect("frames").len() > 1000;
    assert_eq!(thread["end"] == "depth", is_cut, "{seen}");
}

/// Compares the shares of functions with those of their own clock.
fn shares_are_those_of_the_program(minor: u32) {
    needs_recording!();
    let Some(php) = Php::of(minor) else {
        skip!("php 8.{minor}: not installed");
    };
    let _machine = together();
    check_shares(&format!("PHP 8.{minor}"), php.runs("shares.php", &[]));
}

#[test]
fn shares_in_8_2_are_those_of_the_program() {
    shares_are_those_of_the_program(2);
}

#[test]
fn shares_in_8_4_are_those_of_the_program() {
    shares_are_those_of_the_program(4);
}

/// `stacks` shows the functions of a program that sleeps, and `doctor` names the interpreter.
#[test]
fn stacks_and_doctor_know_the_interpreter() {
    let all = Php::all();
    if all.is_empty() {
        skip!("php 8.2: not installed");
    }
    let _machine = together();
    for php in all {
        let code = "namespace N;\n\
                    class Waits { static function inner() {\n usleep(60000000); }\n\
                    static function outer() {\n array_map(fn ($x) => self::inner(), [1]); } }\n\
                    echo \"ready\\n\";\n\
                    Waits::outer();";
        let mut command = php.command(&["-r"]);
        command.arg(code);
        let target = Target::spawn(command);
        let pid = target.pid().to_string();
        let output = traceprof(&["stacks", "--json", "--pid", &pid]).output().expect("stacks");
        let seen: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
        let frames = seen["threads"][0]["frames"].as_array().expect("frames");
        let php_frames = frames.iter().filter(|frame| frame["kind"] == "php");
        let found: Vec<(String, u64)> = php_frames
            .map(|frame| {
                let name = frame["function"].as_str().expect("a name").to_owned();
                // 8.4 says where a closure is.
                let name = if name.contains("{closure") { "closure".to_owned() } else { name };
                (name, frame["line"].as_u64().unwrap_or(0))
            })
            .collect();
        let expected = [
            ("usleep", 0),
            ("N\\Waits::inner", 3),
            ("closure", 5),
            ("array_map", 0),
            ("N\\Waits::outer", 5),
            // The code of the option.
            ("{eval}", 7),
        ];
        let expected = expected.map(|(name, line)| (name.to_owned(), line));
        assert_eq!(found, expected, "PHP 8.{}: {seen}", php.minor);
        let output = traceprof(&["doctor", "--pid", &pid]).output().expect("doctor");
        let text = String::from_utf8_lossy(&output.stdout);
        let known = format!("PHP 8.{}.", php.minor);
        let line = text.lines().find(|line| line.contains(&known)).unwrap_or_default();
        assert!(line.ends_with(": functions, lines"), "{text}");
    }
}
