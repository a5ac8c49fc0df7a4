//! Targets that overwrite or unmap the agent's segments. What becomes of such a target is its own
//! fault. The recorder ends as usual, with a sound trace, and leaves nothing behind.

use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::common::{
    Recorder, Target, child_named, is_long_run, needs_recording, seed, together, wait_until,
};

const PATTERNS: [&str; 8] =
    ["zeros", "ones", "random", "small", "pointers", "counters", "unmap-tables", "unmap-data"];
/// The documented codes with which a recording may end, whatever its target does to itself.
const CODES: [i32; 4] = [0, 1, 4, 11];
/// The codes if the target exited before anything was recorded, and if a signal ended it later.
const GONE: [i32; 2] = [7, 12];
const PATIENCE: Duration = Duration::from_secs(90);

fn record_scribbler(pattern: &str, engine: &str) {
    let mut target = Target::start("scribble", &[pattern]);
    let pid = target.pid();
    let pid_text = pid.to_string();
    let mode = if engine == "perf" { "cpu,wall" } else { "cpu" };
    let args = ["--pid", &pid_text, "--freq", "997", "--engine", engine, "--mode", mode];
    let mut recorder = Recorder::start(&[&args[..], &["--duration", "700ms"]].concat());
    recorder.wait_until_attached(pid);
    let (recorder_pid, guardian) = (recorder.pid(), child_named(recorder.pid(), "traceprof-guard"));
    std::thread::sleep(Duration::from_millis(100));
    kill(Pid::from_raw(pid), Signal::SIGUSR1).expect("a signal to the target");
    let since = Instant::now();
    let ended = wait_until(PATIENCE, || recorder.has_exited());
    let case = format!("{pattern}, {engine}, {:?}", since.elapsed());
    assert!(ended, "{case}: the recorder does not end");
    let outcome = recorder.finish();
    let text = outcome.text();
    assert!(!text.contains("panicked"), "{case}: {text}");
    let is_one_of = |codes: &[i32]| outcome.code().is_some_and(|code| codes.contains(&code));
    let is_known = is_one_of(&CODES) || (is_one_of(&GONE) && target.has_exited());
    assert!(is_known, "{case}: {:?} {text}", outcome.code());
    if outcome.trace.path().exists() {
        outcome.trace.view(&["verify"]);
        outcome.trace.view(&["print", "--tree"]);
    }
    let is_over = |pid: i32| !std::path::Path::new(&format!("/proc/{pid}")).exists();
    assert!(wait_until(PATIENCE, || guardian.is_none_or(is_over)), "{case}: a guardian is left");
    drop(target);
    let is_left = || {
        let table = std::fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
        let of = |line: &str| line.split_whitespace().nth(4).map(str::to_owned);
        table.lines().any(|line| of(line) == Some(recorder_pid.to_string()))
    };
    assert!(wait_until(PATIENCE, || !is_left()), "{case}: a segment is left");
}

#[test]
fn recorder_outlives_a_target_that_overwrites_or_unmaps_the_agent() {
    needs_recording!();
    let _machine = together();
    let turn = seed() as usize;
    for (index, pattern) in PATTERNS.iter().enumerate() {
        let engines = super::BOTH;
        let one = turn.wrapping_add(index) % engines.len();
        let chosen = if is_long_run() { engines } else { &engines[one..=one] };
        chosen.iter().for_each(|engine| record_scribbler(pattern, engine));
    }
}
