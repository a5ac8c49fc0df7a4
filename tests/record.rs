//! What a recording of a running process says, against what the process itself knows.

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::common::{
    Folded, Outcome, Recorder, Target, Trace, alone, as_nobody, cpu_clock_ns, is_root,
    needs_recording, program, program_for_everyone, record, skip, together, unprivileged_obstacle,
};

/// Prints a measurement where a passing test's output is not hidden.
fn report(line: &str) {
    // A closed stderr is no reason to fail.
    let _ = writeln!(std::io::stderr(), "measured: {line}");
}

/// A recording with the CPU time that the target used per second of it.
struct Measured {
    outcome: Outcome,
    cpu_per_second: f64,
}

/// Looks at the target's clock only while it is being sampled: before that the recorder's own start
/// competes with the target for the processors.
fn record_measured(pid: i32, seconds: u32, extra: &[&str]) -> Measured {
    let (pid_text, seconds_text) = (pid.to_string(), seconds.to_string());
    let args = ["--pid", &pid_text, "--duration", &seconds_text];
    let mut recorder = Recorder::start(&[&args[..], extra].concat());
    recorder.wait_until_attached(pid);
    let (wall, cpu) = (Instant::now(), cpu_clock_ns(pid));
    std::thread::sleep(Duration::from_secs(seconds.into()).mul_f64(0.9));
    let (elapsed, used) = (wall.elapsed(), cpu_clock_ns(pid) - cpu);
    let outcome = recorder.finish().expect_code(0);
    Measured { outcome, cpu_per_second: used.as_secs_f64() / elapsed.as_secs_f64() }
}

#[test]
fn shares_of_a_program_without_frame_pointers_are_exact() {
    needs_recording!();
    let _machine = alone();
    let mut target = Target::start("split", &[]);
    let folded = record(target.pid(), 6, &["--freq", "2000"]).trace.folded();
    target.goes_on_and_ends_by_itself();

    assert!(folded.total() >= 10_000, "{} samples", folded.total());
    let spent: Vec<f64> =
        ["alpha_ns", "beta_ns", "gamma_ns"].iter().map(|key| target.fact(key) as f64).collect();
    let whole: f64 = spent.iter().sum();
    for (index, (name, share)) in
        [("alpha", 50.0), ("beta", 30.0), ("gamma", 20.0)].into_iter().enumerate()
    {
        let kernel = format!("kernel_{name}");
        let sampled = folded.percent_of(&kernel);
        let own_clock = 100.0 * spent[index] / whole;
        report(&format!("{kernel}: {sampled:.2} % of samples, {own_clock:.2} % by its own clock"));
        assert!((sampled - share).abs() < 2.0, "{kernel}: {sampled:.2} %");
        assert!((sampled - own_clock).abs() < 2.0, "{kernel}: {sampled:.2} %, {own_clock:.2} %");
        let caller = format!("caller_{name}");
        assert_eq!(folded.count_with_other_caller(&kernel, &caller), 0, "callers of {kernel}");
        assert_eq!(folded.count_with_other_caller(&caller, "main"), 0, "callers of {caller}");
    }
}

#[test]
fn every_thread_of_a_rust_program_is_sampled_with_demangled_names() {
    needs_recording!();
    let _machine = alone();
    let mut target = Target::start("threads", &[]);
    let outcome = record(target.pid(), 3, &["--freq", "997"]);
    target.goes_on_and_ends_by_itself();
    let folded = outcome.trace.folded();
    let rounds: Vec<f64> =
        (0..4).map(|index| target.fact(&format!("rounds_{index}")) as f64).collect();
    let all: f64 = rounds.iter().sum();
    for (index, name) in
        ["crunch_zero", "crunch_one", "crunch_two", "crunch_three"].iter().enumerate()
    {
        let function = format!("threads::{name}");
        let (sampled, done) = (folded.percent_of(&function), 100.0 * rounds[index] / all);
        // The rounds cover the program's whole life, the samples three seconds of it.
        assert!((sampled - done).abs() < 8.0, "{function}: {sampled:.1} %, rounds {done:.1} %");
    }
    assert!(folded.count_containing("threads::Two as threads::Work") > 0, "trait method");
    let tree = outcome.trace.view(&["print"]);
    for thread in ["crunch-0", "crunch-1", "crunch-2", "crunch-3"] {
        assert!(tree.contains(thread), "thread {thread} in:\n{tree}");
    }
}

#[test]
fn python_interpreter_is_sampled() {
    needs_recording!();
    let python = Path::new("/usr/bin/python3");
    if !python.exists() {
        skip!("python3: the distribution's interpreter is not installed");
    }
    let _machine = together();
    let mut command = Command::new(python);
    command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/targets/script.py"));
    let mut target = Target::spawn(command);
    let folded = record(target.pid(), 3, &["--freq", "499"]).trace.folded();
    target.goes_on_and_ends_by_itself();
    assert_eq!(target.fact("wrong"), 0, "results of the script");
    let share = folded.percent_of("_PyEval_EvalFrameDefault");
    assert!(share > 90.0, "{share:.1} % of {} samples", folded.total());
    let rooted = folded.percent_of("Py_RunMain");
    assert!(rooted > 90.0, "{rooted:.1} % reach Py_RunMain");
}

#[test]
fn unprivileged_user_records_an_own_process() {
    needs_recording!();
    if let Some(obstacle) = unprivileged_obstacle() {
        skip!("{obstacle}");
    }
    let _machine = together();
    let trace = Trace::new();
    let split = program_for_everyone(&program("split"), trace.dir());
    let ours = program_for_everyone(Path::new(env!("CARGO_BIN_EXE_traceprof")), trace.dir());
    let as_user = |program: &Path| as_nobody(program).unwrap_or_else(|| Command::new(program));
    let mut target = Target::spawn(as_user(&split));
    let mut command = as_user(&ours);
    command.args(["record", "--duration", "3", "--freq", "997", "--pid"]);
    command.arg(target.pid().to_string());
    let outcome = Recorder::spawn(command, trace).finish().expect_code(0);
    target.goes_on_and_ends_by_itself();
    check_split(&outcome.trace.folded());
}

#[test]
fn root_records_the_process_of_another_user() {
    needs_recording!();
    let _machine = together();
    let trace = Trace::new();
    let split = program_for_everyone(&program("split"), trace.dir());
    let Some(command) = as_nobody(&split) else { skip!("root: needed to act as two users") };
    let mut target = Target::spawn(command);
    let outcome = record(target.pid(), 3, &["--freq", "997"]);
    target.goes_on_and_ends_by_itself();
    check_split(&outcome.trace.folded());
}

/// Looser than the test of shares: it is about permissions.
fn check_split(folded: &Folded) {
    assert!(folded.total() > 500, "{} samples", folded.total());
    for (name, share) in [("alpha", 50.0), ("beta", 30.0), ("gamma", 20.0)] {
        let sampled = folded.percent_of(&format!("kernel_{name}"));
        assert!((sampled - share).abs() < 8.0, "kernel_{name}: {sampled:.1} %");
    }
}

/// A thread inside a system call uses CPU time that belongs to the call's caller.
#[test]
fn kernel_time_of_a_reader_is_attributed() {
    needs_recording!();
    if !is_root() {
        skip!("root: kernel time may be invisible to other users");
    }
    let _machine = alone();
    let mut target = Target::start("reader", &[]);
    let measured = record_measured(target.pid(), 4, &["--freq", "997"]);
    target.goes_on_and_ends_by_itself();
    assert_eq!(target.fact("failed"), 0, "reads that failed");
    let folded = measured.outcome.trace.folded();
    let expected = 4.0 * 997.0 * measured.cpu_per_second;
    let share = folded.count_of("read_zeroes") as f64 / expected;
    report(&format!("reader in read(2): {:.1} % of its CPU time", 100.0 * share));
    assert!((0.9..1.1).contains(&share), "{:.1} % attributed", 100.0 * share);
}

#[test]
fn threads_of_one_millisecond_are_attributed() {
    needs_recording!();
    let _machine = alone();
    let mut target = Target::start("shortlived", &[]);
    let measured = record_measured(target.pid(), 4, &["--freq", "9973"]);
    let whole = cpu_clock_ns(target.pid());
    target.goes_on_and_ends_by_itself();
    assert_eq!(target.fact("failed"), 0, "threads that could not be created");
    assert!(target.fact("threads") > 1000, "{} threads", target.fact("threads"));
    let folded = measured.outcome.trace.folded();
    // The part of the process's time that its short threads used, by their own clocks.
    let in_threads = target.fact("threads_ns") as f64 / whole.as_nanos() as f64;
    let expected = 4.0 * 9973.0 * measured.cpu_per_second * in_threads.min(1.0);
    let share = folded.count_of("thread_main") as f64 / expected;
    report(&format!("1 ms threads: {:.1} % of their CPU time (budget 97 %)", 100.0 * share));
    assert!((0.8..1.1).contains(&share), "{:.1} % attributed", 100.0 * share);
}

#[test]
fn library_loaded_during_the_recording_is_symbolized() {
    needs_recording!();
    let _machine = together();
    let plugin = program("plugin");
    let mut target = Target::start("dlopen_late", &[plugin.to_str().expect("path")]);
    let pid = target.pid().to_string();
    let mut recorder = Recorder::start(&["--pid", &pid, "--duration", "5", "--freq", "499"]);
    recorder.wait_until_attached(target.pid());
    std::thread::sleep(Duration::from_secs(1));
    target.send(Signal::SIGUSR1);
    let folded = recorder.finish().expect_code(0).trace.folded();
    target.goes_on_and_ends_by_itself();
    assert!(folded.count_of("own_work") > 100, "before the load");
    assert!(folded.count_of("plugin_work") > 100, "after the load");
    let wrong = folded.count_with_other_caller("plugin_work", "plugin_entry");
    // Samples between the load and its discovery have no unwind table yet.
    let allowed = folded.count_of("plugin_work") / 2;
    assert!(wrong < allowed, "{wrong} of plugin_work without its caller");
    assert_eq!(folded.count_with_other_caller("own_work", "main"), 0);
}

#[test]
fn thread_that_blocks_the_signal_is_named() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("blocked", &[]);
    let outcome = record(target.pid(), 2, &["--freq", "499"]);
    let deaf = target.fact("deaf_tid").to_string();
    let text = outcome.text();
    let named = text.lines().any(|line| line.contains(&deaf) && line.contains("block"));
    assert!(named, "thread {deaf} is not listed as blocking:\n{text}");
    assert!(outcome.trace.folded().count_of("open_work") > 100);
    target.goes_on_and_ends_by_itself();
}

#[test]
fn weights_add_up_to_the_cpu_time_of_all_threads() {
    needs_recording!();
    let _machine = alone();
    let mut target = Target::start("threads", &[]);
    let measured = record_measured(target.pid(), 4, &["--freq", "499"]);
    target.goes_on_and_ends_by_itself();
    let expected = 4.0 * 499.0 * measured.cpu_per_second;
    let share = measured.outcome.trace.folded().total() as f64 / expected;
    report(&format!("four busy threads: {:.1} % of their CPU time", 100.0 * share));
    assert!((0.93..1.07).contains(&share), "{:.1} % attributed", 100.0 * share);
}
