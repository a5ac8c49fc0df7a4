//! Descendants of a recorded process: the programs that they execute, and short, forked and
//! existing children.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use traceprof::trace::Value;

use super::{FREQ, PATIENCE, lines, listed, loaded, sampled};
use crate::common::{
    Outcome, Recorder, Snapshot, Target, Trace, as_nobody, is_long_run, needs_recording, program,
    program_for_everyone, scratch_dir, skip, together, traceprof, wait_until,
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
    let mut command = record_all(&["--freq", FREQ, "--output"]);
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
    let head = outcome.trace.view(&["print", "--tree"]);
    let line = head.lines().find(|line| line.starts_with("executed ")).expect("a line");
    assert!(line.contains(&format!("second by {pid} after ")), "{line}");
}

/// `record --subprocesses` with all figures, which exits as the recording ended.
fn record_all(options: &[&str]) -> Command {
    let mut command = traceprof(&["record", "--subprocesses"]);
    command.args(["--stats", "--exit-code", "recording"]).args(options);
    command
}

/// Returns the ids of workers that have exited, and the CPU time of each in microseconds.
fn used_by_workers(text: &str) -> Vec<(i32, u64)> {
    let worker = |line: &str| {
        let (pid, us) = line.strip_prefix("worker ")?.split_once(' ')?;
        Some((pid.parse().ok()?, us.parse().ok()?))
    };
    text.lines().filter_map(worker).collect()
}

/// Records workers of some milliseconds each, with more options.
fn record_workers(count: u64, ms: u64, options: &[&str]) -> (Outcome, Vec<(i32, u64)>) {
    let trace = Trace::new();
    let mut command = record_all(&["--output"]);
    command.arg(trace.path()).args(options).arg("--").arg(program("workers"));
    command.args(["spawn", &count.to_string(), &ms.to_string()]);
    let outcome = Outcome { output: command.output().expect("traceprof"), trace }.expect_code(0);
    let workers = used_by_workers(&outcome.text());
    assert_eq!(workers.len() as u64, count, "{}", outcome.text());
    (outcome, workers)
}

/// Returns the share of the workers' CPU time that samples stand for.
fn sampled_share(outcome: &Outcome, workers: &[(i32, u64)]) -> f64 {
    let trace = loaded(&outcome.trace);
    let weights = workers.iter().map(|(pid, _)| sampled(&trace, *pid, "").1);
    let used_us: u64 = workers.iter().map(|(_, us)| us).sum();
    let period_us = outcome.trace.number("period_ns") as f64 / 1e3;
    weights.sum::<u64>() as f64 * period_us / used_us as f64
}

/// Checks that the recording has the CPU time that the workers used, and hardly any other.
fn assert_used(outcome: &Outcome, workers: &[(i32, u64)]) {
    let used_us: u64 = workers.iter().map(|(_, us)| us).sum();
    let counted = outcome.trace.number("cpu_time_ns") as f64 / 1e3 / used_us as f64;
    // The program itself starts them.
    assert!((0.9..1.25).contains(&counted), "{counted:.2} of the time\n{}", outcome.text());
}

/// The children of a process that is there at the start, two generations above.
#[test]
fn short_programs_of_existing_descendants_are_sampled() {
    needs_recording!();
    let _machine = together();
    let mut command = Command::new("sh");
    let inner = format!("read x; {} spawn 20 20; :", program("workers").display());
    command.args(["-c", "sh -c \"$0\"; :", &inner]).stdin(std::process::Stdio::piped());
    let mut shell = command.stdout(std::process::Stdio::piped()).spawn().expect("sh");
    let pid = shell.id().to_string();
    let children = format!("/proc/{0}/task/{0}/children", shell.id());
    let child = || std::fs::read_to_string(&children).ok()?.trim().parse().ok();
    assert!(wait_until(PATIENCE, || child().is_some()));
    let child: i32 = child().expect("a shell");
    let mut recorder = Recorder::start(&["--pid", &pid, "-s", "--freq", FREQ]);
    recorder.wait_until_attached(child);
    drop(shell.stdin.take());
    let output = shell.wait_with_output().expect("sh");
    let outcome = recorder.finish().expect_code(0);
    let workers = used_by_workers(&String::from_utf8_lossy(&output.stdout));
    assert_eq!(workers.len(), 20);
    let share = sampled_share(&outcome, &workers);
    assert!((0.9..1.1).contains(&share), "{:.1} %\n{}", 100.0 * share, outcome.text());
}

/// A shell with an agent forks subshells, which execute nothing.
#[test]
fn forks_of_a_program_that_lives_on_have_its_code() {
    needs_recording!();
    let _machine = together();
    let script = "sleep 1; i=0; while [ $i -lt 10 ]; do i=$((i+1)); \
                  ( n=0; while [ $n -lt 20000 ]; do n=$((n+1)); done ); done";
    let trace = Trace::new();
    let mut command = record_all(&["--freq", FREQ, "--output"]);
    command.arg(trace.path()).args(["--", "sh", "-c", "sh -c \"$0\"; :", script]);
    let outcome = Outcome { output: command.output().expect("traceprof"), trace }.expect_code(0);
    let text = outcome.text();
    let (rooted, samples) = (outcome.trace.number("rooted"), outcome.trace.number("samples"));
    assert!(samples > 50 && rooted * 100 >= samples * 95, "{rooted} of {samples}\n{text}");
    assert!(!text.contains(" ():"), "a process without a name: {text}");
}

/// The kernel goes on counting in a process of the recording that executes a program.
#[test]
fn an_exec_of_the_program_itself_adds_no_time_to_its_children() {
    needs_recording!();
    let _machine = together();
    let trace = Trace::new();
    let work = "n=0; while [ $n -lt 400000 ]; do n=$((n+1)); done";
    let children = "i=0; while [ $i -lt 50 ]; do i=$((i+1)); /bin/true; done";
    let script = format!("{children}; {work}; {children}; times");
    let mut command = record_all(&["--freq", FREQ, "--output"]);
    command.arg(trace.path()).args(["--", "sh", "-c", "exec sh -c \"$0\"", &script]);
    let outcome = Outcome { output: command.output().expect("traceprof"), trace }.expect_code(0);
    let text = outcome.text();
    let seconds = |word: &str| -> Option<f64> {
        let (minutes, seconds) = word.strip_suffix('s')?.split_once('m')?;
        Some(minutes.parse::<f64>().ok()? * 60.0 + seconds.parse::<f64>().ok()?)
    };
    let times: Vec<f64> = text.split_whitespace().filter_map(seconds).take(4).collect();
    assert_eq!(times.len(), 4, "{text}");
    let (used, counted) = (times.iter().sum::<f64>(), outcome.trace.number("cpu_time_ns") as f64);
    assert!(
        (used * 0.7..used * 1.1).contains(&(counted / 1e9)),
        "{:.2} s of {used:.2} s\n{text}",
        counted / 1e9
    );
}

/// The kernel samples them from outside, each from its first instruction on.
#[test]
fn programs_of_some_milliseconds_are_sampled_without_an_attach() {
    needs_recording!();
    let _machine = together();
    let (outcome, workers) = record_workers(50, 20, &["--freq", FREQ]);
    let text = outcome.text();
    // On a busy machine some live as long as those to which the recorder attaches.
    let attached = text.matches("(exe): sampling 1 thread").count();
    assert!(attached <= 10, "{attached} of 50 attached to: {text}");
    assert_eq!(lines(&text, "missed"), [] as [&str; 0]);
    let share = sampled_share(&outcome, &workers);
    assert!((0.95..1.05).contains(&share), "{:.1} % of the CPU time\n{text}", 100.0 * share);
    assert_used(&outcome, &workers);
    let trace = loaded(&outcome.trace);
    for (pid, us) in &workers {
        let (samples, _, has_function) = sampled(&trace, *pid, "burn_spawned");
        // A delay of the machine's own processor is in the CPU time, and has no samples.
        assert!(samples >= us / 1000 / 4 && has_function, "{pid}: {samples} for {us} us\n{text}");
        let (how, listed_samples, _) = listed(&trace, *pid);
        assert_eq!((how.as_str(), listed_samples), ("exited", samples));
    }
    let (rooted, samples) = (outcome.trace.number("rooted"), outcome.trace.number("samples"));
    // The last sample of a process may find its memory freed.
    assert!(rooted * 100 >= samples * 97, "{rooted} of {samples}\n{text}");
}

/// Of processes that are shorter than a period, not each has a sample, but all of them count.
#[test]
fn the_cpu_time_of_programs_shorter_than_a_period_is_attributed() {
    needs_recording!();
    let _machine = together();
    let (outcome, workers) = record_workers(300, 3, &["--freq", "199"]);
    let text = outcome.text();
    if outcome.trace.number("kernel_included") == 0 || !nix::unistd::geteuid().is_root() {
        skip!("root: needed to learn the CPU time of processes that have exited");
    }
    assert_used(&outcome, &workers);
    let share = sampled_share(&outcome, &workers);
    assert!((0.9..1.1).contains(&share), "{:.1} % of the CPU time\n{text}", 100.0 * share);
}

#[test]
fn a_program_that_lives_on_is_attached_to_and_no_time_counts_twice() {
    needs_recording!();
    let _machine = together();
    let (outcome, workers) = record_workers(2, 2000, &["--freq", FREQ]);
    let text = outcome.text();
    for (pid, _) in &workers {
        let is_attached = text.contains(&format!("exe ({pid}): sampling 1 thread"));
        assert!(is_attached, "{pid}\n{text}");
        assert!(sampled(&loaded(&outcome.trace), *pid, "burn_spawned").2);
    }
    assert_eq!(outcome.trace.number("processes"), 3, "{text}");
    for (pid, us) in &workers {
        let (how, samples, used_ns) = listed(&loaded(&outcome.trace), *pid);
        assert_eq!(how, "exited");
        assert!(samples * 1000 > us * 9 / 10 && used_ns > us * 950, "{samples} {used_ns}\n{text}");
    }
    let share = sampled_share(&outcome, &workers);
    assert!((0.93..1.05).contains(&share), "{:.1} % of the CPU time\n{text}", 100.0 * share);
}

#[test]
fn everyone_may_sample_the_short_programs_of_a_program() {
    needs_recording!();
    let _machine = together();
    let (folder, trace) = (scratch_dir(), Trace::new());
    let recorder = program_for_everyone(Path::new(env!("CARGO_BIN_EXE_traceprof")), folder.path());
    let workers = program_for_everyone(&program("workers"), folder.path());
    let Some(mut command) = as_nobody(&recorder) else { skip!("root: needed to act as nobody") };
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(trace.dir(), open).expect("a folder for everyone");
    command
        .args([
            "record",
            "--stats",
            "--exit-code",
            "recording",
            "--subprocesses",
            "--freq",
            FREQ,
            "--output",
        ])
        .arg(trace.path());
    command.arg("--").arg(&workers).args(["spawn", "30", "20"]);
    let outcome = Outcome { output: command.output().expect("traceprof"), trace }.expect_code(0);
    let (text, trace) = (outcome.text(), loaded(&outcome.trace));
    let each =
        used_by_workers(&text).into_iter().map(|(pid, _)| sampled(&trace, pid, "burn_spawned"));
    let with_samples = each.filter(|(_, _, has_function)| *has_function).count();
    assert!(with_samples >= 28, "{with_samples} of 30 workers have samples\n{text}");
}

/// Records a program with its descendants, and checks its workers in the trace.
fn workers(how: &str, function: &str) {
    let trace = Trace::new();
    let mut command = record_all(&["--freq", FREQ, "--output"]);
    command.arg(trace.path()).arg("--").arg(program("workers")).args([how, "4", "300"]);
    let outcome = Outcome { output: command.output().expect("traceprof"), trace }.expect_code(0);
    let text = outcome.text();
    let pids: Vec<i32> = used_by_workers(&text).into_iter().map(|(pid, _)| pid).collect();
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
    let mut command = record_all(&["--freq", FREQ, "--output"]);
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
