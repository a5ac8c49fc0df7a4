//! Recordings under limits of descriptors: nothing sampled is lost, and the report names what was
//! left out.

use std::process::Command;
use std::time::Duration;

use traceprof::trace::{RunState, load};
use traceprof_abi::storage::log::flags::WALL;

use crate::common::{
    Outcome, Recorder, Target, Trace, has_command, needs_recording, skip, together, traceprof,
    with_descriptors,
};

/// Starts a recorder of a process under this limit.
fn start_within(limit: u64, pid: i32, options: &[&str]) -> Recorder {
    let mut command = traceprof(&["record", "--duration", "600"]);
    command.args(options).arg("--pid").arg(pid.to_string());
    Recorder::spawn(with_descriptors((limit, limit), command), Trace::new())
}

/// Returns the number of threads that slept for most of the recording.
fn sleepers(trace: &Trace) -> usize {
    let loaded = load(&trace.path()).expect("a trace");
    let mut times_us = Vec::new();
    for thread in &loaded.threads {
        let mut slept_us = 0;
        thread.for_each_sample(&mut |sample, _| {
            if sample.flags & WALL != 0 && sample.state == RunState::Sleeping as u8 {
                slept_us += u64::from(sample.weight);
            }
        });
        times_us.push(slept_us);
    }
    let longest_us = times_us.iter().copied().max().unwrap_or(0);
    times_us.iter().filter(|us| **us > 0 && **us * 10 > longest_us * 7).count()
}

/// Checks that a recording of this many sleeping threads, and one busy thread, is complete.
fn check(threads: u64, limit: u64, options: &[&str], left_out: &[&str]) {
    let count = threads.to_string();
    let mut target = Target::start("many_threads", &[&count]);
    let recorder = start_within(limit, target.pid(), options);
    // Enough for samples of the busy thread, however busy the machine is.
    let outcome = recorder.record_cpu(target.pid(), Duration::from_millis(500));
    target.goes_on_and_ends_by_itself();
    let (text, trace) = (outcome.text(), &outcome.trace);
    let case = format!("{threads} threads, limit {limit}, {options:?}: {text}");
    assert!(trace.view(&["verify"]).contains("clean"), "{case}");
    assert!(!text.contains("Too many open files"), "{case}");
    for name in ["threads_unwatched", "threads_unmet"] {
        assert_eq!(trace.number(&format!("wall.{name}")), 0, "{name}: {case}");
    }
    assert_eq!(sleepers(trace) as u64, threads, "{case}");
    assert!(trace.folded().count_of("lone_worker") > 0, "{case}");
    assert!(trace.number("wall.threads_reopened") > 0, "{case}");
    for part in [&["too few descriptors to keep them open"], left_out].concat() {
        assert!(text.contains(part), "{part} in {case}");
    }
}

#[test]
fn sleepers_are_complete_under_a_limit_of_1024() {
    needs_recording!();
    let _machine = together();
    let timers = ["for 601 threads; the limit of 1024 leaves"];
    check(600, 1024, &["--mode", "wall"], &timers);
    check(700, 1024, &["--mode", "cpu,wall"], &[]);
    let no_kernel = ["time in the kernel is not sampled: its events need"];
    check(600, 1024, &["--mode", "wall", "--engine", "perf"], &no_kernel);
}

#[test]
fn sleepers_are_complete_under_low_limits() {
    needs_recording!();
    let _machine = together();
    check(100, 256, &["--mode", "wall"], &[]);
    check(100, 64, &["--mode", "wall"], &[]);
    check(100, 64, &["--mode", "cpu,wall"], &[]);
}

#[test]
fn what_a_limit_makes_impossible_is_refused_before_anything_is_changed() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("many_threads", &["100"]);
    let check = |limit: u64, options: &[&str], why: &str| {
        let outcome = start_within(limit, target.pid(), options).finish().expect_code(1);
        assert!(outcome.text().contains(why), "{}", outcome.text());
        assert!(!outcome.trace.path().exists(), "a file of a recording that did not begin");
    };
    check(63, &[], "`ulimit -n 64`");
    check(100, &["--engine", "perf"], "--engine timer");
    target.goes_on_and_ends_by_itself();
}

/// Programs that use select(2) break with descriptors above 1023, and others close every one up to
/// the limit.
#[test]
fn started_program_has_the_limits_of_the_recorder_before_it_raised_them() {
    needs_recording!();
    let _machine = together();
    for limits in [(300, 900), (64, 64)] {
        let trace = Trace::new();
        let script = "ulimit -Sn; ulimit -Hn; i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
        let mut command = traceprof(&["record", "--output"]);
        command.arg(trace.path()).args(["--", "sh", "-c", script]);
        let output = with_descriptors(limits, command).output().expect("traceprof");
        let outcome = Outcome { output, trace }.expect_code(0);
        let shown = String::from_utf8_lossy(&outcome.output.stdout).into_owned();
        assert_eq!(shown, format!("{}\n{}\n", limits.0, limits.1), "{}", outcome.text());
    }
}

/// A program with more files than can stay open keeps its stacks.
#[test]
fn files_that_cannot_stay_open_cost_names_alone() {
    needs_recording!();
    if !has_command("python3") {
        skip!("python3 is not installed");
    }
    let _machine = together();
    let mut python = Command::new("python3");
    let text = "import ctypes, ssl, sqlite3, decimal, asyncio, multiprocessing, lzma, bz2, csv, \
                xml.etree.ElementTree, unicodedata, uuid, pickle, array, mmap, zlib, queue\n\
                print('ready', flush=True)\n\
                sum(sum(range(100)) for _ in range(10 ** 9))";
    let mut target = Target::spawn({
        python.args(["-c", text]);
        python
    });
    let recorder = start_within(64, target.pid(), &[]);
    let outcome = recorder.record_cpu(target.pid(), Duration::from_millis(500));
    assert!(!target.has_exited());
    let (text, trace) = (outcome.text(), &outcome.trace);
    assert!(text.contains("100.0 % reach the root"), "{text}");
    assert!(text.contains("so its code has no names"), "{text}");
    assert!(trace.view(&["verify"]).contains("clean"), "{text}");
}
