//! Ruby: callers, lines and names of methods, against what the programs say of themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use traceprof::trace::FrameKind;

use crate::common::managed_frames::{ALL_SAMPLES, Frame, check_shares, for_each_stack};
use crate::common::served::{Client, Served, asks_http, free_port};
use crate::common::{
    Outcome, Ruby, Target, needs_recording, record_cpu, record_cpu_and_end, scratch_dir, script,
    skip, together, traceprof, variant, wait_until,
};

/// Returns the interpreter of a version, or skips the calling test where there is none.
macro_rules! needs_ruby {
    ($minor:expr) => {
        match Ruby::of($minor) {
            Some(ruby) => ruby,
            None => skip!("ruby 3.{}: not installed", $minor),
        }
    };
}

/// A call: the name and the line of the code that calls, the methods in C between, and the name of
/// the code that is called.
type Call = (String, u32, Vec<String>, String);

/// Returns the name without the class.
fn own_name(name: &str) -> &str {
    let is_method = !name.contains(' ') && !name.starts_with('<');
    if is_method { name.rsplit(['#', '.']).next().unwrap_or(name) } else { name }
}

/// Returns the calls of a stack, root first: names, and the lines of code in Ruby.
fn calls_of<'a>(stack: impl Iterator<Item = (&'a str, Option<u32>)>) -> Vec<Call> {
    let (mut calls, mut caller, mut between) = (Vec::new(), None, Vec::new());
    for (name, line) in stack {
        let Some(line) = line else {
            between.push(name.to_owned());
            continue;
        };
        if let Some((by, at)) = caller.replace((name.to_owned(), line)) {
            calls.push((by, at, std::mem::take(&mut between), name.to_owned()));
        }
        between.clear();
    }
    calls
}

/// What a program says of its own calls.
struct Account {
    calls: BTreeSet<Call>,
    /// The code that nothing calls.
    roots: BTreeSet<String>,
}

impl Account {
    fn of(text: &str) -> Self {
        let (mut calls, mut roots) = (BTreeSet::new(), BTreeSet::new());
        for line in text.lines() {
            let places = line.split('\t').map(|place| place.rsplit_once(':').expect("a line"));
            let is_code = |name: &str| {
                name.contains(' ') || name.starts_with(['<', 'c']) || name == "method_missing"
            };
            let is_code = |name: &str| is_code(name) && name != "catch" || name == "<=>";
            let stack = places
                .map(|(name, line)| (name, is_code(name).then(|| line.parse().expect("a number"))));
            let stack: Vec<_> = stack.collect();
            roots.insert(stack[0].0.to_owned());
            calls.extend(calls_of(stack.into_iter()));
        }
        Self { calls, roots }
    }

    fn knows(&self, name: &str) -> bool {
        self.calls.iter().any(|(.., called)| called == name)
    }
}

#[derive(Debug, Default)]
struct Seen {
    /// Number of calls that the program has told, and of others.
    known: u64,
    others: u64,
    /// Number of innermost frames in Ruby, and of those with a line.
    leaves: u64,
    with_line: u64,
    gone: u64,
    /// Number of calls by code of strings whose name is not known.
    evaluated: u64,
    called: BTreeSet<String>,
    full_names: BTreeSet<String>,
}

/// Whether a block or other part of a method runs below this code of the method.
fn is_part_of(name: &str, caller: &str) -> bool {
    let own = |name: &str| name.rsplit(' ').next().map(str::to_owned);
    name.contains(' ') && own(name) == own(caller)
}

/// Whether a frame has code that the program's account tells apart from methods in C. Some of the
/// interpreter's own methods are in Ruby.
fn is_of_program(frame: &Frame) -> bool {
    let is_internal = frame.file.starts_with("<internal:") && !frame.name.contains(' ');
    !frame.file.is_empty() && !is_internal
}

/// Checks that the calls of all samples are those that the program has told.
fn check_calls(account: &Account, outcome: &Outcome) -> Seen {
    let (mut seen, mut wrong) = (Seen::default(), BTreeMap::<String, u64>::new());
    for_each_stack(outcome, FrameKind::Ruby, |stack| {
        seen.gone += stack.iter().filter(|it| it.is_gone()).count() as u64;
        seen.full_names.extend(stack.iter().map(|it| it.name.clone()));
        let line = |it: &Frame| is_of_program(it).then_some(it.line);
        let frames = || stack.iter().map(|it| (own_name(&it.name), line(it)));
        // A thread that changes to another fiber has no frames for a moment.
        let root = stack.first().filter(|it| !it.is_gone()).map(|it| own_name(&it.name));
        if let Some(root) = root.filter(|root| !account.roots.contains(*root)) {
            *wrong.entry(format!("nothing calls {root}")).or_default() += 1;
        }
        for call in calls_of(frames()) {
            let (by, _, between, called) = &call;
            if by == "c_evaluated" && between.iter().any(|it| it.ends_with("gone]")) {
                // The code of a string lives as long as it runs.
                seen.evaluated += 1;
            } else if account.calls.contains(&call) {
                seen.known += 1;
                seen.called.insert(called.clone());
            } else if account.knows(called) || called.contains(' ') && !is_part_of(called, by) {
                *wrong.entry(format!("{call:?}")).or_default() += 1;
            } else {
                seen.others += 1;
            }
        }
        let Some(leaf) = stack.last().filter(|it| !it.file.is_empty()) else { return };
        seen.leaves += 1;
        seen.with_line += u64::from(leaf.line > 0);
        if leaf.line > 0 && !is_at(leaf) {
            *wrong.entry(format!("{} at {}", leaf.name, leaf.line)).or_default() += 1;
        }
    });
    assert!(wrong.is_empty(), "{wrong:#?}\n{seen:?}\n{}", outcome.text());
    seen
}

/// Whether the line of a method whose name begins with `c_` is in its definition.
fn is_at(frame: &Frame) -> bool {
    let text = match frame.file.rsplit('/').next() {
        Some("single.rb") => include_str!("targets/ruby/single.rb"),
        Some("required.rb") => include_str!("targets/ruby/required.rb"),
        _ => return true,
    };
    let name = own_name(&frame.name).rsplit(' ').next().unwrap_or_default();
    let before: Vec<&str> = text.lines().take(frame.line as usize).collect();
    let definition = before.iter().rev().find_map(|line| line.trim_start().strip_prefix("def "));
    let definition = definition.map(|it| it.trim_start_matches("self."));
    !name.starts_with("c_") || definition.is_some_and(|it| it.starts_with(&format!("{name}(")))
}

#[test]
fn callers_in_3_1_are_those_that_the_program_tells() {
    check_single_callers(1);
}

#[test]
fn callers_in_3_3_are_those_that_the_program_tells() {
    check_single_callers(3);
}

/// Records a program in which each method has one caller.
fn check_single_callers(minor: u32) {
    needs_recording!();
    let ruby = needs_ruby!(minor);
    let _machine = together();
    let folder = scratch_dir();
    let file = folder.path().join("account");
    let mut command = ruby.runs("single.rb");
    command.arg(&file);
    let target = Target::spawn(command);
    let account = Account::of(&std::fs::read_to_string(&file).expect("an account"));
    let outcome = record_cpu_and_end(target, Duration::from_secs(4), &ALL_SAMPLES);
    let seen = check_calls(&account, &outcome);
    eprintln!("{seen:?}\n{}", outcome.text());
    let all = account.calls.iter().map(|(.., called)| called);
    let missing: Vec<_> = all.filter(|it| !seen.called.contains(*it)).collect();
    assert!(missing.is_empty(), "no samples in {missing:?}");
    assert!(seen.known > 20_000, "{seen:?}");
    // What is gone of the rest are moments between two fibers.
    assert!((seen.gone - seen.evaluated) * 1000 < seen.known, "{seen:?}");
    let names = [
        "Array#map",
        "Array#sort",
        "Comparable#>",
        "Integer#times",
        "Kernel#catch",
        "Mixed#c_mixed",
        "Object#c_run",
        "Ordered#<=>",
        "Outer::Inner#c_nested",
        "Shape#c_method",
        "Shape#method_missing",
        "Shape.c_single",
        "String#gsub",
        "block in <class:Shape>",
        "ensure in c_ensures",
        "rescue in c_throws",
    ];
    let missing: Vec<_> = names.iter().filter(|it| !seen.full_names.contains(**it)).collect();
    assert!(missing.is_empty(), "{missing:?}: {:?}", seen.full_names);
}

#[test]
fn no_method_of_3_1_has_the_name_of_another() {
    check_methods_that_go(1);
}

#[test]
fn no_method_of_3_3_has_the_name_of_another() {
    check_methods_that_go(3);
}

/// Records methods that come and go, whose memory others take, while objects move.
fn check_methods_that_go(minor: u32) {
    needs_recording!();
    let ruby = needs_ruby!(minor);
    let _machine = together();
    let target = Target::spawn(ruby.runs("churn.rb"));
    let outcome = record_cpu_and_end(target, Duration::from_secs(4), &ALL_SAMPLES);
    let (mut right, mut named, mut gone) = (0, 0, 0);
    let mut wrong = BTreeMap::<String, u64>::new();
    for_each_stack(&outcome, FrameKind::Ruby, |stack| {
        let mut digit = None;
        for it in stack {
            gone += u64::from(it.is_gone());
            if let Some(number) = it.name.strip_prefix("Object#stub_") {
                digit = number.chars().last();
                continue;
            }
            let is_made = ["made_", "leaf_"].iter().any(|part| it.name.contains(part));
            let Some(digit) = digit.filter(|_| is_made) else { continue };
            let class = it.name.split_once('#').map(|(class, _)| class);
            named += u64::from(class.is_some());
            let parts = [Some(it.name.as_str()), class, it.file.strip_suffix(".rb")];
            let line = digit.to_digit(10).expect("a digit") + 1;
            let is_it = parts.into_iter().flatten().all(|part| part.ends_with(digit));
            let is_it = is_it && (it.line == 0 || (line..line + 7).contains(&it.line));
            match is_it {
                true => right += 1,
                false => *wrong.entry(format!("{digit}: {it:?}")).or_default() += 1,
            }
        }
    });
    let text = outcome.text();
    eprintln!("{right} right, {named} with a class, {gone} gone\n{text}");
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(right > 1000 && named > 100, "{right}, {named}\n{text}");
    assert_eq!(gone > 0, text.contains("without a name"), "each has its reason\n{text}");
}

#[test]
fn shares_in_3_1_are_those_of_the_program() {
    check_shares_of(1);
}

#[test]
fn shares_in_3_3_are_those_of_the_program() {
    check_shares_of(3);
}

fn check_shares_of(minor: u32) {
    needs_recording!();
    let ruby = needs_ruby!(minor);
    let _machine = together();
    check_shares(&format!("Ruby 3.{minor}"), ruby.runs("shares.rb"));
}

/// Checks the callers of these methods, and returns how many calls there are.
fn count_calls(outcome: &Outcome, callers: &[(&str, &str)]) -> u64 {
    let caller_of = |name: &str| callers.iter().find(|(called, _)| *called == name);
    let (mut calls, mut wrong) = (0, BTreeMap::<String, u64>::new());
    for_each_stack(outcome, FrameKind::Ruby, |stack| {
        // Of methods in C, only those whose callers are known.
        let is_known = |it: &&Frame| is_of_program(it) || caller_of(&it.name).is_some();
        let code: Vec<&Frame> = stack.iter().filter(is_known).collect();
        for pair in code.windows(2) {
            let Some((_, by)) = caller_of(&pair[1].name) else { continue };
            calls += 1;
            if *by != pair[0].name {
                *wrong.entry(format!("{} calls {}", pair[0].name, pair[1].name)).or_default() += 1;
            }
        }
    });
    assert!(wrong.is_empty(), "{wrong:#?}\n{}", outcome.text());
    calls
}

/// Checks that nearly all samples have the name of a method.
fn check_named(outcome: &Outcome) {
    let [samples, named] =
        ["samples.ruby", "samples_named.ruby"].map(|key| outcome.trace.number(key));
    assert!(named * 100 >= samples * 99, "{named} of {samples}\n{}", outcome.text());
}

/// The callers of the methods of `compiled.rb`, and of methods in C.
const COMPILED_CALLERS: [(&str, &str); 10] = [
    ("Object#y_one", "Object#y_turns"),
    ("Object#y_two", "Object#y_turns"),
    ("Object#y_in_one", "Object#y_one"),
    ("Object#y_in_two", "Object#y_two"),
    ("Object#y_also_in_two", "Object#y_two"),
    ("Integer#gcd", "Object#y_one"),
    ("Integer#lcm", "Object#y_two"),
    ("Integer#pow", "Object#y_in_two"),
    ("Integer#fdiv", "Object#y_also_in_two"),
    ("Float#floor", "Object#y_also_in_two"),
];

#[test]
fn callers_of_compiled_methods_of_3_1_are_right() {
    check_compiled_callers(1, "--yjit");
}

/// Debian's build has no YJIT.
#[test]
fn callers_of_compiled_methods_of_3_3_are_right() {
    check_compiled_callers(3, "--rjit");
}

/// Compiled code may make frames in another order than the interpreter does.
fn check_compiled_callers(minor: u32, compiler: &str) {
    needs_recording!();
    let ruby = needs_ruby!(minor);
    let _machine = together();
    let mut command = ruby.command(&[compiler]);
    command.arg(script("ruby/compiled.rb"));
    let target = Target::spawn(command);
    let outcome = record_cpu_and_end(target, Duration::from_secs(2), &ALL_SAMPLES);
    let calls = count_calls(&outcome, &COMPILED_CALLERS);
    assert!(calls > 3000, "{calls} calls\n{}", outcome.text());
    // Frames that were not made yet would have none.
    check_named(&outcome);
}

#[test]
fn a_library_that_3_1_loads_is_called_by_what_loads_it() {
    check_loaded_library(1);
}

#[test]
fn a_library_that_3_3_loads_is_called_by_what_loads_it() {
    check_loaded_library(3);
}

/// Records a library in C while it is loaded: the frame that this makes runs no code.
fn check_loaded_library(minor: u32) {
    needs_recording!();
    let ruby = needs_ruby!(minor);
    let _machine = together();
    let flags = ["-shared", "-fPIC", "-Wl,--unresolved-symbols=ignore-all"];
    let library = variant("extension.so", "ruby/extension.c", "cc", &flags);
    let code =
        "def x_called = 5000.times { |i| i & 3 }\nputs 'ready'\n$stdout.flush\nrequire ARGV[0]";
    let mut command = ruby.command(&["--disable-gems", "-e", code]);
    command.arg(library);
    let target = Target::spawn(command);
    let outcome = record_cpu_and_end(target, Duration::from_secs(1), &ALL_SAMPLES);
    let folded = outcome.trace.folded();
    for (called, caller) in [
        ("Init_extension", "Kernel#require"),
        ("x_works", "Init_extension"),
        ("Integer#times", "Object#x_called"),
    ] {
        let (all, right) = (folded.count_of(called), folded.count_of_call(called, caller));
        assert!(all > 100 && right == all, "{right} of {all} in {called}\n{}", outcome.text());
    }
    // Between the two is only the string.
    let is_called = |stack: &&[String]| stack.iter().any(|it| it == "Object#x_called");
    for stack in folded.stacks().map(|(stack, _)| stack).filter(is_called) {
        let place = |name: &str| stack.iter().position(|it| it == name);
        assert_eq!(
            (place("Init_extension"), place("Object#x_called")),
            (Some(2), Some(4)),
            "{stack:?}"
        );
    }
    // What the library does itself is innermost.
    let works = folded.only_with("x_works");
    assert!(works.stacks().all(|(stack, _)| stack.last().is_some_and(|it| it == "x_works")));
}

/// The callers of the methods of `server.rb`.
const PAGE_CALLERS: [(&str, &str); 4] = [
    ("Object#p_page", "block in <main>"),
    ("Object#p_row", "block in p_page"),
    ("Object#p_cell", "block in p_row"),
    ("block in p_cell", "Object#p_cell"),
];

#[test]
fn a_server_of_3_1_has_names() {
    check_server(1);
}

#[test]
fn a_server_of_3_3_has_names() {
    check_server(3);
}

/// Records a server with a thread for each connection.
fn check_server(minor: u32) {
    needs_recording!();
    let ruby = needs_ruby!(minor);
    let _machine = together();
    let port = free_port();
    let mut command = ruby.runs("server.rb");
    command.arg(port.to_string()).stderr(Stdio::null());
    let mut server = Served(command.spawn().expect("a server"));
    let asks = move |number| asks_http(port, &format!("page?number={number}"));
    assert!(wait_until(Duration::from_secs(20), || asks(1)), "it answers");
    let clients = [Client::start(asks), Client::start(asks)];
    let outcome = record_cpu(server.0.id() as i32, Duration::from_secs(3), &ALL_SAMPLES);
    let answers: u64 = clients.into_iter().map(Client::finish).sum();
    assert!(answers > 10, "{answers} answers");
    let calls = count_calls(&outcome, &PAGE_CALLERS);
    assert!(calls > 3000, "{calls} calls\n{}", outcome.text());
    check_named(&outcome);
    assert!(server.0.try_wait().expect("a server").is_none(), "it lives");
}

/// `stacks` shows the methods of a program that sleeps, and `doctor` names the interpreter.
#[test]
fn stacks_and_doctor_know_the_interpreter() {
    let all = Ruby::all();
    if all.is_empty() {
        skip!("ruby 3.1: not installed");
    }
    let _machine = together();
    for ruby in all {
        check_sleeping(&ruby);
    }
}

fn check_sleeping(ruby: &Ruby) {
    let code = "module Waits\n\
                def self.inner = sleep(60)\n\
                def self.outer\n [1].each do |x|\n inner\n end\n end\n\
                end\n\
                puts 'ready'\n\
                $stdout.flush\n\
                Waits.outer";
    let target = Target::spawn(ruby.command(&["-e", code]));
    let pid = target.pid().to_string();
    let output = traceprof(&["stacks", "--json", "--pid", &pid]).output().expect("stacks");
    let seen: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    let frames = seen["threads"][0]["frames"].as_array().expect("frames");
    let ruby_frames = frames.iter().filter(|frame| frame["kind"] == "ruby");
    let found: Vec<(&str, u64)> = ruby_frames
        .map(|frame| {
            let name = frame["function"].as_str().expect("a name");
            (name, frame["line"].as_u64().unwrap_or(0))
        })
        .collect();
    let expected = [
        ("Kernel#sleep", 0),
        ("Waits.inner", 2),
        ("block in outer", 5),
        ("Array#each", 0),
        ("Waits.outer", 4),
        ("<main>", 11),
    ];
    assert_eq!(found, expected, "{seen}");
    let output = traceprof(&["doctor", "--pid", &pid]).output().expect("doctor");
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text
        .lines()
        .find(|line| line.contains(&format!("Ruby 3.{}.", ruby.minor)))
        .unwrap_or_default();
    assert!(line.ends_with(": functions, lines"), "{text}");
}
