//! Functions of the kernel in samples: under which function, by which names, and when not.

mod redis;
mod symbols;

use std::time::Duration;

use traceprof_abi::storage::log::flags::KERNEL;

use crate::common::{
    Folded, Outcome, Recorder, Target, Trace, as_nobody, needs_recording, program,
    program_for_everyone, record_and_end, record_cpu_and_end, skip, together, traceprof,
};
use symbols::Kallsyms;

const HZ: &str = "997";
const CPU: Duration = Duration::from_secs(2);
/// The mark of the kernel's functions in annotated folded stacks.
const MARK: &str = "_[k]";

fn recorded(extra: &[&str]) -> Outcome {
    let options = [&["--freq", HZ], extra].concat();
    record_cpu_and_end(Target::start("kernel_calls", &[]), CPU, &options)
}

fn annotated(trace: &Trace) -> Folded {
    trace.folded_with(&["--annotate"])
}

/// Returns the number of lines of the closing report about the kernel, and the last of them.
fn lines_about_kernel(text: &str) -> (usize, String) {
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("kernel ")).collect();
    (lines.len(), lines.last().copied().unwrap_or_default().to_owned())
}

/// Returns the weights of stacks with frames of the kernel, and of those in which they are where
/// they belong: between `call`'s part of the kernel and its function nothing is wrong.
fn in_kernel(folded: &Folded) -> (u64, u64) {
    let is_kernel = |frame: &&String| frame.ends_with(MARK);
    let (mut all, mut right) = (0, 0);
    for (stack, count) in folded.stacks() {
        let kernel = stack.iter().filter(is_kernel).count();
        if kernel == 0 {
            continue;
        }
        let innermost = stack.iter().rev().take_while(is_kernel).count();
        assert_eq!(kernel, innermost, "a caller of user code: {stack:?}");
        let has = |part: &str| stack.iter().any(|frame| frame.contains(part));
        let called = [("sys_getppid", "asks_parent"), ("sys_read", "reads_zeroes")];
        let is_wrong = called.iter().any(|(call, function)| has(call) && !has(function));
        all += count;
        right += if is_wrong { 0 } else { count };
    }
    (all, right)
}

#[test]
fn functions_of_the_kernel_are_above_the_function_that_made_the_call() {
    needs_recording!();
    let symbols = match Kallsyms::read() {
        Ok(symbols) => symbols,
        Err(why) => skip!("{why}"),
    };
    let _machine = together();
    let outcome = recorded(&["--engine", "perf"]);
    let (text, folded) = (outcome.text(), annotated(&outcome.trace));
    assert_eq!(outcome.trace.number("kernel_stacks"), 1, "{text}");
    assert_eq!(lines_about_kernel(&text).0, 0, "{text}");
    let (all, right) = in_kernel(&folded);
    assert_eq!(all, right, "in a call of the other function");
    // Both calls are made, and the program does little else.
    assert!(100 * all > 60 * folded.total(), "{all} of {}", folded.total());
    for call in ["sys_getppid", "sys_read"] {
        let share = 100 * folded.count_containing(call) / folded.total();
        assert!(share >= 3, "{call}: {share} %");
    }
    let names = folded.stacks().flat_map(|(stack, _)| stack.to_vec());
    let names = names.filter_map(|frame| frame.strip_suffix(MARK).map(str::to_owned));
    let mut known = 0;
    for name in names.filter(|name| name != "[unknown]") {
        assert!(symbols.has(&name), "{name} is not in /proc/kallsyms");
        known += 1;
    }
    assert!(known > 0);
    // The kernel's time counts as its functions' own.
    let tops = outcome.trace.view(&["print", "--top=20"]);
    assert!(tops.contains("([kernel])"), "{tops}");
}

#[test]
fn other_views_and_formats_have_the_functions_of_the_kernel() {
    needs_recording!();
    if let Err(why) = Kallsyms::read() {
        skip!("{why}");
    }
    let _machine = together();
    let outcome = recorded(&["--engine", "perf"]);
    let tree = outcome.trace.view(&["print", "--tree"]);
    assert!(tree.contains("sys_getppid"), "{tree}");
    let path = outcome.trace.path();
    let exported = |format: &str| {
        let output = traceprof(&["export", "--format", format]).arg(&path).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    for format in ["folded", "speedscope", "firefox"] {
        assert!(exported(format).contains("sys_getppid"), "{format}");
    }
    let script = exported("perf-script");
    let line = script.lines().find(|line| line.contains("sys_getppid")).expect("a frame");
    // A trace does not tell where the kernel is.
    assert!(!line.contains("ffff") && line.ends_with(" ([kernel.kallsyms])"), "{line}");
    let dump = outcome.trace.view(&["dump", "--json"]);
    assert!(dump.contains("[kernel]") && dump.contains("sys_getppid"));
    let other = recorded(&["--engine", "perf", "--kernel-stacks=no"]);
    let output = traceprof(&["diff"]).arg(&path).arg(other.trace.path()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("sys_") || text.contains("[kernel]"), "{text}");
}

#[test]
fn without_them_the_time_is_that_of_the_function_that_made_the_call() {
    needs_recording!();
    let _machine = together();
    for (option, is_sampled) in [("--kernel-stacks=no", true), ("--no-kernel", false)] {
        let outcome = recorded(&["--engine", "perf", option]);
        let (text, folded) = (outcome.text(), annotated(&outcome.trace));
        assert_eq!(in_kernel(&folded).0, 0, "{option}");
        assert_eq!(outcome.trace.number("kernel_stacks"), 0, "{text}");
        assert_eq!(lines_about_kernel(&text).0, 0, "the user wants it so: {text}");
        let loaded = traceprof::trace::load(&outcome.trace.path()).expect("a trace");
        let mut in_kernel = 0;
        for thread in &loaded.threads {
            thread.for_each_sample(&mut |sample, _| {
                in_kernel += u32::from(sample.flags & KERNEL != 0);
            });
        }
        let is_permitted = outcome.trace.number("kernel_included") == 1;
        assert_eq!(in_kernel > 0, is_sampled && is_permitted, "{option}: {in_kernel}");
    }
}

#[test]
fn with_timers_one_line_says_that_no_function_of_the_kernel_is_shown() {
    needs_recording!();
    let _machine = together();
    let outcome = recorded(&["--engine", "timer"]);
    let (text, folded) = (outcome.text(), annotated(&outcome.trace));
    assert_eq!(in_kernel(&folded).0, 0);
    let (count, line) = lines_about_kernel(&text);
    assert!(count == 1 && line.ends_with("(--engine perf shows them)"), "{text}");
}

#[test]
fn a_user_without_permission_learns_what_would_change_it() {
    needs_recording!();
    let _machine = together();
    let trace = Trace::new();
    let calls = program_for_everyone(&program("kernel_calls"), trace.dir());
    let ours = std::path::Path::new(env!("CARGO_BIN_EXE_traceprof"));
    let ours = program_for_everyone(ours, trace.dir());
    let (Some(target), Some(mut command)) = (as_nobody(&calls), as_nobody(&ours)) else {
        skip!("root: needed to act as another user");
    };
    let target = Target::spawn(target);
    command.args(["record", "--freq", HZ, "--mode", "cpu,wall", "--pid"]);
    command.arg(target.pid().to_string());
    let outcome = Recorder::spawn(command, trace).record_cpu(target.pid(), CPU / 2);
    let text = outcome.text();
    let (count, line) = lines_about_kernel(&text);
    let level = |name: &str| {
        let text = std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap_or_default();
        text.trim().parse::<i32>().unwrap_or(-1)
    };
    let (paranoid, restrict) = (level("perf_event_paranoid"), level("kptr_restrict"));
    let expected = match (paranoid, restrict) {
        (..=1, 0) => return assert_eq!(count, 0, "{text}"),
        (..=1, _) => "sysctl kernel.kptr_restrict=",
        (2, _) => "sysctl kernel.perf_event_paranoid=1",
        (3.., _) => "--engine perf shows them",
    };
    assert!(count == 1 && line.contains(expected), "{text}");
    assert!(text.contains("without the kernel's functions, which only root may read"), "{text}");
    assert_eq!(in_kernel(&annotated(&outcome.trace)).0, 0, "{text}");
}

/// Returns the shares of time asleep in a read of a pipe with functions of the kernel, and with the
/// one that reads pipes, in percent.
fn asleep(outcome: &Outcome) -> (u64, u64) {
    let folded = annotated(&outcome.trace);
    let in_read: Vec<_> = folded
        .stacks()
        .filter(|(stack, _)| stack.last().is_some_and(|it| it.starts_with("[sleeping in read")))
        .collect();
    let all: u64 = in_read.iter().map(|(_, us)| us).sum();
    assert!(all > 1_000_000, "{all} us");
    let percent_with = |part: &str| {
        let is_it = |frame: &String| frame.ends_with(MARK) && frame.contains(part);
        let with = in_read.iter().filter(|(stack, _)| stack.iter().any(is_it));
        100 * with.map(|(_, us)| us).sum::<u64>() / all
    };
    (percent_with(""), percent_with("pipe_read"))
}

#[test]
fn sleeping_threads_show_where_in_the_kernel_they_sleep() {
    needs_recording!();
    let _machine = together();
    let wall = |extra: &[&str]| {
        let options = [&["--mode", "wall"], extra].concat();
        record_and_end(Target::start("sleeper", &["read"]), 2, &options)
    };
    let is_permitted = std::fs::read_to_string("/proc/self/stack").is_ok();
    let outcome = wall(&[]);
    let text = outcome.text();
    assert_eq!(text.contains("without the kernel's functions"), !is_permitted, "{text}");
    let (some, right) = asleep(&outcome);
    if is_permitted {
        assert!(some >= 95 && right >= 95, "{some} % and {right} %: {text}");
    } else {
        assert_eq!(some, 0);
    }
    let outcome = wall(&["--kernel-stacks", "no"]);
    assert_eq!(asleep(&outcome).0, 0);
    assert!(!outcome.text().contains("without the kernel's functions"));
}

#[test]
fn doctor_and_dry_run_say_whether_they_are_shown() {
    needs_recording!();
    let target = Target::start("kernel_calls", &[]);
    let pid = target.pid().to_string();
    let run = |args: &[&str]| {
        let output = traceprof(args).output().expect("traceprof");
        let all = [output.stdout, output.stderr].concat();
        String::from_utf8_lossy(&all).into_owned()
    };
    let doctor = run(&["doctor", "--pid", &pid]);
    assert_eq!(doctor.matches("kernel functions").count(), 1, "{doctor}");
    let plan = |option: &str| {
        let text = run(&["record", "--dry-run", "--engine", "perf", option, "--pid", &pid]);
        lines_about_kernel(&text).1
    };
    let is_shown = Kallsyms::read().is_ok();
    let yes = plan("--kernel-stacks=yes");
    assert_eq!(yes.ends_with("samples in it show its functions"), is_shown, "{yes}");
    assert_eq!(doctor.contains("samples in the kernel show them"), is_shown, "{doctor}");
    let no = plan("--kernel-stacks=no");
    assert!(no.ends_with("its functions are not shown, as requested"), "{no}");
}
