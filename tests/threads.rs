//! Which thread a sample belongs to: many threads, reused ids, changing names, namespaces.

use std::io::Write;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::common::{
    Outcome, Recorder, Target, Trace, alone, child_named, is_long_run, is_root, needs_recording,
    number_in, program, skip, tick, together, wait_until,
};

const SECOND: Duration = Duration::from_secs(1);

/// Starts a recording of a process and returns once it samples.
fn start(pid: i32, extra: &[&str]) -> Recorder {
    let pid_text = pid.to_string();
    let mut recorder = Recorder::start(&[&["--pid", &pid_text][..], extra].concat());
    recorder.wait_until_attached(pid);
    // The mappings exist a little before the first sample.
    std::thread::sleep(SECOND / 2);
    recorder
}

fn finish(mut recorder: Recorder) -> Outcome {
    recorder.send(Signal::SIGINT);
    recorder.finish().expect_code(0)
}

/// Returns M of "N seen, M with samples" in the closing report.
fn threads_with_samples(outcome: &Outcome) -> u64 {
    let text = outcome.text();
    let line =
        text.lines().find(|line| line.contains(" seen, ")).unwrap_or_else(|| panic!("{text}"));
    let words: Vec<&str> = line.split_whitespace().collect();
    let place = words.iter().position(|word| *word == "seen,").unwrap();
    words[place + 1].parse().unwrap_or_else(|_| panic!("{line}"))
}

fn resident_kib(pid: i32, key: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(key));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse().ok()).unwrap_or(0)
}

/// Records threads that start during the recording. All of them must have samples.
fn crowd(engine: &str, count: u64, micros: u64) {
    let mut target = Target::start("crowd", &[&count.to_string(), &micros.to_string()]);
    let pid = target.pid();
    let mut recorder = start(pid, &["--engine", engine, "--freq", "999"]);
    let before = (resident_kib(recorder.pid(), "VmRSS:"), resident_kib(pid, "VmRSS:"));
    target.send(Signal::SIGUSR1);
    let name = || std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let worked = wait_until(Duration::from_secs(400), || name().trim() == "crowd-done");
    assert!(worked, "the threads get no CPU time");
    let after = (resident_kib(recorder.pid(), "VmRSS:"), resident_kib(pid, "VmRSS:"));
    let outcome = finish(recorder);
    target.goes_on_and_ends_by_itself();
    assert_eq!((target.fact("failed"), target.fact("done")), (0, count));
    let text = outcome.text();
    let sampled = threads_with_samples(&outcome);
    // On a machine with a hundred other runnable threads, the recorder is too late for some.
    let metadata = outcome.trace.all_metadata();
    let losses = metadata.iter().filter(|(key, _)| key.starts_with("lost."));
    let lost: u64 = losses.filter_map(|(_, value)| number_in(value)).sum();
    let _ = writeln!(
        std::io::stderr(),
        "measured: {engine}: {sampled} of {count} threads have samples; the recorder grew by {} \
         MiB, \
         the target by {} MiB",
        after.0.saturating_sub(before.0) / 1024,
        after.1.saturating_sub(before.1) / 1024,
    );
    // When the kernel switches between threads with inherited events, it exchanges the events
    // instead of stopping and starting them. A thread that runs for parts of a period may therefore
    // see no expiry for several periods (measured: 1 of 150 for four).
    let unlucky = count / 200;
    let text_of = || format!("{sampled} of {count} threads have samples\n{text}");
    assert!(sampled + lost + unlucky >= count, "{}", text_of());
    let slots = outcome.trace.number("thread_slots_held_max");
    // A thread whose only samples were taken in the kernel has no slot.
    assert!((sampled - unlucky..count + 64).contains(&slots), "{slots} slots, {}", text_of());
    assert_eq!(outcome.trace.number("lost.no thread slot"), 0, "{text}");
    // The threads' buffers of 8 KiB, twice, and what the recorder keeps for each.
    let limit = (count * 32).max(200 << 10);
    assert!(after.0 < before.0 + limit, "{} KiB", after.0 - before.0);
}

#[test]
fn thousands_of_threads_that_start_while_recorded_all_have_samples() {
    needs_recording!();
    let _machine = alone();
    let count = if is_long_run() { 10_000 } else { 2000 };
    crowd("perf", count, 8000);
}

#[test]
fn thousands_of_threads_have_their_timers_armed() {
    needs_recording!();
    let _machine = alone();
    // The recorder arms a timer when some thread is sampled, and the timer expires at a tick.
    let count = if is_long_run() { 10_000 } else { 500 };
    crowd("timer", count, 15 * tick().as_micros() as u64);
}

/// Checks that every sample in a function of one kind of thread belongs to a thread of that name.
fn assert_apart(trace: &Trace, least: u64) {
    let folded = trace.view(&["export", "--format", "folded", "--threads", "--output", "-"]);
    let (mut right, mut wrong) = (0u64, Vec::new());
    for line in folded.lines() {
        let (stack, count) = line.rsplit_once(' ').expect(line);
        let (thread, stack) = stack.split_once(';').unwrap_or((stack, ""));
        for (name, work) in [("alpha", "alpha_work"), ("beta", "beta_work")] {
            if stack.contains(work) {
                match thread.contains(name) {
                    true => right += count.parse::<u64>().expect(line),
                    false => wrong.push(line),
                }
            }
        }
    }
    assert!(wrong.is_empty() && right >= least, "{right} right, wrong:\n{}", wrong.join("\n"));
}

/// Records threads that exit in the middle of a rotation, whose ids are reused at once.
fn reuse(command: Command, engine: &str) {
    let name = "reuse".to_owned();
    let mut target = Target::spawn(command);
    let pid = child_named(target.pid(), &name).unwrap_or(target.pid());
    let mut recorder = start(pid, &["--engine", engine, "--freq", "999"]);
    recorder.wait_for_cpu(pid, if engine == "perf" { 2 * SECOND } else { 6 * SECOND });
    let outcome = finish(recorder);
    nix::sys::signal::kill(Pid::from_raw(pid), Signal::SIGTERM).unwrap();
    target.wait();
    let (alpha, beta) = (target.fact("alpha"), target.fact("beta"));
    assert!(alpha > 20 && beta > 20, "the id was reused {alpha} and {beta} times");
    assert_apart(&outcome.trace, if engine == "perf" { 50 } else { 1 });
    let threads = outcome.trace.objects("THREAD");
    let ended = threads.iter().filter(|thread| thread["ended_ns"].as_u64().is_some()).count();
    assert!(ended > 20, "{ended} ends\n{}", outcome.text());
}

fn reused_ids_inherit_nothing(engine: &str) {
    needs_recording!();
    if !is_root() {
        skip!("root: only root may choose the next thread id");
    }
    let _machine = alone();
    // A short thread may exit before its timer is armed.
    let budget_ms = if engine == "perf" { 15 } else { 15 * tick().as_millis() };
    let budget_ms = budget_ms.to_string();
    let mut outside = Command::new(program("reuse"));
    outside.arg(&budget_ms);
    reuse(outside, engine);
    // Ids inside the namespace are reused, and ids outside are not.
    let mut inside = Command::new("unshare");
    inside.args(["--pid", "--fork", "--kill-child"]).arg(program("reuse")).arg(&budget_ms);
    reuse(inside, engine);
}

#[test]
fn a_reused_thread_id_inherits_nothing_with_perf_events() {
    reused_ids_inherit_nothing("perf");
}

#[test]
fn a_reused_thread_id_inherits_nothing_with_timers() {
    reused_ids_inherit_nothing("timer");
}

#[test]
fn names_starts_and_ends_are_those_of_the_thread() {
    needs_recording!();
    let _machine = alone();
    let mut target = Target::start("rename", &[]);
    let mut recorder = start(target.pid(), &["--freq", "999"]);
    target.send(Signal::SIGUSR1);
    recorder.wait_for_cpu(target.pid(), SECOND * 2 / 5);
    std::thread::sleep(SECOND / 2);
    let outcome = finish(recorder);
    target.goes_on_and_ends_by_itself();
    let tid = target.fact("tid");
    let listed = outcome.trace.objects("THREAD");
    let listed: Vec<_> =
        listed.iter().filter(|thread| thread["tid"].as_u64() == Some(tid)).collect();
    let last = listed.last().unwrap_or_else(|| panic!("no thread {tid}\n{}", outcome.text()));
    let tree = outcome.trace.view(&["print", "--tree"]);
    assert!(tree.contains("second"), "{tree}");
    // On a busy machine, time passes between what the program does and when it reads the clock.
    let assert_within = |key: &str, earliest: &str, latest: &str, tolerance_ns: u64| {
        let time = last[key].as_u64().unwrap_or_else(|| panic!("no {key}: {last}"));
        let (earliest, latest) = (target.fact(earliest), target.fact(latest));
        let is_right = (earliest - tolerance_ns..latest + tolerance_ns).contains(&time);
        assert!(is_right, "{key} is not from {earliest} to {latest}: {last}");
    };
    // From the kernel's report, or else from clock ticks and scans of the thread list.
    assert_within("first_seen_ns", "created_ns", "start_ns", 20_000_000);
    assert_within("ended_ns", "end_ns", "joined_ns", 200_000_000);
}

/// The last threads exit when the recording ends, after its last rotation.
#[test]
fn threads_of_a_program_that_ended_have_ended() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("rename", &[]);
    let mut recorder = start(target.pid(), &["--freq", "999"]);
    target.send(Signal::SIGUSR1);
    recorder.wait_for_cpu(target.pid(), SECOND * 2 / 5);
    target.goes_on_and_ends_by_itself();
    let outcome = recorder.finish().expect_code(0);
    let mut ends = std::collections::HashMap::new();
    for thread in outcome.trace.objects("THREAD") {
        ends.insert(thread["tid"].as_u64(), thread["ended_ns"].as_i64());
    }
    let open = ends.values().filter(|end| end.is_none_or(|end| end < 0)).count();
    assert!(ends.len() >= 2 && open == 0, "{ends:?}\n{}", outcome.text());
}

#[test]
fn threads_in_a_pid_namespace_have_both_ids() {
    needs_recording!();
    if !is_root() {
        skip!("root: only root may make a pid namespace");
    }
    let _machine = alone();
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child"]).arg(program("many_threads")).arg("3");
    let mut target = Target::spawn(command);
    let pid = child_named(target.pid(), "many_threads").expect("the program itself");
    let mut recorder = start(pid, &["--freq", "499"]);
    recorder.wait_for_cpu(pid, SECOND / 2);
    let outcome = finish(recorder);
    nix::sys::signal::kill(Pid::from_raw(pid), Signal::SIGTERM).unwrap();
    target.wait();
    let threads = outcome.trace.objects("THREAD");
    let main = threads.iter().position(|thread| thread["tid"].as_u64() == Some(pid as u64));
    let main = main.unwrap_or_else(|| panic!("{threads:?}"));
    assert!(threads.len() >= 4, "{threads:?}");
    let metadata = outcome.trace.objects("METADATA");
    for (number, thread) in threads.iter().enumerate() {
        let id = thread["id"].as_u64().expect("an id");
        let key = format!("inner_ids.{id}");
        let ids = metadata.iter().find(|entry| entry["key"] == key.as_str());
        let ids = ids.unwrap_or_else(|| panic!("no {key} in {metadata:?}"));
        // The first process of the namespace has id 1 in it.
        assert_eq!(ids["value"][0], 1, "{ids}");
        let inner = ids["value"][1].as_u64().expect("a thread id");
        assert_eq!(inner == 1, number == main, "{ids}");
        assert!(inner < 10, "{ids}");
    }
    let tree = outcome.trace.view(&["print", "--verbose"]);
    assert!(tree.contains("(thread 1 of process 1 in its namespace)"), "{tree}");
}
