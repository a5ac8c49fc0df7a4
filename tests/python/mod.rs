//! Interpreters of Python: the names and callers of their frames, against what the programs must
//! show and against py-spy, for each version.

mod callers;
mod deep;
mod functions;
mod gil;
mod gil_views;
mod hostile;
mod load;
mod lockstep;
mod placed;
mod processor_time;
mod recorded;
mod tasks;
mod thread_names;
mod witness;
mod work;

use std::time::Duration;

use callers::Tally;
use lockstep::Way;
use recorded::python_stacks;
use witness::PySpy;

use nix::sys::signal::Signal;

use crate::common::{
    Build, Minor, Python, Recorder, Target, is_long_run, needs_recording, record_cpu_and_end, skip,
    together,
};

/// Sampling rate of the recordings: a prime.
const HZ: u64 = 9973;
/// Sampling rate of py-spy, in long runs and in others.
const WITNESS_HZ: [u32; 2] = [100, 250];

/// Returns the number of samples of each program.
fn samples_wanted() -> u64 {
    if is_long_run() { 100_000 } else { 20_000 }
}

/// Records `callers.py` with the interpreters of a version, while py-spy does, too.
fn check_callers(minor: Minor) {
    check_callers_of(minor, Build::Usual);
}

fn check_callers_of(minor: Minor, build: Build) {
    needs_recording!();
    let pythons = Python::of_build(minor, build);
    if pythons.is_empty() {
        skip!("python 3.{minor} ({build:?}): not installed");
    }
    let Some(py_spy) = witness::command() else {
        skip!("py-spy: not installed");
    };
    let _machine = together();
    for python in pythons {
        let target = Target::spawn(python.script("callers.py"));
        let (pid, freq) = (target.pid().to_string(), HZ.to_string());
        let mut recorder = Recorder::start(&["--pid", &pid, "--freq", &freq, "--no-kernel"]);
        recorder.wait_until_attached(target.pid());
        let rate = WITNESS_HZ[usize::from(!is_long_run())];
        let start = || PySpy::start(&py_spy, target.pid(), rate, &[]);
        let mut witness = python.is_own_program().then(start);
        let cpu = Duration::from_nanos(samples_wanted() * 1_000_000_000 / HZ);
        recorder.wait_for_cpu_and(target.pid(), cpu, || PySpy::end_if_it_hangs(&mut witness));
        let theirs = witness.and_then(PySpy::finish);
        recorder.send(Signal::SIGINT);
        let outcome = recorder.finish().expect_code(0);
        let (ours, what) = (python_stacks(&outcome.trace.path()), python.to_string());
        let kinds = target.facts().get("kinds").expect("kinds").split(',');
        if let Some(theirs) = theirs {
            let witness = Tally::of(&theirs, minor);
            // py-spy may stop a thread between two steps of a call.
            assert!(witness.wrong * 200 <= witness.total, "py-spy of {what}: {witness:?}");
            assert!(witness.own * 10 > witness.total * 9, "py-spy of {what}: {witness:?}");
        }
        let tally = Tally::of(&ours, minor);
        tally.assert_right(&what, kinds);
        assert!(tally.cut * 1000 <= tally.total, "{what}: {tally:?}\n{}", outcome.text());
        assert!(tally.own * 20 > tally.total * 19, "{what}: {tally:?}\n{}", outcome.text());
        let Tally { total, cut, .. } = tally;
        let text = outcome.text();
        let [samples, rooted] = ["samples", "rooted"].map(|key| outcome.trace.number(key));
        assert!(rooted * 100 >= samples * 99, "{what}: {text}");
        let rooted = text.lines().find(|line| line.starts_with("samples")).unwrap_or("?");
        eprintln!("{what}: {total} stacks, {cut} cut, all callers right; {rooted}");
    }
}

/// Compares the stacks of a program that holds still and tells them, with the interpreters of a
/// version.
fn check_lockstep(minor: Minor, way: Way) {
    needs_recording!();
    let pythons = Python::of(minor);
    if pythons.is_empty() {
        skip!("python 3.{minor}: not installed");
    }
    let _machine = together();
    for python in pythons {
        let compared = lockstep::check(&python, way);
        eprintln!("{python}: {compared} stacks are equal");
    }
}

#[test]
fn callers_in_3_8_are_right() {
    check_callers(8);
}

#[test]
fn callers_in_3_9_are_right() {
    check_callers(9);
}

#[test]
fn callers_in_3_10_are_right() {
    check_callers(10);
}

#[test]
fn callers_in_3_11_are_right() {
    check_callers(11);
}

#[test]
fn callers_in_3_12_are_right() {
    check_callers(12);
}

#[test]
fn callers_in_3_13_are_right() {
    check_callers(13);
}

#[test]
fn callers_in_3_14_are_right() {
    check_callers(14);
}

#[test]
fn stacks_in_3_8_are_what_the_program_tells() {
    check_lockstep(8, Way::Stacks);
}

#[test]
fn stacks_in_3_9_are_what_the_program_tells() {
    check_lockstep(9, Way::Stacks);
}

#[test]
fn stacks_in_3_10_are_what_the_program_tells() {
    check_lockstep(10, Way::Stacks);
}

#[test]
fn stacks_in_3_11_are_what_the_program_tells() {
    check_lockstep(11, Way::Stacks);
}

#[test]
fn stacks_in_3_12_are_what_the_program_tells() {
    check_lockstep(12, Way::Stacks);
}

#[test]
fn stacks_in_3_13_are_what_the_program_tells() {
    check_lockstep(13, Way::Stacks);
}

#[test]
fn stacks_in_3_14_are_what_the_program_tells() {
    check_lockstep(14, Way::Stacks);
}

/// Another C library, with another place of a thread's own values.
#[test]
fn callers_in_3_12_with_musl_are_right() {
    check_callers_of(12, Build::Musl);
}

/// This build is not supported, which the recording says. It has native stacks, and no wrong frame.
#[test]
fn an_interpreter_without_its_lock_is_refused_by_name() {
    needs_recording!();
    let pythons = Python::of_build(14, Build::FreeThreaded);
    if pythons.is_empty() {
        skip!("python 3.14 without its lock: not installed");
    }
    let _machine = together();
    for python in pythons {
        let target = Target::spawn(python.script("callers.py"));
        let outcome = record_cpu_and_end(target, Duration::from_millis(500), &["--freq", "1999"]);
        let (text, ours) = (outcome.text(), python_stacks(&outcome.trace.path()));
        assert!(text.contains("free-threaded"), "{python}: {text}");
        assert!(text.contains("see Python in traceprof-runtimes(7)"), "{python}: {text}");
        assert!(ours.stacks().all(|(stack, _)| stack == [""]), "{python}: {text}");
        assert!(outcome.trace.folded().count_of("Py_RunMain") > 100, "{python}: {text}");
    }
}

#[test]
fn samples_in_3_8_are_what_the_program_tells() {
    check_lockstep(8, Way::Recording);
}

#[test]
fn samples_in_3_9_are_what_the_program_tells() {
    check_lockstep(9, Way::Recording);
}

#[test]
fn samples_in_3_10_are_what_the_program_tells() {
    check_lockstep(10, Way::Recording);
}

#[test]
fn samples_in_3_11_are_what_the_program_tells() {
    check_lockstep(11, Way::Recording);
}

#[test]
fn samples_in_3_12_are_what_the_program_tells() {
    check_lockstep(12, Way::Recording);
}

#[test]
fn samples_in_3_13_are_what_the_program_tells() {
    check_lockstep(13, Way::Recording);
}

#[test]
fn samples_in_3_14_are_what_the_program_tells() {
    check_lockstep(14, Way::Recording);
}
