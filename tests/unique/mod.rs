//! Programs in which every function has one caller, compiled in many ways. A wrong or missing
//! caller in any sample fails the test.

mod callers;

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use callers::{Caller, Callers, Tally};

use crate::common::{
    Target, has_command, is_long_run, needs_recording, record_cpu, rust_variant, skip, together,
    variant,
};

/// Returns the number of samples of each program.
fn samples_wanted() -> u64 {
    if is_long_run() { 20_000 } else { 2_500 }
}

const HZ: u64 = 9973;

/// The kinds of call in `stacks.c`, by the names of its leaves.
const KINDS: [&str; 16] = [
    "small",
    "medium",
    "large",
    "saved",
    "pushed",
    "below",
    "alloca",
    "realigned",
    "aligned",
    "tail",
    "noreturn",
    "cold",
    "sorted",
    "deep",
    "handled",
    "interrupt",
];

/// Returns the callers in `stacks.c`, with or without tail calls.
fn stacks_callers(has_tail_calls: bool) -> Callers {
    let tail = if has_tail_calls { "root_tail" } else { "parent_tail" };
    Callers::default()
        .with("leaf_tail", Caller::Direct(tail.into()))
        .with("leaf_deep", Caller::Either(&["leaf_deep", "parent_deep"]))
        .with("leaf_sorted", Caller::Through("parent_sorted"))
        .with("root_handled", Caller::Signal)
        .with("root_interrupt", Caller::Signal)
        .with("root_fiber", Caller::Start)
        .with("leaf_library", Caller::Direct("middle_library".into()))
        .with("middle_library", Caller::Direct("parent_library".into()))
        .with_large(&["parent_large"])
}

/// Records a program and checks all its stacks against the callers.
fn check(name: &str, command: Command, callers: &Callers, kinds: &[&str]) -> Tally {
    let _machine = together();
    let mut target = Target::spawn(command);
    let cpu = Duration::from_nanos(samples_wanted() * 1_000_000_000 / HZ);
    let freq = HZ.to_string();
    let outcome = record_cpu(target.pid(), cpu, &["--freq", &freq]);
    target.goes_on_and_ends_by_itself();
    let tally = Tally::of(&outcome.trace.path(), callers);
    let Tally { samples, rooted, cut, .. } = tally;
    eprintln!("{name}: {samples} samples, {rooted} rooted, {cut} cut");
    assert!((samples - cut) * 4 > samples_wanted(), "{name}: {samples} samples, {cut} cut");
    tally.assert_right(name, kinds);
    tally
}

/// Builds `stacks.c` with a library, with these flags.
fn with_library(name: &str, flags: &[&str]) -> PathBuf {
    let shared = [flags, &["-fPIC", "-shared"]].concat();
    let library = variant(&format!("unique_{name}.so"), "unique/library.c", "cc", &shared);
    let library = library.to_str().expect("a path of letters").to_owned();
    let linked = [flags, &["-DLIBRARY", "-Wl,--no-as-needed", &library]].concat();
    variant(&format!("unique_{name}"), "unique/stacks.c", "cc", &linked)
}

/// Checks `stacks.c` built with these flags after those of all targets.
fn check_c(name: &str, flags: &[&str], has_tail_calls: bool) {
    let kinds = [&KINDS[..], &["fiber", "library"]].concat();
    let program = Command::new(with_library(name, flags));
    check(name, program, &stacks_callers(has_tail_calls), &kinds);
}

#[test]
fn c_is_right_without_optimization() {
    needs_recording!();
    check_c("O0", &["-O0"], false);
    check_c("O1_fp", &["-O1", "-fno-omit-frame-pointer"], false);
}

#[test]
fn c_is_right_with_optimization() {
    needs_recording!();
    check_c("O2", &[], true);
    check_c("O2_now", &["-Wl,-z,now", "-fno-plt"], true);
    check_c("O3_fp", &["-O3", "-fno-omit-frame-pointer"], true);
}

#[test]
fn small_c_is_right() {
    needs_recording!();
    check_c("Os", &["-Os"], true);
    check_c("Os_no_red_zone", &["-Os", "-mno-red-zone", "-fno-omit-frame-pointer"], true);
}

#[test]
fn c_with_marked_branch_targets_is_right() {
    needs_recording!();
    check_c("ibt", &["-fcf-protection=full", "-Wl,-z,lazy,-z,ibtplt"], true);
    check_c("ibt_now", &["-fcf-protection=full", "-Wl,-z,now"], true);
}

/// `.debug_frame` is the only unwind information.
#[test]
fn c_whose_unwind_information_is_for_debuggers_is_right() {
    needs_recording!();
    check_c("debug_frame", &["-fno-asynchronous-unwind-tables", "-fno-unwind-tables"], true);
}

#[test]
fn static_c_is_right() {
    needs_recording!();
    let program = variant("unique_static", "unique/stacks.c", "cc", &["-static"]);
    let kinds = [&KINDS[..], &["fiber"]].concat();
    check("static", Command::new(program), &stacks_callers(true), &kinds);
}

/// The C library has no unwind information at all. The rules are those of its instructions.
#[test]
fn static_c_with_musl_is_right() {
    needs_recording!();
    if !has_command("musl-gcc") {
        skip!("musl-gcc is not installed");
    }
    let flags = ["-static", "-DNO_FIBERS"];
    let program = variant("unique_musl", "unique/stacks.c", "musl-gcc", &flags);
    let callers = stacks_callers(true).with_gaps();
    let tally = check("musl", Command::new(program), &callers, &KINDS);
    // What cannot be proved is a gap.
    assert!(tally.rooted * 10 > tally.samples * 9, "{} of {}", tally.rooted, tally.samples);
}

/// Returns the callers of `throws.cpp`. A throw is inside the C++ library until it has landed.
fn throws_callers() -> Callers {
    Callers::default()
        .with("leaf_landed", Caller::Direct("~Works".into()))
        .with("~Works", Caller::Direct("parent_landing".into()))
        .with("parent_landing", Caller::Direct("root_landing".into()))
}

fn check_cpp(name: &str, flags: &[&str]) {
    let flags = [&["-std=c++17"], flags].concat();
    let program = variant(&format!("unique_{name}"), "unique/throws.cpp", "c++", &flags);
    check(name, Command::new(program), &throws_callers(), &["thrown", "landed", "virtual"]);
}

#[test]
fn cpp_with_exceptions_is_right() {
    needs_recording!();
    check_cpp("cpp_O2", &[]);
    check_cpp("cpp_O0", &["-O0"]);
    check_cpp("cpp_static", &["-static", "-Os"]);
}

#[test]
fn rust_is_right() {
    needs_recording!();
    let kinds = ["plain", "dyn", "large", "panic"];
    let callers = Callers::of_start("begin")
        .with("parent_panic", Caller::Through("root_panic"))
        .with_large(&["parent_large"]);
    for (name, flags) in [
        ("rust_O3", &["-Copt-level=3"][..]),
        ("rust_O0", &["-Copt-level=0"]),
        ("rust_fp", &["-Copt-level=2", "-Cforce-frame-pointers=yes"]),
    ] {
        let program = rust_variant(&format!("unique_{name}"), "unique/ways.rs", flags);
        check(name, Command::new(program), &callers, &kinds);
    }
}
