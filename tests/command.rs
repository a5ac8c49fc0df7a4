//! `record -- COMMAND`: the recorder starts the program.

use std::time::{Duration, Instant};

use crate::common::{
    Outcome, Recorder, Trace, alone, child_named, go_program, has_command, needs_recording,
    program, record_command, skip, together, traceprof, wait_until,
};

#[test]
fn first_period_of_main_is_sampled_and_the_exit_code_reported() {
    needs_recording!();
    let _machine = alone();
    // On a virtual machine the clock may be wrong by some percent over one second. The mean is not.
    const RUNS: u64 = 5;
    let mut counts = [0; 2];
    for _ in 0..RUNS {
        let outcome = record_command(&["--freq", "997"], "exitcode", &["42", "400", "600"]);
        let outcome = outcome.expect_code(0);
        assert!(outcome.text().contains("42"), "exit code in:\n{}", outcome.text());
        let folded = outcome.trace.folded();
        counts[0] += folded.count_of("first_phase");
        counts[1] += folded.count_of("second_phase");
    }
    for (phase, count, cpu_ms) in
        [("first_phase", counts[0], 400.0), ("second_phase", counts[1], 600.0)]
    {
        let sampled_ms = count as f64 * 1000.0 / 997.0 / RUNS as f64;
        let error = (sampled_ms - cpu_ms).abs();
        assert!(error < cpu_ms * 0.05 + 2.0, "{phase}: {sampled_ms:.1} ms of {cpu_ms} ms");
    }
}

#[test]
fn program_longer_than_the_duration_is_left_alone_and_waited_for() {
    needs_recording!();
    let _machine = together();
    let started = Instant::now();
    let options = ["--duration", "1", "--freq", "1999"];
    let outcome = record_command(&options, "exitcode", &["43", "1500", "1500"]);
    let outcome = outcome.expect_code(0);
    assert!(started.elapsed() >= Duration::from_secs(3), "the recorder did not wait for it");
    assert!(outcome.text().contains("43"), "exit code in:\n{}", outcome.text());
    let folded = outcome.trace.folded();
    assert!(folded.count_of("first_phase") > 100, "{} samples", folded.total());
    assert_eq!(folded.count_of("second_phase"), 0, "sampled after the duration");
    // The comparison uses the CPU time of that second, so the machine's load does not matter.
    let used_s = outcome.trace.number("cpu_time_ns") as f64 / 1e9;
    let sampled_s = folded.total() as f64 / 1999.0;
    assert!((sampled_s - used_s).abs() < 0.05, "{sampled_s:.3} s of {used_s:.3} s");
}

#[test]
fn program_that_ends_at_once_is_no_error_of_ours() {
    needs_recording!();
    let _machine = together();
    let outcome = record_command(&["--freq", "997"], "exitcode", &["7", "0", "0"]);
    // Such a short program may use less than one period. The exit code is then 4, and the trace is
    // written.
    assert!(matches!(outcome.code(), Some(0 | 4)), "{:?} {}", outcome.code(), outcome.text());
    assert!(outcome.trace.path().exists());
}

#[test]
fn program_that_cannot_be_started_is_an_error_that_names_it() {
    let trace = Trace::new();
    let mut command = traceprof(&["record", "--output"]);
    command.arg(trace.path()).args(["--", "./no-such-program-here"]);
    let outcome = Outcome { output: command.output().expect("traceprof"), trace };
    assert!(!matches!(outcome.code(), Some(0) | None), "{}", outcome.text());
    assert!(outcome.text().contains("no-such-program-here"), "{}", outcome.text());
    assert!(!outcome.trace.path().exists(), "a file without a recording");
}

#[test]
fn output_of_the_program_stays_its_own() {
    needs_recording!();
    let _machine = together();
    let trace = Trace::new();
    let mut command = traceprof(&["record", "-q", "--output"]);
    command.arg(trace.path()).args(["--", "/bin/sh", "-c", "echo from the program; exit 3"]);
    let outcome = Outcome { output: command.output().expect("traceprof"), trace };
    assert_eq!(String::from_utf8_lossy(&outcome.output.stdout), "from the program\n");
}

/// The child must not inherit the recorder's descriptors, and must not stay traced.
#[test]
fn program_starts_as_if_from_a_shell() {
    needs_recording!();
    let _machine = together();
    let script = "ls -l /proc/self/fd; grep -E 'TracerPid|SigBlk|SigIgn' /proc/self/status";
    let trace = Trace::new();
    let mut command = traceprof(&["record", "-q", "--output"]);
    command.arg(trace.path()).args(["--", "/bin/sh", "-c", script]);
    let output = command.output().expect("traceprof");
    let text = String::from_utf8_lossy(&output.stdout);
    for foreign in ["perf_event", "out.trace", "memfd", "pidfd"] {
        assert!(!text.contains(foreign), "{foreign} in:\n{text}");
    }
    assert!(text.contains("TracerPid:\t0"), "{text}");
    assert!(text.contains("SigBlk:\t0000000000000000"), "{text}");
}

#[test]
fn ctrl_c_ends_the_recording_of_a_command_with_data() {
    needs_recording!();
    let _machine = together();
    let trace = Trace::new();
    let mut command = traceprof(&["record", "--output"]);
    command.arg(trace.path()).args(["--freq", "499", "--duration", "60", "--"]);
    command.arg(program("exitcode")).args(["9", "3000", "0"]);
    // There is no terminal here: only traceprof gets the signal, and the program runs to its end.
    let child = command.stderr(std::process::Stdio::piped()).spawn().expect("traceprof");
    let mut recorder = Recorder::around(child, trace);
    let mut pid = None;
    let started = wait_until(Duration::from_secs(60), || {
        pid = child_named(recorder.pid(), "exitcode");
        pid.is_some()
    });
    assert!(started, "no program was started");
    recorder.wait_for_cpu(pid.expect("found above"), Duration::from_secs(1));
    recorder.send(nix::sys::signal::Signal::SIGINT);
    let outcome = recorder.finish().expect_code(0);
    assert!(outcome.trace.folded().count_of("first_phase") > 50);
}

/// Go's runtime installs its own SIGTRAP handler when it starts.
#[test]
fn go_program_is_sampled_and_lives() {
    needs_recording!();
    if !has_command("go") {
        skip!("no go compiler");
    }
    let _machine = together();
    let trace = Trace::new();
    let program = go_program("busy-go", "busy.go");
    let mut command = traceprof(&["record", "--freq", "499"]);
    command.arg("--output").arg(trace.path()).arg("--").arg(&program);
    let outcome = Outcome { output: command.output().expect("traceprof"), trace }.expect_code(0);
    assert!(outcome.text().contains("46"), "exit code in:\n{}", outcome.text());
    let folded = outcome.trace.folded();
    let (computing, total) = (folded.count_containing("main.fib"), folded.total());
    // It computes for two seconds, for which it need not have a processor.
    let expected = outcome.trace.number("cpu_time_ns") * 499 / 1_000_000_000;
    assert!(computing > total / 2 && computing * 2 > expected, "{computing} of {total}");
}

/// A program that executes another program, as wrapper scripts do.
#[test]
fn program_that_executes_another_is_no_crash_at_any_moment() {
    needs_recording!();
    let _machine = together();
    for round in 0..10 {
        let trace = Trace::new();
        let mut command = traceprof(&["record", "--freq", "9999", "--output"]);
        let script =
            format!("i=0; while [ $i -lt {} ]; do i=$((i+1)); done; exec true", round * 997);
        command.arg(trace.path()).args(["--", "/bin/sh", "-c", &script]);
        let output = command.output().expect("traceprof");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(text.contains("exited with code 0"), "round {round}:\n{text}");
    }
}
