//! A recording of a running process, compared with what the process itself measures.

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::common::{
    Folded, Recorder, Target, Trace, alone, as_nobody, cpu_clock, is_root, needs_recording,
    program, program_for_everyone, record_cpu, skip, together, unprivileged_obstacle, variant,
};

/// Prints a measurement to stderr, which the harness does not hide for a passing test.
fn report(line: &str) {
    // A closed stderr is no reason to fail.
    let _ = writeln!(std::io::stderr(), "measured: {line}");
}

const SECOND: Duration = Duration::from_secs(1);

/// A recording with the CPU time that the target used meanwhile.
struct Measured {
    folded: Folded,
    /// CPU time by the trace, which the process's clock confirms.
    cpu: Duration,
}

impl Measured {
    /// Returns the CPU time that these counts cover, relative to what the target used.
    fn share(&self, count: u64, freq_hz: f64) -> f64 {
        count as f64 / freq_hz / self.cpu.as_secs_f64()
    }
}

/// Records until the target has used this much CPU time, and reads its clock from outside.
fn record_measured(pid: i32, cpu: Duration, extra: &[&str]) -> Measured {
    let before = cpu_clock(pid);
    let pid_text = pid.to_string();
    let mut recorder = Recorder::start(&[&["--pid", &pid_text][..], extra].concat());
    recorder.wait_until_attached(pid);
    recorder.wait_for_cpu(pid, cpu);
    recorder.send(Signal::SIGINT);
    let trace = recorder.finish().expect_code(0).trace;
    let at_most = cpu_clock(pid) - before;
    let reported = Duration::from_nanos(trace.number("cpu_time_ns"));
    // The mapping that shows the attach exists a little before the first sample.
    let at_least = cpu.mul_f64(0.9);
    assert!(
        (at_least..=at_most).contains(&reported),
        "{reported:?} is not {at_least:?} to {at_most:?}"
    );
    Measured { folded: trace.folded(), cpu: reported }
}

#[test]
fn shares_of_a_program_without_frame_pointers_are_exact() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("split", &[]);
    let folded = record_cpu(target.pid(), 3 * SECOND, &["--freq", "4001"]).trace.folded();
    target.goes_on_and_ends_by_itself();

    assert!(folded.total() >= 10_000, "{} samples", folded.total());
    let spent: Vec<f64> =
        ["alpha_ns", "beta_ns", "gamma_ns"].iter().map(|key| target.fact(key) as f64).collect();
    let whole: f64 = spent.iter().sum();
    let jumps = 100.0 * target.fact("jumps_ns") as f64 / whole;
    for (index, (name, share)) in
        [("alpha", 50.0), ("beta", 30.0), ("gamma", 20.0)].into_iter().enumerate()
    {
        let kernel = format!("kernel_{name}");
        let sampled = folded.percent_of(&kernel);
        let own_clock = 100.0 * spent[index] / whole;
        let both =
            format!("{kernel}: {sampled:.2} % of samples, {own_clock:.2} % by its own clock");
        report(&both);
        assert!((sampled - share).abs() < 2.0, "{both}");
        assert!((sampled - own_clock).abs() < 2.0 + jumps, "{both}, which jumped {jumps:.2} %");
        let caller = format!("caller_{name}");
        assert_eq!(folded.count_with_other_caller(&kernel, &caller), 0, "callers of {kernel}");
        assert_eq!(folded.count_with_other_caller(&caller, "timed"), 0, "callers of {caller}");
    }
    // The compiler may inline `timed`. The source has it between the two functions, and so must the
    // stacks.
    assert_eq!(folded.count_with_other_caller("timed", "main"), 0, "callers of timed");
}

#[test]
fn every_thread_of_a_rust_program_is_sampled_with_demangled_names() {
    needs_recording!();
    let _machine = alone();
    let mut target = Target::start("threads", &[]);
    let outcome = record_cpu(target.pid(), 4 * SECOND, &["--freq", "997"]);
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
        // The rounds cover the program's complete life, and the samples only a part of it.
        assert!((sampled - done).abs() < 8.0, "{function}: {sampled:.1} %, rounds {done:.1} %");
    }
    assert!(folded.count_containing("threads::Two as threads::Work") > 0, "trait method");
    let tree = outcome.trace.view(&["print", "--threads"]);
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
    let trace = record_cpu(target.pid(), 2 * SECOND, &["--freq", "499"]).trace;
    target.goes_on_and_ends_by_itself();
    assert_eq!(target.fact("wrong"), 0, "results of the script");
    let folded = trace.folded();
    let share = folded.percent_of("<module>");
    assert!(share > 90.0, "{share:.1} % of {} samples", folded.total());
    for function in ["_PyEval_EvalFrameDefault", "Py_RunMain", "_start"] {
        assert_eq!(folded.count_of(function), 0, "{function} only carries Python functions");
    }
    let hidden = ["_PyEval_EvalFrameDefault", "Py_RunMain"];
    let folded = trace.folded_with(&["--native-frames"]);
    for function in hidden {
        let share = folded.percent_of(function);
        assert!(share > 90.0, "{function}: {share:.1} %");
    }
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
    command.args(["record", "--freq", "997", "--pid"]);
    command.arg(target.pid().to_string());
    let outcome = Recorder::spawn(command, trace).record_cpu(target.pid(), 2 * SECOND);
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
    let outcome = record_cpu(target.pid(), 2 * SECOND, &["--freq", "997"]);
    target.goes_on_and_ends_by_itself();
    check_split(&outcome.trace.folded());
}

/// Less strict than the test of shares, because it is about permissions.
fn check_split(folded: &Folded) {
    assert!(folded.total() > 1500, "{} samples", folded.total());
    for (name, share) in [("alpha", 50.0), ("beta", 30.0), ("gamma", 20.0)] {
        let sampled = folded.percent_of(&format!("kernel_{name}"));
        assert!((sampled - share).abs() < 8.0, "kernel_{name}: {sampled:.1} %");
    }
}

/// The CPU time of a thread inside a system call belongs to the caller of the call.
#[test]
fn kernel_time_of_a_reader_is_attributed() {
    needs_recording!();
    if !is_root() {
        skip!("root: kernel time may be invisible to other users");
    }
    let _machine = alone();
    let mut target = Target::start("reader", &[]);
    let measured = record_measured(target.pid(), 3 * SECOND, &["--freq", "997"]);
    target.goes_on_and_ends_by_itself();
    assert_eq!(target.fact("failed"), 0, "reads that failed");
    let share = measured.share(measured.folded.count_of("read_zeroes"), 997.0);
    report(&format!("reader in read(2): {:.1} % of its CPU time", 100.0 * share));
    assert!((0.9..1.1).contains(&share), "{:.1} % attributed", 100.0 * share);
}

#[test]
fn threads_of_one_millisecond_are_attributed() {
    needs_recording!();
    let _machine = alone();
    let mut target = Target::start("shortlived", &[]);
    let measured = record_measured(target.pid(), 3 * SECOND, &["--freq", "9973"]);
    let whole = cpu_clock(target.pid());
    target.goes_on_and_ends_by_itself();
    assert_eq!(target.fact("failed"), 0, "threads that could not be created");
    assert!(target.fact("threads") > 1000, "{} threads", target.fact("threads"));
    // The part of the process's time that its short threads used, by their own clocks.
    let in_threads = target.fact("threads_ns") as f64 / whole.as_nanos() as f64;
    let share =
        measured.share(measured.folded.count_of("thread_main"), 9973.0) / in_threads.min(1.0);
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
    let mut recorder = Recorder::start(&["--pid", &pid, "--freq", "499"]);
    recorder.wait_until_attached(target.pid());
    recorder.wait_for_cpu(target.pid(), SECOND);
    target.send(Signal::SIGUSR1);
    let trace = recorder.record_cpu(target.pid(), 3 * SECOND).trace;
    let folded = trace.folded();
    target.goes_on_and_ends_by_itself();
    assert!(folded.count_of("own_work") > 100, "before the load");
    assert!(folded.count_of("plugin_work") > 100, "after the load");
    let wrong = folded.count_with_other_caller("plugin_work", "plugin_entry");
    // Until the recorder finds a new library there is no table for it. The recorder unwinds samples
    // from that time itself.
    let followed = trace.number("followed_outside");
    report(&format!("{followed} samples of a library that was loaded were followed outside"));
    assert_eq!(wrong, 0, "plugin_work without its caller, {followed} followed");
    assert_eq!(folded.count_with_other_caller("own_work", "main"), 0);
}

/// Each plugin's function is only ever called through the program's own function for it.
#[test]
fn plugins_that_alternate_at_one_address_are_distinguished() {
    needs_recording!();
    let _machine = together();
    let plugin = |name: &str| {
        let define = format!("-DNAME={name}");
        variant(&format!("turn_{name}"), "turn.c", "cc", &["-shared", "-fPIC", &define])
    };
    let mut command = Command::new(program("swap"));
    command.args([plugin("alpha"), plugin("beta")]);
    let mut target = Target::spawn(command);
    let trace = record_cpu(target.pid(), 3 * SECOND, &["--freq", "997"]).trace;
    target.goes_on_and_ends_by_itself();
    let corrected = trace.number("corrected_for_remaps");
    report(&format!("{corrected} samples between a mapping and its discovery"));
    assert_eq!(target.fact("other_places"), 0, "they were not mapped at one address");
    assert!(corrected > 0, "the kernel reports mappings, so samples after one are corrected");
    let folded = trace.folded();
    for (own, other) in [("alpha", "beta"), ("beta", "alpha")] {
        let (work, run) = (format!("work_{own}"), format!("run_{own}"));
        assert!(folded.count_of(&work) > 300, "{} of {work}", folded.count_of(&work));
        let mixed = folded.count_of_both(&work, &format!("run_{other}"));
        assert_eq!(mixed, 0, "{work} under run_{other}, of {}", folded.count_of(&run));
        let wrong = folded.count_with_other_caller(&work, "plugin_entry");
        let all = folded.count_of(&work);
        report(&format!("{wrong} of {all} of {work} without their callers"));
        // Samples from the first milliseconds of a turn, before the recorder notices the change: 5
        // of 60 as measured.
        assert!(wrong * 5 <= all, "{wrong} of {all} of {work} without their callers");
    }
}

#[test]
fn thread_that_blocks_the_signal_is_named() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("blocked", &[]);
    // Half of it is used by the signal-blocked thread.
    let options = ["--freq", "499", "--engine", "perf"];
    let outcome = record_cpu(target.pid(), 2 * SECOND, &options);
    let blocked = target.fact("blocked_tid").to_string();
    let text = outcome.text();
    let named = text.lines().any(|line| line.contains(&blocked) && line.contains("block"));
    assert!(named, "thread {blocked} is not listed as blocking:\n{text}");
    assert!(outcome.trace.folded().count_of("open_work") > 100);
    target.goes_on_and_ends_by_itself();
}

#[test]
fn weights_add_up_to_the_cpu_time_of_all_threads() {
    needs_recording!();
    let _machine = alone();
    let mut target = Target::start("threads", &[]);
    let measured = record_measured(target.pid(), 4 * SECOND, &["--freq", "499"]);
    target.goes_on_and_ends_by_itself();
    let share = measured.share(measured.folded.total(), 499.0);
    report(&format!("four busy threads: {:.1} % of their CPU time", 100.0 * share));
    assert!((0.93..1.07).contains(&share), "{:.1} % attributed", 100.0 * share);
}
