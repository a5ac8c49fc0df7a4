//! Threads in every kind of blocking call, recorded by a user without privileges.

use std::time::Duration;

use crate::common::{
    Recorder, Target, Trace, as_nobody, is_long_run, needs_recording, program,
    program_for_everyone, scratch_dir, seed, skip, together, unprivileged_obstacle,
};

const MODES: [&str; 3] = ["cpu", "wall", "cpu,wall"];

/// Every blocking call returns as it would without a recorder, in each mode and with each engine.
#[test]
fn no_blocking_call_fails_with_eintr_where_nobody_records() {
    needs_recording!();
    if let Some(obstacle) = unprivileged_obstacle() {
        skip!("{obstacle}");
    }
    let _machine = together();
    let dir = scratch_dir();
    let ours = std::path::Path::new(env!("CARGO_BIN_EXE_traceprof"));
    let [eintr, ours] =
        [&program("eintr"), ours].map(|path| program_for_everyone(path, dir.path()));
    let (Some(command), turn) = (as_nobody(&eintr), seed() as usize) else {
        skip!("root: needed to act as another user");
    };
    let mut target = Target::spawn(command);
    let pid = target.pid();
    let mut told = String::new();
    for (index, mode) in MODES.iter().enumerate() {
        let one = turn.wrapping_add(index) % 2;
        let chosen = if is_long_run() { super::BOTH } else { &super::BOTH[one..=one] };
        for engine in chosen {
            let mut command = as_nobody(&ours).expect("root, as before");
            command.args(["record", "--freq", super::HZ, "--engine", engine, "--mode", mode]);
            command.args(["--pid", &pid.to_string()]);
            let mut recorder = Recorder::spawn(command, Trace::new());
            recorder.wait_until_attached(pid);
            let seconds = if is_long_run() { 10 } else { 1 };
            std::thread::sleep(Duration::from_secs(seconds));
            recorder.send(nix::sys::signal::Signal::SIGINT);
            let outcome = recorder.finish().expect_code(0);
            told += &format!("{mode}, {engine}: {}", outcome.text());
        }
    }
    target.goes_on_and_ends_by_itself();
    target.assert_no_call_was_interrupted(&told);
    assert!(target.fact("calls") > 1000, "{:?}", target.facts());
}
