//! How threads get their timers: signals, their delivery, and threads that start meanwhile.

use std::process::Command;
use std::time::Duration;

use inotify::{Inotify, WatchMask};
use nix::sys::signal::Signal;

use crate::common::{Recorder, Target, alone, needs_recording, program, together};

const SECOND: Duration = Duration::from_secs(1);

fn caught(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("status");
    let line = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    u64::from_str_radix(line.expect("SigCgt").trim(), 16).expect("a mask")
}

fn start(target: &Target, extra: &[&str]) -> Recorder {
    let pid_text = target.pid().to_string();
    let mut recorder = Recorder::start(&[&["--pid", &pid_text][..], extra].concat());
    recorder.wait_until_attached(target.pid());
    std::thread::sleep(SECOND / 2);
    recorder
}

/// The document asks whether a real-time signal was found in the right range. Here one more signal
/// is caught while the target is recorded, a signal that the target did not use, and none is caught
/// afterwards.
#[test]
fn signal_handler_installation() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("split", &[]);
    let before = caught(target.pid());
    let mut recorder = start(&target, &["--engine", "timer"]);
    recorder.wait_for_cpu(target.pid(), SECOND / 5);
    let added = caught(target.pid()) & !before;
    assert_eq!(added.count_ones(), 1, "{added:#x}");
    let signal = added.trailing_zeros() + 1;
    // If possible, the signal is none whose default action kills or stops the program. It is never
    // one of the C library (32 to 34), nor the one that perf events are bound to.
    let is_harmless = [Signal::SIGURG, Signal::SIGWINCH].map(|s| s as u32).contains(&signal);
    assert!(is_harmless || (35..=64).contains(&signal), "signal {signal}");
    recorder.send(Signal::SIGINT);
    recorder.finish().expect_code(0);
    assert_eq!(caught(target.pid()), before, "as it was");
    target.goes_on_and_ends_by_itself();
}

/// The document lists its own threads. Here the recorder finds all threads of another process,
/// including those that sleep and have no samples.
#[test]
fn thread_enumeration() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("many_threads", &["20"]);
    let pid = target.pid();
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("threads");
    let mut tids: Vec<u64> =
        tasks.map(|task| task.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect();
    tids.sort_unstable();
    assert_eq!(tids.len(), 21);
    let mut recorder = start(&target, &[]);
    recorder.wait_for_cpu(pid, SECOND / 5);
    recorder.send(Signal::SIGINT);
    let trace = recorder.finish().expect_code(0).trace;
    target.goes_on_and_ends_by_itself();
    assert_eq!(trace.number("threads"), 21);
    let threads = trace.objects("THREAD").into_iter();
    let mut reported: Vec<u64> =
        threads.map(|thread| thread["tid"].as_u64().expect("a thread id")).collect();
    reported.sort_unstable();
    reported.dedup();
    assert_eq!(reported, tids);
}

/// The document signals a thread and checks whether its handler ran. Here a thread starts to work
/// when no other thread of ours runs, so only the signal can reach it, and the thread acknowledges
/// it.
#[test]
fn signal_delivery() {
    needs_recording!();
    let _machine = alone();
    // With a low nice value, if permitted, it computes without a pause.
    let mut command = Command::new("nice");
    command.args(["-n", "-20"]).arg(program("rename"));
    let mut target = Target::spawn(command);
    let mut recorder = start(&target, &["--engine", "timer"]);
    target.send(Signal::SIGUSR1);
    recorder.wait_for_cpu(target.pid(), SECOND / 3);
    std::thread::sleep(SECOND / 5);
    recorder.send(Signal::SIGINT);
    let outcome = recorder.finish().expect_code(0);
    target.goes_on_and_ends_by_itself();
    assert!(outcome.trace.number("timers_armed") >= 1, "{}", outcome.text());
    assert!(outcome.trace.folded().count_of("named_work") > 0, "{}", outcome.text());
    let acks = outcome.trace.number("prime_acks");
    let latency_ns = outcome.trace.number("prime_latency_ns").checked_div(acks);
    assert!(latency_ns.is_some(), "no signal: {}", outcome.text());
    assert!(latency_ns.is_some_and(|ns| (1..1_000_000_000).contains(&ns)), "{latency_ns:?}");
}

/// The document waits for inotify events about threads. There are none: the kernel makes no inotify
/// events for /proc. The recorder's own watcher notices all threads.
#[test]
fn file_system_watcher() {
    needs_recording!();
    let _machine = alone();
    let mut target = Target::start("shortlived", &[]);
    let mut inotify = Inotify::init().unwrap();
    let folder = format!("/proc/{}/task", target.pid());
    let changes =
        WatchMask::CREATE | WatchMask::DELETE | WatchMask::MOVED_FROM | WatchMask::MOVED_TO;
    inotify.watches().add(folder.as_str(), changes).expect("a watch, which the kernel accepts");
    let mut recorder = start(&target, &["--freq", "999"]);
    recorder.wait_for_cpu(target.pid(), SECOND);
    recorder.send(Signal::SIGINT);
    let outcome = recorder.finish().expect_code(0);
    let mut buffer = [0; 4096];
    let nothing = inotify.read_events(&mut buffer).expect_err("the kernel reported a thread");
    assert_eq!(nothing.kind(), std::io::ErrorKind::WouldBlock);
    target.goes_on_and_ends_by_itself();
    let (seen, started) = (outcome.trace.number("threads"), target.fact("threads"));
    // Threads of one millisecond each, for more than a second.
    assert!(seen > 300 && seen <= started + 1, "{seen} seen of {started}\n{}", outcome.text());
}

/// The document asks for the latency of priming and the use of slots. Here the trace says for each
/// engine how soon threads that started were sampled, and how many of them.
#[test]
fn the_first_samples_of_threads_are_measured_for_each_engine() {
    needs_recording!();
    let _machine = together();
    for engine in ["signal", "perf", "timer"] {
        // Threads of 20 ms, four at a time.
        let mut target = Target::start("storm", &["4", "20000", "1000"]);
        let mut recorder = start(&target, &["--engine", engine, "--freq", "997"]);
        target.send(Signal::SIGUSR1);
        recorder.wait_for_cpu(target.pid(), SECOND / 2);
        recorder.send(Signal::SIGINT);
        let trace = recorder.finish().expect_code(0).trace;
        target.goes_on_and_ends_by_itself();
        let number = |key: &str| trace.number(key);
        if number("threads_started") == 0 {
            // The kernel reports no starts to this user.
            assert!(!nix::unistd::geteuid().is_root(), "{engine}");
            continue;
        }
        let (started, sampled) = (number("threads_started"), number("threads_started_sampled"));
        let with_slot = number("threads_started_with_slot");
        assert!(sampled > 0 && sampled <= started, "{engine}: {sampled} of {started}");
        assert!(with_slot <= sampled && (engine == "signal" || with_slot > 0), "{engine}");
        let quantile = |of: &str, which: &str| number(&format!("first_{of}_ns.{which}"));
        for of in ["sample", "slot"].into_iter().filter(|of| *of == "sample" || with_slot > 0) {
            let each = ["p50", "p90", "p99", "max"].map(|which| quantile(of, which));
            assert!(each.is_sorted() && each[0] > 0, "{engine}: {each:?}");
        }
        let cpu = ["threads_started_cpu_ns", "threads_started_sampled_cpu_ns"].map(number);
        assert!(cpu[1] <= cpu[0], "{engine}: {cpu:?}");
        assert!(number("thread_slots_held_max") > 0, "{engine}");
    }
}
