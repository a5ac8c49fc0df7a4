//! Descendants of a recorded process: the programs that they execute, and short, forked and
//! existing children.

use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use traceprof::trace::Value;

use super::{FREQ, PATIENCE, listed, loaded, sampled};
use crate::common::{
    Outcome, Recorder, Snapshot, Target, Trace, is_long_run, needs_recording, program, scratch_dir,
    together, traceprof, wait_until,
};

#[test]
fn programs_of_a_descendant_are_reported_with_its_process() {
    needs_recording!();
    let _machine = together();
    let folder = scratch_dir();
    let second = folder.path().join("second");
    std::fs::copy("/bin/sh", &second).expect("a copy");
    // The work after the wait takes some tens of periods, however soon the file is there.
    let until = |file: &str| {
        let file = folder.path().join(file);
        let work = "n=0; while [ $n -lt 30000 ]; do n=$((n+1)); done";
        format!("until [ -e {} ]; do :; done; {work}", file.display())
    };
    let inner = format!("{}; exec {} -c '{}'", until("go"), second.display(), until("end"));
    let trace = Trace::new();
    let log = trace.dir().join("log");
    let mut command = traceprof(&["record", "--subprocesses", "--freq", FREQ, "--output"]);
    // The outer shell stays, and the inner shell executes another program.
    command.arg(trace.path()).args(["--", "sh", "-c", "sh -c \"$1\"; :", "sh", &inner]);
    command.stderr(std::fs::File::create(&log).expect("a log"));
    let recorder = Recorder::around(command.spawn().expect("traceprof"), trace);
    let text = || std::fs::read_to_string(&log).unwrap_or_default();
    for (file, line, times) in [("go", "sampling 1 thread", 2), ("end", "executed ", 1)] {
        let is_printed = wait_until(PATIENCE, || text().matches(line).count() >= times);
        std::fs::write(folder.path().join(file), "").expect("a file");
        assert!(is_printed, "{line}: {}", text());
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
    assert_ne!(json["recording"]["pid"], pid, "the process is not the first one");
    let head = outcome.trace.view(&["print", "--summary"]);
    let line = head.lines().find(|line| line.starts_with("executed ")).expect("a line");
    assert!(line.contains(&format!("second by {pid} after ")), "{line}");
}

/// Records a program with its descendants, and checks its workers in the trace.
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
    // A worker may exit before the attach, if others use the processors.
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

/// All children are counted, whatever happens to them, and the totals match the processes.
#[test]
fn all_of_many_short_children_are_counted_and_their_sums_match() {
    needs_recording!();
    let _machine = together();
    let count = if is_long_run() { 400 } else { 20 };
    let trace = Trace::new();
    let mut command = traceprof(&["record", "--subprocesses", "--freq", FREQ, "--output"]);
    command.arg(trace.path()).arg("--").arg(program("workers"));
    command.args(["fork", &count.to_string(), "60"]);
    let outcome = Outcome { output: command.output().expect("traceprof"), trace };
    // On a busy machine no child may live long enough for a sample.
    assert!(matches!(outcome.code(), Some(0 | 4)), "{}", outcome.text());
    let number = |key: &str| outcome.trace.number(key);
    let known = ["processes", "processes_refused", "processes_missed"].map(number);
    // The recorder does not see a child that lives between two scans only.
    assert!((2..=count + 1).contains(&known.iter().sum::<u64>()), "{known:?}\n{}", outcome.text());
    assert_eq!(number("processes_summed"), 0);
    let (mut listed, mut samples, mut cpu_ns) = (0, 0, 0);
    for (key, value) in &loaded(&outcome.trace).metadata {
        let is_process = key.strip_prefix("process.").is_some_and(|it| it.parse::<u32>().is_ok());
        if let (true, Value::List(fields)) = (is_process, value)
            // A child that exited before its sampling began is listed without results.
            && let Some([Value::Unsigned(more), Value::Unsigned(ns), ..]) = fields.get(7..)
        {
            (listed, samples, cpu_ns) = (listed + 1, samples + more, cpu_ns + ns);
        }
    }
    assert_eq!([listed, samples, cpu_ns], ["processes", "samples", "cpu_time_ns"].map(number));
}

/// If the recorder attached to every new child, the recording would never end.
#[test]
fn the_size_limit_ends_the_recording_of_all_processes() {
    needs_recording!();
    let _machine = together();
    let mut command = Command::new("sh");
    // No child runs for ever, whatever happens to the shell.
    let forks = "ulimit -t 60; \"$1\" & first=$!; trap 'kill -9 $first $last; exit' TERM; \
                 while sleep 0.02; do \"$0\" spin & last=$!; sleep 0.02; kill -9 $last; done";
    command.arg("-c").arg(forks).arg(program("prey")).arg(program("threads"));
    let mut shell = Target::spawn(command);
    let pid = shell.pid().to_string();
    let args = ["--json", "--pid", &pid, "-s", "--max-size", "1M", "--freq", "20000", "-d", "120"];
    let outcome = Recorder::start(&args).finish().expect_code(0);
    let summary: serde_json::Value =
        serde_json::from_slice(&outcome.output.stdout).expect("one object");
    assert!(summary["ended"].as_str().is_some_and(|it| it.contains("--max-size")), "{summary}");
    let trace = loaded(&outcome.trace);
    assert!(listed(&trace, shell.pid()).0.contains("--max-size"), "{}", outcome.text());
    shell.send(Signal::SIGTERM);
    shell.wait();
}

/// A process that is never waited for, and that is killed when the value is dropped.
struct Killed(i32);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have exited.
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
