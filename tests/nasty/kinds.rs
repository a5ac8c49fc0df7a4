//! Targets by their compiler, their number of threads, and their use of stacks and signals.

use std::process::Command;

use super::{Proof, left_alone};
use crate::common::{
    Target, go_program, has_command, is_long_run, java_classes, needs_recording, program, script,
    skip, together, variant,
};

/// Where a compiler with its own libc finds the kernel's headers.
const KERNEL_HEADERS: [&str; 4] =
    ["-idirafter", "/usr/include", "-idirafter", "/usr/include/x86_64-linux-gnu"];
const VICTIMS: &str = "../../src/inject/tests/victims/";

/// One test for each kind, skipped if one of its tools is missing.
macro_rules! kinds {
    ($($(#[$note:meta])* $name:ident $tools:expr => $proof:expr;)*) => { $(
        $(#[$note])*
        #[test]
        fn $name() {
            needs_recording!();
            let tools: &[&str] = &$tools;
            if let Some(tool) = tools.iter().find(|tool| !has_command(tool)) {
                skip!("{tool}: not installed");
            }
            let _machine = together();
            $proof.survives();
        }
    )* };
}

kinds! {
    glibc [] => steady(&["4"]);
    glibc_linked_statically [] => built("steady-static", "cc", &["-static"]);
    glibc_linked_statically_at_any_address [] => built("steady-pie", "cc", &["-static-pie"]);
    glibc_at_a_fixed_address [] => built("steady-fixed", "cc", &["-no-pie", "-fno-pie"]);
    musl ["musl-gcc"] => built("steady-musl", "musl-gcc", &KERNEL_HEADERS);
    musl_linked_statically ["musl-gcc"] =>
        built("steady-musl-static", "musl-gcc", &[&["-static"], &KERNEL_HEADERS[..]].concat());
    no_libc_at_all [] => Proof::of(Target::spawn(Command::new(program("bare"))).with_code(7));
    go ["go"] => Proof::of(Target::spawn(Command::new(go_program("steady-go", "steady.go")))).changes();
    node ["node"] => interpreted("node", &[script("steady.js").to_str().expect("a path")]);
    python [] => interpreted("/usr/bin/python3", &[script("script.py").to_str().expect("a path")]);
    java ["java", "javac"] => java_with(&[]);
    java_that_only_interprets ["java", "javac"] => java_with(&["-Xint"]);

    one_thread [] => steady(&["1"]);
    hundred_threads [] => steady(&["100"]);
    thousand_threads [] => steady(&["1000"]);
    stacks_of_16_kib [] => cramped("threads");
    fibers [] => cramped("fibers");
    /// The agent's handler may need 512 bytes more than an empty one.
    threads_at_the_end_of_their_stacks [] => edge("stack");
    alternate_stacks_of_the_least_size [] => edge("alternate");
    fibers_side_by_side [] => victim("fiber", &[]);

    every_signal_is_blocked [] => signals("blocked").without_samples();
}

/// Only in the long run, which does the same.
#[test]
fn five_thousand_threads() {
    needs_recording!();
    if is_long_run() {
        let _machine = together();
        steady(&["5000"]).survives();
    }
}

fn steady(args: &[&str]) -> Proof<'static> {
    Proof::of(Target::start("steady", args))
}

fn built(name: &str, compiler: &str, flags: &[&str]) -> Proof<'static> {
    let program = variant(name, "steady.c", compiler, &[&["-pthread"], flags].concat());
    let mut command = Command::new(program);
    command.arg("4");
    Proof::of(Target::spawn(command))
}

/// A program that the injection's own tests use.
fn victim(name: &str, flags: &[&str]) -> Proof<'static> {
    let file = format!("{VICTIMS}{name}.c");
    let program = variant(&format!("victim-{name}"), &file, "cc", &[&["-w"], flags].concat());
    Proof::of(Target::spawn(Command::new(program)).with_code(7))
}

fn interpreted(program: &str, args: &[&str]) -> Proof<'static> {
    let mut command = Command::new(program);
    command.args(args);
    Proof::of(Target::spawn(command)).changes()
}

fn java_with(options: &[&str]) -> Proof<'static> {
    let classes = java_classes("Steady");
    let classes = ["-Xmx64m", "-cp", classes.to_str().expect("a path")];
    interpreted("java", &[options, &classes, &["Steady"]].concat())
}

fn cramped(how: &str) -> Proof<'static> {
    Proof::of(Target::start("cramped", &[how]))
}

fn edge(where_to: &str) -> Proof<'static> {
    Proof::of(Target::start("edge", &[where_to, "512"]))
}

fn signals(how: &str) -> Proof<'static> {
    Proof::of(Target::start("signals", &[how]))
}

/// Compares the target's own count of its signals without and with a recorder.
fn arrive_once(how: &str, recorded: impl Fn(Proof<'static>) -> Target) {
    needs_recording!();
    let _machine = together();
    let mut alone = Target::start("signals", &[how]);
    left_alone(&mut alone);
    for target in [alone, recorded(signals(how))] {
        assert_eq!(target.fact("sent"), target.fact("arrived"), "{how}");
        assert!(target.fact("sent") > 500, "{how}: {}", target.fact("sent"));
    }
}

#[test]
fn every_signal_is_handled() {
    arrive_once("handled", |proof| proof.changes().survives());
}

/// A signalfd and a sigwaitinfo wait for all signals, so none is left for timers. A signal that was
/// just sent may be pending at any time.
#[test]
fn every_signal_is_waited_for() {
    arrive_once("waited", |proof| proof.only_by(&["perf"]).changes().survives());
}
