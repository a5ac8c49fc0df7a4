//! Interpreters that change, end, begin or are damaged while they are recorded.

use std::collections::BTreeMap;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::recorded::python_stacks;
use crate::common::{
    Folded, Minor, OWN_EXIT_CODE, Outcome, Python, Random, Recorder, Target, Trace, is_long_run,
    needs_recording, record_cpu, record_cpu_and_end, script, skip, together, traceprof, variant,
};

/// The versions whose structures differ most from each other.
const VERSIONS: [Minor; 4] = [8, 11, 12, 13];
const OPTIONS: [&str; 3] = ["--freq", "5000", "--no-kernel"];

fn cpu_wanted() -> Duration {
    Duration::from_secs(if is_long_run() { 20 } else { 2 })
}

/// Returns the interpreters of the versions in [`VERSIONS`]. Without `--long`, returns one, which the
/// seed chooses.
fn interpreters() -> Vec<Python> {
    let mut found: Vec<Python> = VERSIONS.into_iter().flat_map(Python::of).collect();
    if !is_long_run() && !found.is_empty() {
        let chosen = Random::new(22).below(found.len() as u64);
        found = vec![found.swap_remove(chosen as usize)];
    }
    assert!(!found.is_empty(), "no Python: scripts/test installs some");
    found
}

/// Returns how many stacks have `inner_N` under another function than `made_N`, and how many have
/// both.
fn wrong_pairs(folded: &Folded) -> (u64, u64, Vec<String>) {
    let (mut wrong, mut right, mut examples) = (0, 0, Vec::new());
    for (stack, count) in folded.stacks() {
        for at in 0..stack.len() {
            let Some(number) = stack[at].strip_prefix("inner_") else { continue };
            let caller = at.checked_sub(1).map_or("", |below| stack[below].as_str());
            if caller.strip_prefix("made_") == Some(number) {
                right += count;
            } else {
                wrong += count;
                examples.push(stack.join(";"));
            }
        }
    }
    (wrong, right, examples)
}

#[test]
fn pairs_of_a_function_and_its_caller() {
    let folded = Folded::parse("made_1;inner_1 3\nmade_2;inner_1 2\ninner_3 1\nmade_4 5\n");
    let (wrong, right, examples) = wrong_pairs(&folded);
    assert_eq!((wrong, right, examples.len()), (3, 3, 2));
}

/// The memory of each function is used again a millisecond later.
#[test]
fn functions_that_die_at_once_have_no_name_of_another() {
    needs_recording!();
    let _machine = together();
    for python in interpreters() {
        let target = Target::spawn(python.script("churn.py"));
        let outcome = record_cpu_and_end(target, cpu_wanted(), &OPTIONS);
        let folded = python_stacks(&outcome.trace.path());
        let (wrong, right, examples) = wrong_pairs(&folded);
        eprintln!("{python}: {right} of {} right, {wrong} wrong", folded.total());
        // A frame without a name, which the trace shows as such, is no wrong name.
        let is_wrong = |stack: &&String| !stack.contains('[');
        let examples: Vec<_> = examples.iter().filter(is_wrong).take(5).collect();
        assert!(examples.is_empty(), "{python}: {examples:#?}\n{}", outcome.text());
        // How many are read in time depends on the processors that the recorder gets.
        assert!(right * 5 > folded.total(), "{python}: {right} are named\n{}", outcome.text());
    }
}

#[test]
fn an_interpreter_that_ends_is_recorded_to_its_end() {
    needs_recording!();
    let _machine = together();
    for python in interpreters() {
        for milliseconds in ["200", "700"] {
            let mut command = python.script("finalize.py");
            command.arg(milliseconds);
            let mut target = Target::spawn(command);
            let pid = target.pid().to_string();
            let recorder = Recorder::start(&[&["--pid", &pid][..], &OPTIONS].concat());
            let outcome = recorder.finish();
            let text = outcome.text();
            assert_eq!(target.wait().code(), Some(OWN_EXIT_CODE), "{python}: {text}");
            assert!(!text.contains("panicked"), "{python}: {text}");
            // It may have ended before the attach.
            if outcome.code() != Some(0) {
                assert!(matches!(outcome.code(), Some(4 | 7)), "{python}: {text}");
                continue;
            }
            let folded = python_stacks(&outcome.trace.path());
            let callers = ["busy_0", "<module>", "Late.__del__", "__del__", "at_exit", "["];
            let right = callers.map(|caller| folded.count_of_call("busy_1", caller));
            let all = folded.count_of("busy_1");
            assert_eq!(right.iter().sum::<u64>(), all, "{python}: {right:?}\n{text}");
        }
    }
}

/// Returns the counts of stacks with each of these functions that are called by the other function
/// of the pair.
fn pairs(folded: &Folded, names: &[&str]) -> BTreeMap<String, (u64, u64)> {
    let count = |name: &&str| {
        let [inner, outer] = ["_1", "_0"].map(|number| format!("{name}{number}"));
        let wrong = folded.count_with_other_caller(&inner, &outer);
        ((*name).to_owned(), (folded.count_of(&inner), wrong))
    };
    names.iter().map(count).collect()
}

#[test]
fn processes_that_fork_in_a_thread_or_are_spawned_are_named() {
    needs_recording!();
    let _machine = together();
    for python in interpreters() {
        let target = Target::spawn(python.script("fork_thread.py"));
        let pid = target.pid().to_string();
        let options = ["--pid", &pid, "--subprocesses"];
        let mut recorder = Recorder::start(&[&options[..], &OPTIONS].concat());
        recorder.wait_until_attached(target.pid());
        // The others never sleep, so they use more: enough for one of them to start as well.
        recorder.wait_for_cpu(target.pid(), Duration::from_secs(1));
        recorder.send(Signal::SIGINT);
        let outcome = recorder.finish().expect_code(0);
        target.send(Signal::SIGTERM);
        let pairs =
            pairs(&python_stacks(&outcome.trace.path()), &["child", "parent", "forked", "spawned"]);
        for (name, (count, wrong)) in &pairs {
            assert_eq!(*wrong, 0, "{python}: {name} of {pairs:?}\n{}", outcome.text());
            assert!(*count > 20, "{python}: {name} of {pairs:?}\n{}", outcome.text());
        }
    }
}

/// A shell that executes Python is recorded from Python's first line on.
#[test]
fn a_shell_that_becomes_python_is_named() {
    needs_recording!();
    let _machine = together();
    for python in interpreters() {
        let trace = Trace::new();
        let mut record = traceprof(&["record", "--stats", "--freq", "2000", "--output"]);
        record.arg(trace.path()).args(["--", "sh"]).arg(script("python/late.sh"));
        let late = python.script("late.py");
        record.arg(late.get_program()).args(late.get_args());
        for (name, value) in late.get_envs() {
            // The recorder and the shell run with these, too.
            match value {
                Some(value) if name != "LD_PRELOAD" => record.env(name, value),
                _ => record.env_remove(name),
            };
        }
        if late.get_envs().any(|(name, _)| name == "LD_PRELOAD") {
            continue;
        }
        let outcome = Outcome { output: record.output().expect("traceprof"), trace };
        check_late(&python.to_string(), &outcome);
    }
}

/// `record -- python3 x.py` names the first line of the script, too.
#[test]
fn python_that_is_started_is_named_from_its_first_line() {
    needs_recording!();
    let Some(python) = Python::of_system() else {
        skip!("python 3: not installed");
    };
    let _machine = together();
    let trace = Trace::new();
    let mut record = traceprof(&["record", "--stats", "--freq", "2000", "--output"]);
    record.arg(trace.path()).arg("--").arg(python.program()).arg(script("python/late.py"));
    let outcome = Outcome { output: record.output().expect("traceprof"), trace };
    check_late(&python.to_string(), &outcome);
}

/// Checks that the work of `late.py` in its module and in its functions has about the same share.
fn check_late(python: &str, outcome: &Outcome) {
    let folded = python_stacks(&outcome.trace.path());
    let inner = folded.count_of("late_1");
    let module = folded.count_of("<module>") - folded.count_of_both("<module>", "late_0");
    let text = outcome.text();
    assert_eq!(folded.count_with_other_caller("late_1", "late_0"), 0, "{python}: {text}");
    assert!(inner > 50, "{python}: {inner}\n{text}");
    // Global variables cost more than local ones.
    assert!(module * 10 > inner * 5, "{python}: {module} and {inner}\n{text}");
}

/// The interpreter's structures are wild while samples are taken, names are read, and stacks are
/// read from outside.
#[test]
fn a_damaged_interpreter_harms_neither_itself_nor_the_recorder() {
    needs_recording!();
    let _machine = together();
    let library = variant("scribble.so", "python/scribble.c", "cc", &["-shared", "-fPIC"]);
    for python in interpreters() {
        let mut command = python.script("scribble.py");
        command.arg(&library);
        let mut target = Target::spawn(command);
        let pid = target.pid().to_string();
        for round in 0..if is_long_run() { 20 } else { 2 } {
            for _ in 0..4 {
                let stacks = traceprof(&["stacks", "--json", "--pid", &pid]).output().unwrap();
                let text = String::from_utf8_lossy(&stacks.stderr);
                assert!(stacks.status.success(), "{python}: {}\n{text}", stacks.status);
            }
            let outcome = record_cpu(target.pid(), Duration::from_millis(700), &OPTIONS);
            assert!(outcome.trace.number("samples") > 100, "{python}: {}", outcome.text());
            assert!(!target.has_exited(), "{python}: in round {round}\n{}", outcome.text());
            outcome.trace.folded();
        }
        target.goes_on_and_ends_by_itself();
        assert!(target.fact("hits") > 100, "{python}: {:?}", target.facts());
        assert_eq!(target.fact("wrong"), 0, "{python}: {:?}", target.facts());
    }
}
