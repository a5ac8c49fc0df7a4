//! Perl: callers, lines and names of subs, against what the programs say of themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use traceprof::trace::FrameKind;

use crate::common::managed_frames::{ALL_SAMPLES, Frame, check_shares, for_each_stack};
use crate::common::{
    Outcome, Target, has_command, needs_recording, record_cpu_and_end, scratch_dir, script, skip,
    together, traceprof,
};

/// The interpreter: Debian 12's.
const PERL: &str = "perl5.36.0";
/// The same one, linked to `libperl`.
const LINKED: &str = "perl5.36-x86_64-linux-gnu";

/// Skips the calling test where there is no interpreter.
macro_rules! needs_perl {
    () => {
        if !has_command(PERL) {
            skip!("{PERL}: not installed");
        }
    };
}

fn perl(name: &str) -> Command {
    let mut command = Command::new(PERL);
    command.arg(script(&format!("perl/{name}")));
    command
}

/// A call: the name of the code that calls, the line, and the name of the code that is called.
type Call = (String, u32, String);

/// Returns the name of a sub as the frames have it: those without a name have no package.
fn shown(name: &str) -> &str {
    if name.ends_with("::__ANON__") { "__ANON__" } else { name }
}

/// Returns the calls that a program tells. Its lines have the stacks, root first: the name of what
/// is called, and the line of the call.
fn account(text: &str) -> BTreeSet<Call> {
    let mut calls = BTreeSet::new();
    for line in text.lines() {
        let mut caller = "<main>".to_owned();
        for place in line.split('\t') {
            let (called, line) = place.rsplit_once(':').expect("a line");
            let called = shown(called).to_owned();
            calls.insert((caller, line.parse().expect("a number"), called.clone()));
            caller = called;
        }
    }
    calls
}

#[derive(Debug, Default)]
struct Seen {
    /// Number of calls that the program has told.
    known: u64,
    /// Number of calls without a line.
    without_line: u64,
    gone: u64,
    called: BTreeSet<String>,
}

/// Checks that the calls of all samples are those that the program has told.
fn check_calls(account: &BTreeSet<Call>, outcome: &Outcome) -> Seen {
    let (mut seen, mut wrong) = (Seen::default(), BTreeMap::<String, u64>::new());
    let is_told = |name: &str| account.iter().any(|(.., called)| called == name);
    for_each_stack(outcome, FrameKind::Perl, |stack| {
        seen.gone += stack.iter().filter(|it| it.is_gone()).count() as u64;
        if let Some(root) = stack.first().filter(|it| it.name != "<main>" && !it.is_gone()) {
            *wrong.entry(format!("nothing calls {}", root.name)).or_default() += 1;
        }
        for pair in stack.windows(2) {
            let [by, called] = pair else { continue };
            if by.is_gone() || !is_told(&called.name) {
                continue;
            }
            let is_call = |(caller, line, name): &Call| {
                *caller == by.name && *name == called.name && (by.line == 0 || by.line == *line)
            };
            // The program tells only its first round of the outermost call.
            let is_round = by.name == "<main>" && called.name == "main::c_run";
            if is_round || account.iter().any(is_call) {
                seen.known += 1;
                seen.without_line += u64::from(by.line == 0);
                seen.called.insert(called.name.clone());
            } else {
                let call = format!("{}:{} calls {}", by.name, by.line, called.name);
                *wrong.entry(call).or_default() += 1;
            }
        }
        if let Some(leaf) = stack.last().filter(|leaf| leaf.line > 0 && !is_at(leaf)) {
            *wrong.entry(format!("{} at {}", leaf.name, leaf.line)).or_default() += 1;
        }
    });
    assert!(wrong.is_empty(), "{wrong:#?}\n{seen:?}\n{}", outcome.text());
    seen
}

/// Whether the line of a sub whose name begins with `c_` is in its definition.
fn is_at(frame: &Frame) -> bool {
    let name = frame.name.rsplit("::").next().unwrap_or_default();
    if !name.starts_with("c_") {
        return true;
    }
    let lines = include_str!("targets/perl/single.pl").lines().take(frame.line as usize);
    let found = lines.filter_map(|line| line.trim_start().strip_prefix("sub c_")).last();
    found.is_some_and(|rest| rest.starts_with(&format!("{} ", &name[2..])))
}

/// Records a program in which each sub has one caller.
#[test]
fn callers_are_those_that_the_program_tells() {
    needs_recording!();
    needs_perl!();
    let _machine = together();
    let folder = scratch_dir();
    let file = folder.path().join("account");
    let mut command = perl("single.pl");
    command.arg(&file);
    let target = Target::spawn(command);
    let account = account(&std::fs::read_to_string(&file).expect("an account"));
    let outcome = record_cpu_and_end(target, Duration::from_secs(4), &ALL_SAMPLES);
    let seen = check_calls(&account, &outcome);
    eprintln!("{seen:?}\n{}", outcome.text());
    let all = account.iter().map(|(.., called)| called);
    let missing: Vec<_> = all.filter(|it| !seen.called.contains(*it)).collect();
    assert!(missing.is_empty(), "no samples in {missing:?}");
    assert!(seen.known > 10_000, "{seen:?}");
    // Strings are compiled each time, and files that are read again.
    assert!(seen.without_line * 20 < seen.known, "{seen:?}");
    assert!(seen.gone * 1000 < seen.known, "{seen:?}");
}

/// Records subs that come and go, whose memory others take.
#[test]
fn no_sub_has_the_name_of_another() {
    needs_recording!();
    needs_perl!();
    let _machine = together();
    let target = Target::spawn(perl("churn.pl"));
    let outcome = record_cpu_and_end(target, Duration::from_secs(4), &ALL_SAMPLES);
    let (mut right, mut gone) = (0, 0);
    let mut wrong = BTreeMap::<String, u64>::new();
    for_each_stack(&outcome, FrameKind::Perl, |stack| {
        gone += stack.iter().filter(|it| it.is_gone()).count();
        for pair in stack.windows(2) {
            let Some(digit) = pair[0].name.strip_prefix("main::stub_") else { continue };
            let it = &pair[1];
            if it.is_gone() || it.name == "__ANON__" && it.file.is_empty() {
                continue;
            }
            let is_name = it.name == "__ANON__" || it.name == format!("Made_{digit}::made_{digit}");
            let line = digit.parse::<u32>().expect("a digit") + 1;
            let is_line = it.line == 0 || it.line == line;
            match is_name && is_line && it.file == format!("file_{digit}") {
                true => right += 1,
                false => *wrong.entry(format!("{digit}: {it:?}")).or_default() += 1,
            }
        }
    });
    let text = outcome.text();
    eprintln!("{right} right, {gone} gone\n{text}");
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(right > 100, "{right}\n{text}");
    assert_eq!(gone > 0, text.contains("without a name"), "each has its reason\n{text}");
}

/// Records threads, each with an interpreter of its own.
#[test]
fn threads_have_the_subs_of_their_interpreters() {
    needs_recording!();
    needs_perl!();
    let _machine = together();
    let target = Target::spawn(perl("threads.pl"));
    let outcome = record_cpu_and_end(target, Duration::from_secs(3), &ALL_SAMPLES);
    let (mut counts, mut wrong) = (BTreeMap::<String, u64>::new(), BTreeSet::new());
    for_each_stack(&outcome, FrameKind::Perl, |stack| {
        let names: Vec<&str> = stack.iter().map(|it| it.name.as_str()).collect();
        let is_right = match &names[..] {
            [] | ["<main>"] => true,
            [root, rest @ ..] if stack[0].is_gone() => rest.iter().all(|it| it == root),
            [root] => root.starts_with("main::t_"),
            [root, leaf] => {
                let letter = root.strip_prefix("main::t_");
                letter.is_some() && letter == leaf.strip_prefix("main::w_")
            }
            _ => false,
        };
        if !is_right {
            wrong.insert(names.join(";"));
        }
        *counts.entry(names.last().copied().unwrap_or_default().to_owned()).or_default() += 1;
    });
    assert!(wrong.is_empty(), "{wrong:#?}\n{}", outcome.text());
    for name in ["main::w_a", "main::w_b", "main::w_c"] {
        let count = counts.get(name).copied().unwrap_or_default();
        assert!(count > 100, "{name}: {counts:#?}\n{}", outcome.text());
    }
}

#[test]
fn shares_are_those_of_the_program() {
    needs_recording!();
    needs_perl!();
    let _machine = together();
    check_shares("Perl", perl("shares.pl"));
}

/// `stacks` shows the subs of a program that sleeps, and `doctor` names the interpreter.
#[test]
fn stacks_and_doctor_know_the_interpreter() {
    needs_perl!();
    let _machine = together();
    stacks_and_doctor_know(PERL);
}

/// The interpreter is in a library.
#[test]
fn stacks_and_doctor_know_the_library() {
    if !has_command(LINKED) {
        skip!("{LINKED}: not installed");
    }
    let _machine = together();
    stacks_and_doctor_know(LINKED);
}

fn stacks_and_doctor_know(interpreter: &str) {
    let code = "package Waits;\n\
                sub inner { sleep 60 }\n\
                sub outer {\n for my $x (1) {\n my $y = sub { inner() };\n $y->();\n }\n }\n\
                package main;\n\
                $| = 1; print \"ready\\n\";\n\
                Waits::outer();";
    let mut command = Command::new(interpreter);
    command.arg("-e").arg(code);
    let target = Target::spawn(command);
    let pid = target.pid().to_string();
    let output = traceprof(&["stacks", "--json", "--pid", &pid]).output().expect("stacks");
    let seen: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    let frames = seen["threads"][0]["frames"].as_array().expect("frames");
    let perl_frames = frames.iter().filter(|frame| frame["kind"] == "perl");
    let found: Vec<(&str, u64)> = perl_frames
        .map(|frame| {
            let name = frame["function"].as_str().expect("a name");
            (name, frame["line"].as_u64().unwrap_or(0))
        })
        .collect();
    let expected = [("Waits::inner", 2), ("__ANON__", 5), ("Waits::outer", 6), ("<main>", 11)];
    assert_eq!(found, expected, "{seen}");
    let output = traceprof(&["doctor", "--pid", &pid]).output().expect("doctor");
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find(|line| line.contains("Perl 5.36.")).unwrap_or_default();
    assert!(line.ends_with(": functions, lines"), "{text}");
}
