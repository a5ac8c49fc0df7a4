//! Go programs that call C, which calls Go back. Every function has one caller, and each stack
//! is checked from its innermost function of the program to its root.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use traceprof::trace::{self, LoadedTrace, LocationId};
use traceprof_abi::unwind::EndReason;

use crate::common::{
    Outcome, Target, go_program_of, has_command, needs_recording, newest_go, record_cpu_and_end,
    skip, together,
};

/// The functions of Go's runtime between a stub in C and the stub in Go that calls it.
const INTO_C: [&str; 2] = ["runtime.asmcgocall", "runtime.cgocall"];
/// Those between a stub in Go and the stub in C that calls it. Some releases have one of them
/// twice, once for each way to pass arguments.
const INTO_GO: [&str; 4] =
    ["runtime.cgocallbackg1", "runtime.cgocallbackg", "runtime.cgocallback", "crosscall2"];
/// Functions in C, and the functions in Go that call their stubs.
const CALLERS_IN_GO: [(&str, &[&str]); 11] = [
    ("parent_plain", &["main.rootPlain"]),
    ("parent_general", &["main.rootGeneral"]),
    ("parent_sorted", &["main.rootSorted"]),
    ("parent_kernel", &["main.rootKernel"]),
    ("parent_clock", &["main.rootClock"]),
    ("parent_back", &["main.rootBack"]),
    ("parent_moved", &["main.rootMoved"]),
    ("parent_outer", &["main.rootOuter"]),
    ("parent_inner", &["main.calledOuter"]),
    ("parent_nested", &["main.rootNested", "main.calledNested"]),
    ("parent_thread", &["main.calledThread"]),
];
/// Functions in Go, and the functions in C that call their stubs.
const CALLERS_IN_C: [(&str, &str); 5] = [
    ("calledBack", "parent_back"),
    ("calledMoved", "parent_moved"),
    ("calledOuter", "parent_outer"),
    ("calledNested", "parent_nested"),
    ("calledThread", "root_thread"),
];
/// Functions that take time.
const BUSY: [&str; 11] = [
    "leaf_plain",
    "leaf_general",
    "leaf_sorted",
    "parent_clock",
    "leaf_back",
    "main.leafBack",
    "leaf_moved",
    "leaf_inner",
    "leaf_nested",
    "leaf_thread",
    "main.leafThread",
];

/// What follows a frame in a stack, innermost first: the names up to the next frame of the program.
enum Follows {
    /// These names. Each of the last ones is possible.
    Names(Vec<String>, Vec<String>),
    /// Functions of libraries, and then this one.
    Through(&'static str),
    /// No frame of the program, up to the root of a thread.
    Start,
}

/// Returns what must follow a frame of the program, and `None` for other frames.
fn follows(name: &str) -> Option<Follows> {
    let names = |names: &[&str], last: &[&str]| {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Some(Follows::Names(owned(names), owned(last)))
    };
    let in_go = |function: &str| CALLERS_IN_GO.iter().find(|(called, _)| *called == function);
    let in_c = |function: &str| CALLERS_IN_C.iter().find(|(called, _)| *called == function);
    if let Some(function) = name.strip_prefix("_cgo_Cfunc_") {
        let stub = format!("main._Cfunc_{function}");
        return names(&INTO_C, &[&stub]);
    }
    if let Some(function) = name.strip_prefix("main._Cfunc_") {
        return names(&[], in_go(function)?.1);
    }
    if let Some(function) = name.strip_prefix("_cgoexp_") {
        return names(&INTO_GO, &[function]);
    }
    if let Some((called, caller)) = in_c(name) {
        return names(&[], &[caller]).filter(|_| called.starts_with("called"));
    }
    match name {
        "runtime.goexit" | "root_thread" => Some(Follows::Start),
        "main.repeat.func1" => names(&[], &["runtime.goexit"]),
        "leaf_sorted" => Some(Follows::Through("parent_sorted")),
        "main.leafBack" => names(&[], &["main.calledBack"]),
        "main.leafMoved" => names(&[], &["main.leafMoved", "main.calledMoved"]),
        "main.leafThread" => names(&[], &["main.calledThread"]),
        _ => match (name.strip_prefix("main."), name.split_once('_')) {
            (Some(function), _) if in_c(function).is_some() => {
                names(&[], &[&format!("_cgoexp_{function}")])
            }
            (Some(function), _) if function.starts_with("root") => {
                names(&[], &["main.repeat.func1"])
            }
            (_, Some(("parent", _))) => names(&[], &[&format!("_cgo_Cfunc_{name}")]),
            (_, Some(("leaf", function))) => names(&[], &[&format!("parent_{function}")]),
            _ => None,
        },
    }
}

/// Returns what is wrong with a stack, whose names are innermost first and whose end is a root.
fn fault(names: &[String]) -> Option<String> {
    let mut at = names.iter().position(|name| follows(name).is_some())?;
    loop {
        let wrong = || Some(format!("{} has another caller", names[at]));
        let next = match follows(&names[at]) {
            None => return wrong(),
            Some(Follows::Start) => {
                return names[at + 1..].iter().any(|it| follows(it).is_some()).then(wrong)?;
            }
            Some(Follows::Through(function)) => {
                let own = names[at + 1..].iter().position(|it| follows(it).is_some());
                own.filter(|own| *own > 0 && names[at + 1 + own] == function).map(|own| own + 1)
            }
            Some(Follows::Names(middle, last)) => {
                let end = at + 1 + middle.len();
                let is_right = names.get(at + 1..end).is_some_and(|it| it == middle)
                    && names.get(end).is_some_and(|it| last.contains(it));
                is_right.then_some(1 + middle.len())
            }
        };
        let Some(next) = next else { return wrong() };
        at += next;
    }
}

/// Returns a function's name without what differs between builds.
fn name(trace: &LoadedTrace, id: LocationId) -> String {
    let location = &trace.locations[id.0 as usize];
    let name = &trace.methods[location.method.0 as usize].name;
    for stub in ["_cgo_", "_cgoexp_"] {
        if let Some((hash, rest)) = name.strip_prefix(stub).and_then(|it| it.split_once('_'))
            && hash.len() == 12
        {
            return format!("{stub}{rest}");
        }
    }
    name.clone()
}

/// Checks every stack that ends at a root. Returns the number of all samples, of those that do not
/// end at a root, and of those by function.
fn check(path: &Path) -> (u64, BTreeMap<String, u64>, BTreeMap<String, u64>) {
    let trace = trace::load(path).expect("a trace");
    let (mut samples, mut cut, mut by_function) = (0, BTreeMap::new(), BTreeMap::new());
    let mut wrong = BTreeMap::new();
    for thread in &trace.threads {
        thread.for_each_sample(&mut |sample, stack| {
            samples += 1;
            let mut names: Vec<_> = stack.iter().rev().map(|id| name(&trace, *id)).collect();
            names.dedup_by(|other, name| other == name && name.starts_with("runtime.cgocallback"));
            if let Some(own) = names.iter().find(|name| follows(name).is_some()) {
                *by_function.entry(own.clone()).or_default() += 1;
            }
            let end = EndReason::from_number(sample.end_reason);
            if end != Some(EndReason::Root) {
                let text = format!("{} [{}]", names.join(" < "), end.map_or("", EndReason::name));
                *cut.entry(text).or_default() += 1;
            } else if let Some(fault) = fault(&names) {
                *wrong.entry(format!("{fault}: {}", names.join(" < "))).or_default() += 1;
            }
        });
    }
    let sum: u64 = wrong.values().sum();
    assert_eq!(sum, 0, "of {samples}: {wrong:#?}");
    (samples, cut, by_function)
}

/// Records the program built with this compiler, and checks ten thousand stacks.
fn stacks_cross(go: Option<&Path>, name: &str, options: &[&str]) {
    needs_recording!();
    let Some(go) = go.filter(|_| has_command("gcc")) else {
        skip!("go or gcc: not installed");
    };
    let _machine = together();
    let program = go_program_of(go, name, &["cgo/main.go", "cgo/natives.go"], options);
    let target = Target::spawn(Command::new(program));
    // For an expiry in the kernel, only the stack on which the system call was made is known.
    let options = ["--freq", "5000", "--no-kernel"];
    let outcome: Outcome = record_cpu_and_end(target, Duration::from_millis(2000), &options);
    let (samples, cut, by_function) = check(&outcome.trace.path());
    for function in BUSY {
        let count = by_function.get(function).copied().unwrap_or(0);
        assert!(count > 10, "{function} has {count} of {samples}: {by_function:?}");
    }
    let count: u64 = cut.values().sum();
    assert!(count * 1000 <= samples, "{count} of {samples} end early: {cut:#?}");
}

#[test]
fn stacks_cross_from_go_to_c_and_back() {
    stacks_cross(has_command("go").then_some(Path::new("go")), "cgo", &[]);
}

#[test]
fn stacks_of_a_stripped_program_at_any_address_cross() {
    let options = ["-buildmode=pie", "-ldflags=-s -w"];
    stacks_cross(has_command("go").then_some(Path::new("go")), "cgo-pie", &options);
}

#[test]
fn stacks_of_the_newest_go_cross() {
    stacks_cross(newest_go().as_deref(), "cgo-newest", &[]);
}
