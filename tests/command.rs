//! `record -- COMMAND`: the recorder starts the program.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::common::{
    Outcome, Recorder, Trace, alone, as_nobody, child_named, go_program, has_command,
    needs_recording, program, program_for_everyone, record_command, scratch_dir, skip, together,
    traceprof, wait_until,
};
use crate::opener;

fn stderr(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

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
    assert!(folded.count_of("first_phase") > 10, "{} samples", folded.total());
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

/// Runs `record OPTIONS -- sh -c SCRIPT` to its end.
fn record_script(options: &[&str], script: &str) -> Outcome {
    let trace = Trace::new();
    let mut command = traceprof(&["record"]);
    command.args(options).arg("--output").arg(trace.path()).args(["--", "/bin/sh", "-c", script]);
    Outcome { output: command.output().expect("traceprof"), trace }
}

#[test]
fn exit_code_is_that_of_the_program_unless_the_recording_failed() {
    needs_recording!();
    let _machine = together();
    for (script, code) in [("exit 0", 0), ("exit 42", 42), ("kill -KILL $$", 137)] {
        let outcome = record_script(&[], script);
        assert_eq!(outcome.code(), Some(code), "{script}: {}", outcome.text());
        assert!(outcome.trace.path().exists());
        if outcome.trace.number("samples") == 0 {
            assert!(outcome.text().contains("note: no samples"), "{}", outcome.text());
        }
    }
    let recording = record_script(&["--exit-code", "recording"], "exit 42");
    assert!(matches!(recording.code(), Some(0 | 4)), "{}", recording.text());
    let json = record_script(&["--json", "--quiet"], "exit 42");
    assert_eq!(json.code(), Some(42));
    let object: serde_json::Value = serde_json::from_slice(&json.output.stdout).expect("an object");
    assert_eq!((&object["exit_code"], &object["reason"]), (&42.into(), &serde_json::Value::Null));
    // The trace exists already.
    let trace = json.trace.path();
    let mut command = traceprof(&["record", "--output"]);
    command.arg(&trace).args(["--", "/bin/sh", "-c", "exit 42"]);
    let refused = command.output().expect("traceprof");
    assert_eq!(refused.status.code(), Some(6), "{}", String::from_utf8_lossy(&refused.stderr));
}

#[test]
fn children_of_the_program_are_recorded_unless_they_are_unwanted() {
    needs_recording!();
    let _machine = together();
    let script = format!("{} 0 300 0; exit 5", program("exitcode").display());
    let outcome = record_script(&["--freq", "997"], &script);
    assert_eq!(outcome.code(), Some(5), "{}", outcome.text());
    let phase = outcome.trace.folded().count_of("first_phase");
    assert!(phase > 200, "{phase} samples: {}", outcome.text());
    let alone = record_script(&["--freq", "997", "--no-children"], &script);
    assert_eq!(alone.code(), Some(5), "{}", alone.text());
    assert_eq!(alone.trace.folded().count_of("first_phase"), 0, "{}", alone.text());
}

/// A program may leave a server behind. `--subprocesses` waits for that, too.
#[test]
fn recording_ends_with_the_program_though_a_child_lives_on() {
    needs_recording!();
    let _machine = together();
    let script = "sleep 20 >/dev/null 2>&1 & echo $!; sleep 0.6";
    let started = Instant::now();
    let outcome = record_script(&[], script);
    let child: i32 = String::from_utf8_lossy(&outcome.output.stdout).trim().parse().expect("a pid");
    let lives = std::path::Path::new(&format!("/proc/{child}")).exists();
    let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(child), Signal::SIGKILL);
    assert!(lives && started.elapsed() < Duration::from_secs(18), "{}", outcome.text());
    assert_eq!(outcome.code(), Some(0), "{}", outcome.text());
    assert!(outcome.text().contains("1 of its processes runs on"), "{}", outcome.text());
    let started = Instant::now();
    let all = record_script(&["--subprocesses"], "sleep 2 >/dev/null 2>&1 & exit 0");
    assert!(started.elapsed() >= Duration::from_secs(2), "{}", all.text());
}

#[test]
fn report_comes_before_the_wait_which_a_signal_ends() {
    needs_recording!();
    let _machine = together();
    let trace = Trace::new();
    let mut command = traceprof(&["record", "--duration", "0.3", "--output"]);
    command.arg(trace.path()).args(["--", "/bin/sh", "-c", "exec sleep 60 >/dev/null 2>&1"]);
    let child = command.stderr(std::process::Stdio::piped()).spawn().expect("traceprof");
    let mut recorder = Recorder::around(child, trace);
    recorder.wait_for_line("waiting for sleep");
    let pid = child_named(recorder.pid(), "sleep").expect("the program");
    recorder.send(Signal::SIGINT);
    let outcome = recorder.finish().expect_code(0);
    let lives = std::path::Path::new(&format!("/proc/{pid}/exe")).exists();
    let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), Signal::SIGKILL);
    assert!(lives, "{}", outcome.text());
    let text = outcome.text();
    let position = |part: &str| text.find(part).unwrap_or_else(|| panic!("no {part} in:\n{text}"));
    assert!(position("recorded ") < position("waiting for sleep"), "{text}");
    assert!(text.contains("runs on"), "{text}");
}

/// A recording of a command that makes its page and opens it.
#[test]
fn a_recording_opens_its_page() {
    needs_recording!();
    let _machine = together();
    let folder = scratch_dir();
    let dir = folder.path().join("bin");
    std::fs::create_dir(&dir).unwrap();
    opener::install(&dir, "printf %s \"$1\" >\"${0%/*}/opened\"");
    let record = |options: &[&str]| {
        let mut command = traceprof(&["record", "--view", "-F", "997", "-o", "x.trace"]);
        command.args(options).arg("--").arg(program("exitcode")).args(["3", "100", "0"]);
        command.env("PATH", &dir).current_dir(folder.path()).output().expect("traceprof")
    };
    let output = record(&[]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    let page = folder.path().join("x.html");
    assert_eq!(std::fs::read_to_string(dir.join("opened")).unwrap(), page.display().to_string());
    assert!(std::fs::read_to_string(&page).unwrap().contains("</html>"));
    // The page is not what the exit code is about.
    opener::install(&dir, "exit 4");
    let output = record(&["--force"]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert!(stderr(&output).contains("note: xdg-open did not open"), "{}", stderr(&output));
}

/// The report that people read. `--stats` has the figures.
#[test]
fn report_fits_in_a_narrow_terminal() {
    needs_recording!();
    let _machine = together();
    let trace = Trace::new();
    let mut command = traceprof(&["record", "--freq", "997", "--output", "x.trace", "--"]);
    command.arg(program("exitcode")).args(["0", "400", "0"]).current_dir(trace.dir());
    let output = command.output().expect("traceprof");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let labels: Vec<&str> =
        text.lines().filter_map(|line| line.split_whitespace().next()).collect();
    let expected = [
        "sampling",
        "recorded",
        "CPU",
        "cost",
        "paused",
        "written",
        "command",
        "next",
        "traceprof",
    ];
    assert_eq!(labels, expected, "{text}");
    let widest = text.lines().map(|line| line.chars().count()).max();
    assert!(widest <= Some(80), "{text}");
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
    command.arg(program("exitcode")).args(["0", "3000", "0"]);
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
    recorder.send(Signal::SIGINT);
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
    let outcome = Outcome { output: command.output().expect("traceprof"), trace }.expect_code(46);
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

/// Writes a program with these bits of its mode.
fn with_mode(path: &Path, contents: &[u8], mode: u32) {
    fs::write(path, contents).expect("a program");
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("its mode");
}

/// The kernel withholds the privileges of a file from a program that an ordinary user traces.
#[test]
fn a_command_has_the_privileges_of_its_file_or_is_refused() {
    needs_recording!();
    let _machine = together();
    let folder = scratch_dir();
    let path = |name: &str| folder.path().join(name);
    let id = fs::read("/usr/bin/id").expect("id");
    with_mode(&path("user"), &id, 0o4755);
    with_mode(&path("group"), &id, 0o2755);
    with_mode(&path("script"), format!("#!{} -u\n", path("user").display()).as_bytes(), 0o755);
    with_mode(&path("own"), b"#!/bin/sh\nid -u\n", 0o4755);
    with_mode(&path("capable"), &id, 0o755);
    let ours = program_for_everyone(env!("CARGO_BIN_EXE_traceprof").as_ref(), folder.path());
    let run = |command: &mut Command, line: &str| {
        command.args(line.split(' ')).current_dir(folder.path()).output().expect("an exit")
    };
    let nobody = |line: &str| as_nobody("env".as_ref()).map(|mut command| run(&mut command, line));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match nobody("./user -u") {
        None => skip!("root: needed to act as two users"),
        Some(plain) if text(&plain.stdout) != "0\n" => skip!("a place where set-uid counts"),
        Some(_) => {}
    }
    let refused = |line: &str, what: &str| {
        for dry in ["", "--dry-run "] {
            let line = format!("./traceprof record {dry}-o x.trace -- {line}");
            let output = nobody(&line).expect("another user");
            let said = text(&output.stderr);
            assert_eq!((output.status.code(), text(&output.stdout)), (Some(3), String::new()));
            assert!(said.contains("with its privileges: ") && said.contains(what), "{said}");
            assert!(!path("x.trace").exists());
        }
    };
    refused("./user -u", "/user is set-uid (uid 0), which the kernel withholds");
    refused("./group -g", "/group is set-gid (gid 0), which the kernel withholds");
    refused("./script", &format!("{} is set-uid (uid 0)", path("user").display()));
    let mut setcap = Command::new("setcap");
    if has_command("setcap") && run(&mut setcap, "cap_net_raw=p capable").status.success() {
        refused("./capable -u", "/capable has file capabilities");
    }
    // These run as they do without a recorder.
    let prints = |output: Output, expected: &str| {
        assert_eq!(text(&output.stdout), expected, "{}", text(&output.stderr));
    };
    let record = "record -q --force -o x.trace --";
    let as_another = |line: &str| nobody(line).expect("another user");
    prints(as_another(&format!("./traceprof {record} ./own")), "65534\n");
    let voided = format!("setpriv --no-new-privs ./traceprof {record} ./user -u");
    prints(as_another(&voided), "65534\n");
    prints(as_another(&format!("./traceprof {record} nice ./user -u")), "0\n");
    prints(run(&mut Command::new(&ours), &format!("{record} ./user -u")), "0\n");
}
