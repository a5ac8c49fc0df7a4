//! Recordings of the teams of `tests/targets/team.h`.

use std::time::Duration;

use nix::sys::signal::Signal;

use super::{Outcome, Recorder, Target, cpu_clock, wait_until};

/// Timeout of a team's work, for a busy machine.
const PATIENCE: Duration = Duration::from_secs(1200);

/// Records a team from the first to the last instruction of its work, which takes this much CPU
/// time.
pub(crate) fn record_team(
    program: &str,
    args: &[&str],
    whole: Duration,
    options: &[&str],
) -> (Target, Outcome) {
    let mut target = Target::start(program, args);
    let pid = target.pid().to_string();
    let args = ["--pid", &pid, "--duration", "3600"];
    let mut recorder = Recorder::start(&[&args[..], options].concat());
    recorder.wait_until_sampling();
    target.send(Signal::SIGUSR1);
    let used = wait_until(PATIENCE, || cpu_clock(target.pid()) > whole);
    assert!(used && !recorder.has_exited(), "{:?} of {whole:?}", cpu_clock(target.pid()));
    std::thread::sleep(Duration::from_millis(300));
    recorder.send(Signal::SIGINT);
    let outcome = recorder.finish().expect_code(0);
    target.goes_on_and_ends_by_itself();
    (target, outcome)
}
