//! Several processes in one recording: their shares, their ends, and what is left in them.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use traceprof::trace::{self, LoadedTrace, Value};

use crate::common::{
    Outcome, Recorder, Snapshot, Target, Trace, as_nobody, is_long_run, needs_fault_points,
    needs_recording, program, program_for_everyone, scratch_dir, skip, together, traceprof,
    wait_until,
};

/// How long anything may take on a busy machine.
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

/// Each is as it was, goes on, and ends by itself.
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

/// What the trace says of a process: how it ended, its samples and its CPU time.
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

/// Samples of a process, their weights, and whether this function is in any of them.
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
    // A list, and one that stands alone.
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
    assert!(outcome.trace.view(&["print"]).contains("\nprocesses 3: prey ("));
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
    assert!(!recorder.has_ended());
    for target in &mut targets[1..] {
        target.send(Signal::SIGKILL);
        target.wait();
    }
    // Nobody asks it to.
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

/// Whatever has been done to one of them by then, and to the other.
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
fn who_cannot_be_recorded_is_named_and_does_not_hinder_the_others() {
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
        command.args(["record", "--force", "--duration", "500ms", "--freq", FREQ, "--pid", pids]);
        command.arg("--output").arg(trace.path()).output().expect("traceprof")
    };
    let outcome = Outcome { output: record(&list), trace: Trace::new() };
    let text = outcome.text();
    // On a busy machine half a second may be too short for a sample.
    assert!(matches!(outcome.code(), Some(0 | 4)), "{text}");
    let refused = lines(&text, "not recorded");
    let name = format!("{} (prey)", ours.pid());
    assert!(refused.len() == 1 && refused[0].contains(&name), "{text}");
    assert!(refused[0].contains("the target belongs to uid 0; run as that user"), "{text}");
    let loaded = loaded(&trace);
    assert_eq!(listed(&loaded, theirs.pid()).0, "detached");
    let alone = Outcome { output: record(&format!("{},999999", ours.pid())), trace };
    let text = alone.expect_code(3).text();
    assert!(text.contains("none of these 2 processes can be recorded"), "{text}");
    assert_eq!(before.differences(&Snapshot::take(ours.pid())), Vec::<String>::new());
}

/// A program that nobody else runs, by its name.
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
    let similar = format!("similar ones are {name} ({})", first.pid());
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
    let mut command = traceprof(&["record", "--name", &name, "--wait", "--freq", FREQ, "--output"]);
    command.arg(trace.path()).stderr(std::fs::File::create(&log).expect("a log"));
    let mut recorder = Recorder::around(command.spawn().expect("traceprof"), trace);
    let waits = || std::fs::read_to_string(&log).is_ok_and(|text| text.contains("waiting for"));
    assert!(wait_until(PATIENCE, waits), "it does not wait");
    let mut target = spawn(&path);
    recorder.wait_until_attached(target.pid());
    recorder.wait_for_cpu(target.pid(), Duration::from_millis(100));
    recorder.send(Signal::SIGINT);
    let outcome = recorder.finish().expect_code(0);
    assert_eq!(outcome.trace.number("pid"), target.pid() as u64);
    target.goes_on_and_ends_by_itself();
}

/// Each of these dies when it has been found, and before it is attached to.
#[test]
fn when_what_was_waited_for_ends_too_soon_the_next_one_is_recorded() {
    needs_recording!();
    needs_fault_points!();
    let _machine = together();
    for (letter, more) in [('c', &[][..]), ('d', &["--subprocesses"][..])] {
        let folder = scratch_dir();
        let (path, name) = renamed(folder.path(), letter);
        let trace = Trace::new();
        let log = trace.dir().join("log");
        let mut command = traceprof(&["record", "--name", &name, "--wait", "--freq", FREQ]);
        command.args(more).arg("--output").arg(trace.path());
        command.env("TRACEPROF_FAULT", "RecordOpened=target");
        command.stderr(std::fs::File::create(&log).expect("a log"));
        let mut recorder = Recorder::around(command.spawn().expect("traceprof"), trace);
        let says = |what: &str| {
            let is_said = || std::fs::read_to_string(&log).is_ok_and(|text| text.contains(what));
            assert!(wait_until(PATIENCE, is_said), "it does not say {what}");
        };
        says("waiting for a process");
        let mut first = spawn(&path);
        first.wait();
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

/// Nobody waits for another one that has its number.
#[test]
fn a_process_that_was_given_by_its_number_is_not_waited_for_again() {
    needs_recording!();
    needs_fault_points!();
    let _machine = together();
    let mut target = Target::start("prey", &["spin"]);
    let trace = Trace::new();
    let mut command = traceprof(&["record", "--pid", &target.pid().to_string(), "--output"]);
    command.arg(trace.path()).env("TRACEPROF_FAULT", "RecordOpened=target");
    let output = command.output().expect("traceprof");
    Outcome { output, trace }.expect_code(7);
    target.wait();
}

#[test]
fn what_a_descendant_executed_is_told_with_its_process() {
    needs_recording!();
    let _machine = together();
    let folder = scratch_dir();
    let second = folder.path().join("second");
    std::fs::copy("/bin/sh", &second).expect("a copy");
    let until =
        |file: &str| format!("until [ -e {} ]; do :; done", folder.path().join(file).display());
    let inner = format!("{}; exec {} -c '{}'", until("go"), second.display(), until("end"));
    let trace = Trace::new();
    let log = trace.dir().join("log");
    let mut command = traceprof(&["record", "--subprocesses", "--freq", FREQ, "--output"]);
    // The outer shell stays beside the inner one, which another program takes the place of.
    command.arg(trace.path()).args(["--", "sh", "-c", "sh -c \"$1\"; :", "sh", &inner]);
    command.stderr(std::fs::File::create(&log).expect("a log"));
    let recorder = Recorder::around(command.spawn().expect("traceprof"), trace);
    let text = || std::fs::read_to_string(&log).unwrap_or_default();
    for (file, told, times) in [("go", "sampling 1 thread", 2), ("end", "executed ", 1)] {
        let is_told = wait_until(PATIENCE, || text().matches(told).count() >= times);
        std::fs::write(folder.path().join(file), "").expect("a file");
        assert!(is_told, "{told}: {}", text());
    }
    let outcome = recorder.finish().expect_code(0);
    let json = outcome.trace.view(&["print", "--json", "--summary"]);
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let executed = json["recording"]["executed"].as_array().expect("a list");
    let is_second = |it: &&serde_json::Value| it["name"] == second.to_str().unwrap();
    let found = executed.iter().find(is_second).unwrap_or_else(|| panic!("{}", text()));
    let pid = found["pid"].as_u64().expect("a process");
    let processes = json["recording"]["processes"].as_array().expect("a list");
    assert!(processes.iter().any(|it| it["pid"] == pid), "{pid} of {processes:?}");
    assert_ne!(json["recording"]["pid"], pid, "it is not the first one");
    let head = outcome.trace.view(&["print", "--summary"]);
    let line = head.lines().find(|line| line.starts_with("executed ")).expect("a line");
    assert!(line.contains(&format!("second by {pid} after ")), "{line}");
}

/// Workers of a program that is recorded with its descendants; the trace, and their ids.
fn workers(how: &str, function: &str) {
    let trace = Trace::new();
    let mut command = traceprof(&["record", "--subprocesses", "--freq", FREQ, "--output"]);
    command.arg(trace.path()).arg("--").arg(program("workers")).args([how, "4", "300"]);
    let outcome = Outcome { output: command.output().expect("traceprof"), trace }.expect_code(0);
    let text = outcome.text();
    let pids = text.lines().filter_map(|line| line.strip_prefix("worker ")?.parse::<i32>().ok());
    let pids: Vec<i32> = pids.collect();
    assert_eq!(pids.len(), 4, "{text}");
    let trace = loaded(&outcome.trace);
    let sampled = pids.iter().map(|pid| sampled(&trace, *pid, function));
    let with_samples = sampled.filter(|(samples, _, is_there)| *samples > 0 && *is_there).count();
    // One may be over before it was attached to, where others keep the processors.
    assert!(with_samples >= 2, "{with_samples} of 4 workers have samples\n{text}");
}

#[test]
fn children_that_are_forked_meanwhile_are_recorded() {
    needs_recording!();
    let _machine = together();
    workers("fork", "burn_forked");
}

#[test]
fn children_that_begin_in_their_parents_memory_are_recorded_in_their_own() {
    needs_recording!();
    let _machine = together();
    workers("spawn", "burn_spawned");
}

/// Whatever becomes of each, all are counted, and what is told of all is what is told of each.
#[test]
fn of_many_short_children_all_are_counted_and_the_sums_are_theirs() {
    needs_recording!();
    let _machine = together();
    let count = if is_long_run() { 400 } else { 20 };
    let trace = Trace::new();
    let mut command = traceprof(&["record", "--subprocesses", "--freq", FREQ, "--output"]);
    command.arg(trace.path()).arg("--").arg(program("workers"));
    command.args(["fork", &count.to_string(), "60"]);
    let outcome = Outcome { output: command.output().expect("traceprof"), trace };
    // On a busy machine none may live long enough for a sample.
    assert!(matches!(outcome.code(), Some(0 | 4)), "{}", outcome.text());
    let number = |key: &str| outcome.trace.number(key);
    let known = ["processes", "processes_refused", "processes_missed"].map(number);
    // One that came and went between two looks was not seen.
    assert!((2..=count + 1).contains(&known.iter().sum::<u64>()), "{known:?}\n{}", outcome.text());
    assert_eq!(number("processes_summed"), 0);
    let (mut listed, mut samples, mut cpu_ns) = (0, 0, 0);
    for (key, value) in &loaded(&outcome.trace).metadata {
        let is_process = key.strip_prefix("process.").is_some_and(|it| it.parse::<u32>().is_ok());
        if let (true, Value::List(fields)) = (is_process, value)
            // One that was gone before its sampling began is listed without what it came to.
            && let Some([Value::Unsigned(more), Value::Unsigned(ns), ..]) = fields.get(7..)
        {
            (listed, samples, cpu_ns) = (listed + 1, samples + more, cpu_ns + ns);
        }
    }
    assert_eq!([listed, samples, cpu_ns], ["processes", "samples", "cpu_time_ns"].map(number));
}

/// With children that come for ever it would never end if each was begun with.
#[test]
fn the_size_limit_ends_the_recording_of_all_processes() {
    needs_recording!();
    let _machine = together();
    let mut command = Command::new("sh");
    // None goes on for ever, whatever becomes of the shell.
    let forks = "ulimit -t 60; \"$1\" & first=$!; trap 'kill -9 $first $last; exit' TERM; \
                 while sleep 0.02; do \"$0\" spin & last=$!; sleep 0.02; kill -9 $last; done";
    command.arg("-c").arg(forks).arg(program("prey")).arg(program("threads"));
    let mut shell = Target::spawn(command);
    let pid = shell.pid().to_string();
    let args = ["--json", "--pid", &pid, "-s", "--max-size", "1M", "--freq", "20000", "-d", "120"];
    let outcome = Recorder::start(&args).finish().expect_code(0);
    let told: serde_json::Value =
        serde_json::from_slice(&outcome.output.stdout).expect("one object");
    assert!(told["ended"].as_str().is_some_and(|it| it.contains("--max-size")), "{told}");
    let trace = loaded(&outcome.trace);
    assert!(listed(&trace, shell.pid()).0.contains("--max-size"), "{}", outcome.text());
    shell.send(Signal::SIGTERM);
    shell.wait();
}

/// A process that nobody waits for, killed with the value.
struct Killed(i32);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may be gone.
        let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.0), Signal::SIGKILL);
    }
}

#[test]
fn children_that_are_there_are_recorded_with_their_parent() {
    needs_recording!();
    let _machine = together();
    let mut command = Command::new("sh");
    command.arg("-c").arg("\"$0\" spin & wait").arg(program("prey"));
    let shell = Target::spawn(command);
    let children = format!("/proc/{0}/task/{0}/children", shell.pid());
    let child: i32 = std::fs::read_to_string(children).unwrap().trim().parse().unwrap();
    let _killed = Killed(child);
    let before = [shell.pid(), child].map(Snapshot::take);
    let pid = shell.pid().to_string();
    let mut recorder = Recorder::start(&["--pid", &pid, "-s", "--freq", FREQ]);
    recorder.wait_until_attached(child);
    recorder.wait_for_cpu(child, Duration::from_millis(100));
    recorder.send(Signal::SIGINT);
    let outcome = recorder.finish().expect_code(0);
    let trace = loaded(&outcome.trace);
    assert_eq!(listed(&trace, shell.pid()).0, "detached");
    assert!(listed(&trace, child).1 > 0, "{}", outcome.text());
    for (before, pid) in before.iter().zip([shell.pid(), child]) {
        assert_eq!(before.differences(&Snapshot::take(pid)), Vec::<String>::new());
    }
}
