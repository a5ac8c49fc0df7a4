//! Several processes in one recording: their shares, how each ends, and what remains in them.

mod descendants;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;
use traceprof::trace::{self, LoadedTrace, Value};

use crate::common::{
    Outcome, Recorder, Snapshot, Target, Trace, as_nobody, needs_fault_points, needs_recording,
    program, program_for_everyone, scratch_dir, skip, together, traceprof, wait_until,
};

/// Timeout of each step, for a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
const FREQ: &str = "997";

fn three() -> [Target; 3] {
    [(); 3].map(|()| Target::start("prey", &["spin"]))
}

fn pids(targets: &[Target]) -> String {
    targets.iter().map(|target| target.pid().to_string()).collect::<Vec<_>>().join(",")
}

fn wait_until_attached(recorder: &mut Recorder, targets: &[Target]) {
    targets.iter().for_each(|target| recorder.wait_until_attached(target.pid()));
}

/// Checks that each target is as before, goes on, and exits by itself.
fn assert_unharmed(before: &[Snapshot], targets: &mut [Target]) {
    for (before, target) in before.iter().zip(targets) {
        let differences = || before.differences(&Snapshot::take(target.pid()));
        let restored = wait_until(PATIENCE, || differences().is_empty());
        assert!(restored, "left in process {}: {:#?}", target.pid(), differences());
        target.goes_on_and_ends_by_itself();
    }
}

fn loaded(trace: &Trace) -> LoadedTrace {
    trace::load(&trace.path()).expect("a trace")
}

/// Returns what the trace says about a process: how it ended, its samples and its CPU time.
fn listed(trace: &LoadedTrace, pid: i32) -> (String, u64, u64) {
    let of = |value: &Value| match value {
        Value::List(fields) if fields[0] == Value::Unsigned(pid as u64) => match &fields[6..] {
            [Value::Text(how), Value::Unsigned(samples), Value::Unsigned(ns), ..] => {
                Some((how.clone(), *samples, *ns))
            }
            _ => None,
        },
        _ => None,
    };
    let listed = trace.metadata.iter().filter(|(key, _)| key.starts_with("process."));
    let found = listed.filter_map(|(_, value)| of(value)).next();
    found.unwrap_or_else(|| panic!("process {pid} is not listed: {:?}", trace.metadata))
}

/// Returns the number and the weight of a process's samples, and whether this function is in any.
fn sampled(trace: &LoadedTrace, pid: i32, function: &str) -> (u64, u64, bool) {
    let (mut samples, mut weight, mut is_there) = (0, 0, false);
    for thread in trace.threads.iter().filter(|it| it.thread().pid == pid as u32) {
        thread.for_each_sample(&mut |sample, stack| {
            samples += 1;
            weight += u64::from(sample.weight);
            is_there |= stack.iter().any(|location| {
                let method = trace.locations[location.0 as usize].method;
                trace.methods[method.0 as usize].name == function
            });
        });
    }
    (samples, weight, is_there)
}

fn lines<'a>(text: &'a str, label: &str) -> Vec<&'a str> {
    text.lines()
        .filter_map(|line| line.strip_prefix(label))
        .filter(|it| it.starts_with(' '))
        .collect()
}

#[test]
fn three_processes_have_their_shares_in_one_trace() {
    needs_recording!();
    let _machine = together();
    let mut targets = three();
    let before = targets.each_ref().map(|it| Snapshot::take(it.pid()));
    // A list, and a single pid.
    let (list, last) = (pids(&targets[..2]), targets[2].pid().to_string());
    let mut recorder = Recorder::start(&["--pid", &list, &last, "--freq", FREQ, "--verify-detach"]);
    wait_until_attached(&mut recorder, &targets);
    for target in &targets {
        recorder.wait_for_cpu(target.pid(), Duration::from_millis(300));
    }
    recorder.send(Signal::SIGINT);
    let outcome = recorder.finish().expect_code(0);
    let (text, trace) = (outcome.text(), loaded(&outcome.trace));
    assert_eq!(lines(&text, "verified").len(), 3, "{text}");
    assert!(!text.contains("LEFT IN"), "{text}");
    assert_eq!(outcome.trace.number("processes"), 3);
    let period_ns = outcome.trace.number("period_ns");
    let (mut samples, mut cpu_ns) = (0, 0);
    for target in &targets {
        let (how, listed_samples, used_ns) = listed(&trace, target.pid());
        let (own, weight, is_there) = sampled(&trace, target.pid(), "compute");
        assert_eq!((how.as_str(), listed_samples, is_there), ("detached", own, true));
        let sampled_ns = weight * period_ns;
        assert!(sampled_ns.abs_diff(used_ns) < used_ns / 10 + 10_000_000, "{used_ns} {sampled_ns}");
        (samples, cpu_ns) = (samples + own, cpu_ns + used_ns);
    }
    assert_eq!(outcome.trace.number("samples"), samples);
    assert_eq!(outcome.trace.number("cpu_time_ns"), cpu_ns);
    assert!(outcome.trace.view(&["print", "--tree"]).contains("\nprocesses 3: prey ("));
    let one = outcome.trace.view(&["print", "--process", &last]);
    let titles: Vec<&str> = one.lines().filter(|line| line.starts_with("thread ")).collect();
    assert!(titles.len() == 1 && titles[0].starts_with(&format!("thread {last} ")), "{one}");
    assert_unharmed(&before, &mut targets);
}

#[test]
fn the_end_of_one_process_is_not_that_of_the_others() {
    needs_recording!();
    let _machine = together();
    let mut targets = three();
    let mut recorder = Recorder::start(&["--pid", &pids(&targets), "--freq", FREQ]);
    wait_until_attached(&mut recorder, &targets);
    let used = Duration::from_millis(100);
    recorder.wait_for_cpu(targets[0].pid(), used);
    targets[0].send(Signal::SIGKILL);
    targets[0].wait();
    recorder.wait_for_cpu(targets[1].pid(), used);
    recorder.wait_for_cpu(targets[2].pid(), used);
    assert!(!recorder.has_exited());
    for target in &mut targets[1..] {
        target.send(Signal::SIGKILL);
        target.wait();
    }
    // Nobody asks the recorder to end.
    let outcome = recorder.finish().expect_code(0);
    let trace = loaded(&outcome.trace);
    for target in &targets {
        let (how, samples, _) = listed(&trace, target.pid());
        assert!(how == "exited" && samples > 0, "{how}, {samples} samples");
    }
}

#[test]
fn a_recorder_that_is_killed_leaves_three_processes_as_they_were() {
    needs_recording!();
    let _machine = together();
    let mut targets = three();
    let before = targets.each_ref().map(|it| Snapshot::take(it.pid()));
    let mut recorder = Recorder::start(&["--pid", &pids(&targets), "--freq", FREQ]);
    wait_until_attached(&mut recorder, &targets);
    recorder.wait_for_cpu(targets[2].pid(), Duration::from_millis(50));
    recorder.send(Signal::SIGKILL);
    drop(recorder.finish());
    assert_unharmed(&before, &mut targets);
}

/// The recorder dies at every step between the two processes.
#[test]
fn a_recorder_that_dies_between_two_steps_leaves_both_processes_as_they_were() {
    needs_recording!();
    needs_fault_points!();
    let _machine = together();
    let mut targets = [(); 2].map(|()| Target::start("prey", &["spin"]));
    let before = targets.each_ref().map(|it| Snapshot::take(it.pid()));
    let points = [
        "RecordStarted.2",
        "SegmentMade.4",
        "RecordAttached",
        "RecordAttached.2",
        "RecordSampling.2",
        "RecordEnding",
        "RecordDetached",
    ];
    for point in points {
        let trace = Trace::new();
        let mut command = traceprof(&["record", "-q", "--duration", "100ms", "--pid"]);
        command.arg(pids(&targets)).arg("--output").arg(trace.path());
        let status = command.env("TRACEPROF_FAULT", format!("{point}=recorder")).status();
        assert_eq!(status.expect("traceprof").code(), None, "{point} was not reached");
        for (before, target) in before.iter().zip(&targets) {
            let differences = || before.differences(&Snapshot::take(target.pid()));
            let restored = wait_until(PATIENCE, || differences().is_empty());
            assert!(restored, "{point} left in process {}: {:#?}", target.pid(), differences());
        }
    }
    assert_unharmed(&before, &mut targets);
}

#[test]
fn a_process_that_cannot_be_recorded_is_named_and_the_others_are_recorded() {
    needs_recording!();
    let _machine = together();
    let folder = scratch_dir();
    let recorder = program_for_everyone(Path::new(env!("CARGO_BIN_EXE_traceprof")), folder.path());
    let prey = program_for_everyone(&program("prey"), folder.path());
    let Some(mut command) = as_nobody(&prey) else { skip!("root: needed to act as two users") };
    command.arg("spin");
    let theirs = Target::spawn(command);
    let ours = Target::start("prey", &["spin"]);
    let before = Snapshot::take(ours.pid());
    let trace = Trace::new();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(trace.dir(), open).expect("a folder for everyone");
    let list = format!("{},{}", ours.pid(), theirs.pid());
    let record = |pids: &str| {
        let mut command = as_nobody(&recorder).expect("root");
        command.args([
            "record",
            "--stats",
            "--force",
            "--duration",
            "500ms",
            "--freq",
            FREQ,
            "--pid",
            pids,
        ]);
        command.arg("--output").arg(trace.path()).output().expect("traceprof")
    };
    let outcome = Outcome { output: record(&list), trace: Trace::new() };
    let text = outcome.text();
    // On a busy machine half a second may be too short for a sample.
    assert!(matches!(outcome.code(), Some(0 | 4)), "{text}");
    let refused = lines(&text, "not recorded");
    assert!(refused.len() == 1, "{text}");
    let belongs = format!("process {} (prey) belongs to uid 0; run as that user", ours.pid());
    assert!(refused[0].contains(&belongs), "{text}");
    let loaded = loaded(&trace);
    assert_eq!(listed(&loaded, theirs.pid()).0, "detached");
    let alone = Outcome { output: record(&format!("{},999999", ours.pid())), trace };
    let text = alone.expect_code(3).text();
    assert!(text.contains("none of these 2 processes can be recorded"), "{text}");
    assert_eq!(before.differences(&Snapshot::take(ours.pid())), Vec::<String>::new());
}

/// Copies the program to a name that no other process has.
fn renamed(folder: &Path, letter: char) -> (std::path::PathBuf, String) {
    let name = format!("nm{letter}{}", std::process::id() % 1_000_000);
    let path = folder.join(&name);
    if !path.exists() {
        std::fs::copy(program("prey"), &path).expect("a copy");
    }
    (path, name)
}

fn spawn(path: &Path) -> Target {
    let mut command = Command::new(path);
    command.arg("spin");
    Target::spawn(command)
}

#[test]
fn a_name_means_all_processes_that_have_it() {
    needs_recording!();
    let _machine = together();
    let folder = scratch_dir();
    let (path, name) = renamed(folder.path(), 'a');
    let exact = format!("^{name}$");
    let none = Recorder::start(&["--name", &exact]).finish().expect_code(7);
    assert!(none.text().contains("--wait"), "{}", none.text());
    let first = spawn(&path);
    let one = Recorder::start(&["--name", &exact, "--duration", "200ms"]).finish();
    assert!(matches!(one.code(), Some(0 | 4)), "{}", one.text());
    assert_eq!(one.trace.number("pid"), first.pid() as u64);
    let misspelt = Recorder::start(&["-P", &format!("{name}x")]).finish().expect_code(7);
    let similar = format!("similar names are {name} ({})", first.pid());
    assert!(misspelt.text().contains(&similar), "{}", misspelt.text());
    let _others = [spawn(&path), spawn(&path)];
    let three = Recorder::start(&["--name", &exact, "--duration", "200ms"]).finish();
    assert!(matches!(three.code(), Some(0 | 4)), "{}", three.text());
    assert_eq!(three.trace.number("processes"), 3, "{}", three.text());
}

#[test]
fn a_process_that_comes_later_is_waited_for() {
    needs_recording!();
    let _machine = together();
    let folder = scratch_dir();
    let (path, name) = renamed(folder.path(), 'b');
    let brief = Recorder::start(&["--name", &name, "--wait=100ms"]).finish().expect_code(7);
    assert!(brief.text().contains("within 0.1 s"), "{}", brief.text());
    let trace = Trace::new();
    let log = trace.dir().join("log");
    let mut command =
        traceprof(&["record", "--stats", "--name", &name, "--wait", "--freq", FREQ, "--output"]);
    command.arg(trace.path()).stderr(std::fs::File::create(&log).expect("a log"));
    let mut recorder = Recorder::around(command.spawn().expect("traceprof"), trace);
    let waits = || std::fs::read_to_string(&log).is_ok_and(|text| text.contains("waiting for"));
    assert!(wait_until(PATIENCE, waits), "the recorder does not wait");
    let mut target = spawn(&path);
    recorder.wait_until_attached(target.pid());
    recorder.wait_for_cpu(target.pid(), Duration::from_millis(100));
    recorder.send(Signal::SIGINT);
    let outcome = recorder.finish().expect_code(0);
    assert_eq!(outcome.trace.number("pid"), target.pid() as u64);
    target.goes_on_and_ends_by_itself();
}

/// Each of these exits after the recorder found it and before the attach.
#[test]
fn a_process_that_exits_before_its_attach_is_followed_by_the_next_one() {
    needs_recording!();
    needs_fault_points!();
    let _machine = together();
    for (letter, more) in [('c', &[][..]), ('d', &["--subprocesses"][..])] {
        let folder = scratch_dir();
        let (path, name) = renamed(folder.path(), letter);
        let trace = Trace::new();
        let log = trace.dir().join("log");
        let mut command =
            traceprof(&["record", "--stats", "--name", &name, "--wait", "--freq", FREQ]);
        command.args(more).arg("--output").arg(trace.path());
        command.env("TRACEPROF_FAULT", "RecordOpened=target");
        command.stderr(std::fs::File::create(&log).expect("a log"));
        let mut recorder = Recorder::around(command.spawn().expect("traceprof"), trace);
        let says = |what: &str| {
            let is_said = || std::fs::read_to_string(&log).is_ok_and(|text| text.contains(what));
            assert!(wait_until(PATIENCE, is_said), "the recorder does not print {what}");
        };
        says("waiting for a process");
        // The recorder may find it, and its end comes, before it is ready.
        let mut first = Command::new(&path);
        let first = first.arg("spin").stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
        first.expect("a program").wait().expect("its end");
        says("waiting for the next one");
        let mut second = spawn(&path);
        recorder.wait_until_attached(second.pid());
        recorder.wait_for_cpu(second.pid(), Duration::from_millis(100));
        recorder.send(Signal::SIGINT);
        let outcome = recorder.finish().expect_code(0);
        assert_eq!(outcome.trace.number("pid"), second.pid() as u64);
        second.goes_on_and_ends_by_itself();
    }
}

/// The recorder does not wait for another process with the same pid.
#[test]
fn a_process_that_was_given_by_its_number_is_not_waited_for_again() {
    needs_recording!();
    needs_fault_points!();
    let _machine = together();
    let mut target = Target::start("prey", &["spin"]);
    let trace = Trace::new();
    let mut command =
        traceprof(&["record", "--stats", "--pid", &target.pid().to_string(), "--output"]);
    command.arg(trace.path()).env("TRACEPROF_FAULT", "RecordOpened=target");
    let output = command.output().expect("traceprof");
    Outcome { output, trace }.expect_code(7);
    target.wait();
}
