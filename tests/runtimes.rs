//! Runtimes with generated code and their own stacks: callers, names and roots, each with the real
//! runtime.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use traceprof::trace::{LazyTrace, Location};

use crate::common::{
    Folded, Outcome, Target, go_program_by, has_command, java_classes, needs_recording, newest_go,
    program, record_cpu, record_cpu_and_end, scratch_dir, script, skip, together,
};

/// Least number of samples, of a thousand, that must reach a root.
const ROOTED: u64 = 999;
/// Standard deviations of chance that a test permits: one test in a million fails by chance.
const CHANCE: f64 = 5.0;
/// A function that makes and removes its frame has no frame for some instructions. At most this
/// share of its samples may be there. The share depends on the processor, which decides at which
/// instruction a signal arrives.
const FRAMELESS_PERCENT: f64 = 10.0;

/// Every caller that is in the source, and no other.
const GO_CALLERS: [(&str, &str); 14] = [
    ("main.leafShort", "main.parentShort"),
    ("main.parentShort", "main.rootShort"),
    ("main.rootShort", "runtime.goexit"),
    ("main.inlinedInner", "main.inlinedOuter"),
    ("main.inlinedOuter", "main.parentInlined"),
    ("main.parentInlined", "main.rootInlined"),
    ("main.parentDeep", "main.rootDeep"),
    ("main.leafTime", "main.parentTime"),
    ("main.parentTime", "main.rootTime"),
    ("main.rootTime", "runtime.goexit"),
    ("time.Now", "main.leafTime"),
    ("main.leafMake", "main.parentMake"),
    ("main.parentMake", "main.rootMake"),
    ("main.rootMake", "runtime.goexit"),
];

fn rooted_per_mille(outcome: &Outcome) -> u64 {
    1000 * outcome.trace.number("rooted") / outcome.trace.number("samples").max(1)
}

/// Checks that enough samples reach a root, with room for chance.
fn assert_rooted(outcome: &Outcome) {
    let [samples, rooted] = ["samples", "rooted"].map(|key| outcome.trace.number(key));
    let expected = (samples * (1000 - ROOTED)) as f64 / 1000.0;
    let most = expected + CHANCE * expected.sqrt();
    let others = samples - rooted;
    assert!(others as f64 <= most, "{others} of {samples} end early\n{}", outcome.text());
}

/// Checks the callers of twenty thousand samples, none of which may be wrong.
fn go_callers_are_exact(go: Option<&Path>, name: &str, options: &[&str]) {
    needs_recording!();
    let Some(go) = go else {
        skip!("go: not installed");
    };
    let _machine = together();
    let program = go_program_by(go, name, "unique.go", options);
    let target = Target::spawn(Command::new(program));
    // For an expiry in the kernel, only the stack on which the system call was made is known.
    let options = ["--freq", "10000", "--no-kernel"];
    let outcome = record_cpu_and_end(target, Duration::from_millis(2500), &options);
    let folded = outcome.trace.folded();
    for (function, caller) in GO_CALLERS {
        assert!(folded.count_of(function) > 10, "{function} is rare\n{}", outcome.text());
        let wrong = folded.count_with_other_caller(function, caller);
        assert_eq!(wrong, 0, "{function} is called only by {caller}\n{}", outcome.text());
    }
    // Closures run on the system stack: f.func1 in f, or g.f.func1 where f is inlined into g.
    let (right, all) = folded.count_around("runtime.systemstack", |caller, called| {
        let outer = called.rsplit_once(".func")?.0;
        let short = caller.strip_prefix("runtime").unwrap_or(caller);
        Some(outer == caller || outer.ends_with(short))
    });
    assert!(
        all > 10 && right == all,
        "{right} of {all} are called by their own function\n{}",
        outcome.text()
    );
    assert!(folded.count_of("clock_gettime") > 10, "the vDSO is called from the system's stack");
    assert_rooted(&outcome);
    let trace = LazyTrace::open(&outcome.trace.path()).expect("a trace");
    let locations = trace.load_objects().expect("locations").locations;
    let is_unique_go = |file: &str| file.ends_with("unique.go");
    let is_known = |it: &Location| it.line > 0 && it.file.as_deref().is_some_and(is_unique_go);
    assert!(locations.iter().any(is_known), "files and lines are known");
}

fn usual_go() -> Option<&'static Path> {
    has_command("go").then_some(Path::new("go"))
}

#[test]
fn go_stripped_callers_are_exact() {
    go_callers_are_exact(usual_go(), "unique-stripped", &["-ldflags=-s -w"]);
}

#[test]
fn go_at_any_address_callers_are_exact() {
    go_callers_are_exact(usual_go(), "unique-pie", &["-buildmode=pie", "-ldflags=-s -w"]);
}

/// The layout of its tables differs from that of Debian's Go.
#[test]
fn newest_go_callers_are_exact() {
    let go = newest_go();
    go_callers_are_exact(go.as_deref(), "unique-newest", &["-ldflags=-s -w"]);
    go_callers_are_exact(go.as_deref(), "unique-newest-pie", &["-buildmode=pie"]);
}

/// A file that a target made outside its own directory, which is removed when the value is dropped.
struct Litter(PathBuf);

impl Drop for Litter {
    fn drop(&mut self) {
        // The file may never have been made.
        let _ = std::fs::remove_file(&self.0);
    }
}

fn perf_map_of(target: &Target) -> Litter {
    Litter(PathBuf::from(format!("/tmp/perf-{}.map", target.pid())))
}

/// Returns the share of the stacks with `function`, in percent, in which another function with a
/// name calls it.
fn percent_called_otherwise(folded: &Folded, function: &str, caller: &str) -> f64 {
    let all = folded.count_containing(function);
    let by = |caller| folded.count_of_call(function, caller);
    assert!(all > 100, "{function} is rare: {all}");
    100.0 * all.saturating_sub(by(caller) + by("[unknown]")) as f64 / all as f64
}

/// Checks stacks through V8's own code, whose names V8 writes to a file because of this option.
fn node_names_come_from(option: &str, arguments: &[&str]) {
    needs_recording!();
    if !has_command("node") {
        skip!("node: not installed");
    }
    let _machine = together();
    let folder = scratch_dir();
    let mut node = Command::new("node");
    node.args(["--no-turbo-inlining", "--interpreted-frames-native-stack", option]);
    node.arg(script("hot.js")).args(arguments).current_dir(folder.path());
    let target = Target::spawn(node);
    let _map = perf_map_of(&target);
    let options = ["--freq", "5000", "--no-kernel"];
    let outcome = record_cpu_and_end(target, Duration::from_secs(3), &options);
    assert_rooted(&outcome);
    let folded = outcome.trace.folded();
    let unknown = folded.percent_of("[unknown]");
    assert!(unknown < 2.0, "{unknown} % have code without a name");
    // A sample before a frame is made, or after it is removed, has no caller.
    for (function, caller) in [("leafHot", "parentHot"), ("parentHot", "rootHot")] {
        let wrong = percent_called_otherwise(&folded, function, caller);
        assert!(wrong < FRAMELESS_PERCENT, "{function}: {wrong} %");
    }
    assert!(
        folded.count_of("Builtins_ArrayPrototypeSort") > 10,
        "builtins are part of the program"
    );
}

#[test]
fn node_names_come_from_its_perf_map() {
    node_names_come_from("--perf-basic-prof", &[]);
}

#[test]
fn node_names_come_from_its_dump() {
    // V8 writes two megabytes at a time, so at least that much must follow the names that are
    // checked.
    node_names_come_from("--perf-prof", &["names"]);
}

/// Starts a Java machine with these options, which compiles but does not inline.
fn java_chain(options: &[&str]) -> Target {
    let classes = java_classes("Chain");
    let mut java = Command::new("java");
    java.args(["-Xmx64m", "-XX:CompileCommand=quiet", "-XX:CompileCommand=dontinline,Chain.*"]);
    java.args(options).arg("-cp").arg(classes).arg("Chain");
    Target::spawn(java)
}

fn has_java() -> bool {
    has_command("java") && has_command("javac")
}

#[test]
fn java_needs_no_frame_pointers() {
    needs_recording!();
    if !has_java() {
        skip!("java: not installed");
    }
    let _machine = together();
    let target = java_chain(&[]);
    let outcome = record_cpu(target.pid(), Duration::from_secs(2), &[]);
    assert!(!perf_map_of(&target).0.exists(), "no map was requested");
    let text = outcome.text();
    // A machine starts all of its threads with the system's own function.
    let folded = outcome.trace.folded();
    assert!(folded.roots().iter().all(|root| root.starts_with("clone")), "{:?}", folded.roots());
    assert!(rooted_per_mille(&outcome) > 990, "{text}");
}

/// Every function is at the same address. A sample has the name that the address had at its time.
#[test]
fn code_that_is_written_over_has_the_name_of_its_time() {
    needs_recording!();
    let _machine = together();
    let folder = scratch_dir();
    let mut command = Command::new(program("jit"));
    command.current_dir(folder.path());
    let mut target = Target::spawn(command);
    let options = ["--freq", "2000", "--no-kernel"];
    let outcome = record_cpu(target.pid(), Duration::from_secs(2), &options);
    target.goes_on_and_ends_by_itself();
    let folded = outcome.trace.folded();
    for own in 0..8 {
        let made = format!("made_{own}");
        let right = folded.count_of_call(&made, &format!("caller_{own}"));
        assert!(right > 100, "{right} of {}", folded.count_of(&made));
        for other in (0..8).filter(|other| *other != own) {
            let wrong = folded.count_of_both(&made, &format!("caller_{other}"));
            assert_eq!(wrong, 0, "{made} under caller_{other}, and {right} are right");
        }
    }
    assert!(folded.percent_of("[unknown]") < 0.5, "{}", folded.percent_of("[unknown]"));
    assert_rooted(&outcome);
}

/// The code's callee saves a frame pointer of zero, which ends the chain of frames.
#[test]
fn a_zero_that_a_general_register_held_is_no_root() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("general_rbp", &[]);
    let options = ["--freq", "2000", "--no-kernel"];
    let outcome = record_cpu(target.pid(), Duration::from_secs(1), &options);
    target.goes_on_and_ends_by_itself();
    let folded = outcome.trace.folded();
    assert!(folded.count_of_both("[truncated]", "[unknown]") > 100, "{}", outcome.text());
    assert!(folded.count_of_both("_start", "compiled") > 100, "{}", outcome.text());
    assert_eq!(folded.roots(), BTreeSet::from(["_start"]), "{}", outcome.text());
    let unproven = outcome.trace.number("ended.unproven root");
    assert!(unproven > 100 && outcome.text().contains("unproven root"), "{}", outcome.text());
}

/// Returns a Python that gives each of its functions a trampoline, if there is one: the system's,
/// or one that pyenv installed.
fn python_with_trampolines() -> Option<PathBuf> {
    let root = std::env::var_os("PYENV_ROOT").map(PathBuf::from);
    let root = root.or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".pyenv")));
    let kept = root.and_then(|root| std::fs::read_dir(root.join("versions")).ok());
    let kept = kept.into_iter().flatten().flatten().map(|it| it.path().join("bin/python3"));
    let named = ["python3", "python3.12", "python3.13", "python3.14"].map(PathBuf::from);
    named.into_iter().chain(kept).find(|python| {
        let asked = "import sys; sys.exit(not sys.is_stack_trampoline_active())";
        let output = Command::new(python).args(["-X", "perf", "-c", asked]).output();
        output.is_ok_and(|output| output.status.success())
    })
}

#[test]
fn python_functions_have_names_and_callers() {
    needs_recording!();
    let Some(python) = python_with_trampolines() else {
        skip!("python 3.12: not installed");
    };
    let _machine = together();
    let mut command = Command::new(python);
    command.args(["-X", "perf"]).arg(script("chain.py"));
    let target = Target::spawn(command);
    let _map = perf_map_of(&target);
    let options = ["--freq", "2000", "--no-kernel"];
    let outcome = record_cpu_and_end(target, Duration::from_secs(1), &options);
    assert_rooted(&outcome);
    // The frames that Python keeps, and the native ones of its trampolines.
    for (options, prefix) in [(&[][..], ""), (&["--native-frames"], "py::")] {
        let folded = outcome.trace.folded_with(options);
        let counts = ["leaf", "parent", "root"]
            .map(|it| folded.count_containing(&format!("{prefix}{it}_chain")));
        assert!(counts[0] > 100 && counts.is_sorted(), "each is called by the next: {counts:?}");
        assert_eq!(folded.count_containing("py::") > 0, !prefix.is_empty());
    }
}

/// Code on two stacks: the machine's own functions run on the thread's stack, and all other code on
/// that of the Erlang process.
#[test]
fn erlang_stacks_go_on_behind_functions_of_the_machine() {
    needs_recording!();
    if !has_command("erlc") {
        skip!("erlang: not installed");
    }
    let _machine = together();
    let folder = scratch_dir();
    let compiled =
        Command::new("erlc").arg(script("chain.erl")).current_dir(folder.path()).status();
    assert!(compiled.expect("erlc").success());
    let mut erlang = Command::new("erl");
    erlang.args(["+JPperf", "true", "+S", "1", "-noshell", "-s", "chain", "main"]);
    erlang.current_dir(folder.path());
    let target = Target::spawn(erlang);
    let _map = perf_map_of(&target);
    let options = ["--freq", "2000", "--no-kernel"];
    let outcome = record_cpu_and_end(target, Duration::from_secs(2), &options);
    let folded = outcome.trace.folded();
    // The scheduler's work between two processes has no frame to start from. The root of a process
    // whose stack has just moved is overwritten.
    let scheduler = folded.count_of_both("[truncated]", "global::process_main");
    let lost = folded.count_of("[truncated]") - scheduler;
    assert!(lost * 10 < folded.total(), "{lost} end early\n{}", outcome.text());
    // The function to which the first one of each process returns.
    let exit = "erts_beamasm:normal_exit/0-CodeInfoPrologue";
    let roots = folded.roots();
    let is_known = |root: &str| root.trim_start_matches('$') == exit || root.starts_with("clone");
    assert!(roots.iter().all(|root| is_known(root)), "{roots:?}");
    let unknown = folded.percent_of("[unknown]");
    assert!(unknown < 1.0, "{unknown} % have code without a name");
    for (function, caller) in [
        ("chain:leaf_chain/2", "chain:parent_chain/1"),
        ("chain:parent_chain/1", "chain:root_chain/2"),
        ("chain:root_chain/2", "chain:loop/1"),
        ("chain:parent_turn/2", "chain:root_turn/2"),
        ("chain:root_turn/2", "chain:loop/1"),
        ("lists_reverse_2", "global::call_light_bif_shared"),
        ("global::call_light_bif_shared", "chain:parent_turn/2"),
    ] {
        let wrong = percent_called_otherwise(&folded, function, caller);
        // Before its first instruction and after its last a function has no frame record. The stack
        // then has its caller's caller.
        assert!(wrong < FRAMELESS_PERCENT, "{function}: {wrong} %");
    }
}

/// Records a program of LuaJIT, with arithmetic and functions of the interpreter.
fn luajit_stacks_reach_the_root(option: &str) {
    needs_recording!();
    if !has_command("luajit") {
        skip!("luajit: not installed");
    }
    let _machine = together();
    let mut luajit = Command::new("luajit");
    luajit.arg(option).arg(script("chain.lua"));
    let target = Target::spawn(luajit);
    let options = ["--freq", "5000", "--no-kernel"];
    assert_rooted(&record_cpu_and_end(target, Duration::from_secs(1), &options));
}

#[test]
fn luajit_stacks_of_its_interpreter_reach_the_root() {
    // Half of the stacks start in LuaJIT's arithmetic, whose unwind information is wrong.
    luajit_stacks_reach_the_root("-joff");
}

#[test]
fn luajit_stacks_of_compiled_code_reach_the_root() {
    luajit_stacks_reach_the_root("-jon");
}
