//! Signals to `top`: between two recordings, and those of job control.

use std::fs;
use std::process::{Child, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use super::terminal::start;
use super::{PATIENCE, files_in, text, top};
use crate::common::{
    Snapshot, Target, Tmux, Trace, child_named, needs_recording, scratch_dir, together, wait_until,
};

/// A `top` that starts a new recording as often as it can, and is stopped for some seconds at a
/// step of that.
struct Renewed {
    target: Target,
    child: Child,
    temporary: TempDir,
    log: TempDir,
    moment: &'static str,
}

impl Renewed {
    fn start(moment: &'static str) -> Self {
        let target = Target::start("split", &[]);
        let (temporary, log) = (scratch_dir(), scratch_dir());
        let pid = target.pid().to_string();
        let mut command = top(&temporary, &["--max-size", "16K", "--freq", "9973", &pid]);
        command.env("TRACEPROF_FAULT", format!("{moment}=stall"));
        command.env("TRACEPROF_FAULT_LOG", log.path().join("log"));
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let child = command.spawn().expect("traceprof");
        Self { target, child, temporary, log, moment }
    }

    fn awaits_moment(&self) {
        let (point, _) = self.moment.split_once('.').unwrap_or((self.moment, ""));
        let line = format!("{point}=stall\n");
        let log = || fs::read_to_string(self.log.path().join("log")).unwrap_or_default();
        assert!(wait_until(PATIENCE, || log().contains(&line)), "{} is not reached", self.moment);
    }

    /// Checks that it exits by itself without an error, and returns its output.
    fn expect_exit(&mut self) -> String {
        let has_exited = wait_until(PATIENCE, || self.child.try_wait().expect("a child").is_some());
        let moment = self.moment;
        if !has_exited {
            self.child.kill().expect("a kill");
        }
        let mut err = Vec::new();
        let mut pipe = self.child.stderr.take().expect("a pipe");
        std::io::Read::read_to_end(&mut pipe, &mut err).expect("text");
        let status = self.child.wait().expect("its end");
        assert!(has_exited, "{moment}: the target goes on");
        assert_eq!(status.code(), Some(0), "{moment}: {}", text(&err));
        assert_eq!(files_in(self.temporary.path()), 0, "{moment}: temporary files");
        text(&err)
    }
}

#[test]
fn a_signal_at_any_moment_of_a_renewal_ends_it() {
    needs_recording!();
    let _machine = together();
    // The first recording does not handle signals any more. The next one does not handle them yet,
    // or is attaching.
    let moments = ["RecordEnding", "RecordWritten", "RecordStarted.2", "RecordAttached.2"];
    let mut all: Vec<Renewed> = moments.into_iter().map(Renewed::start).collect();
    let signals = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP];
    for (one, signal) in all.iter().zip(signals.into_iter().cycle()) {
        one.awaits_moment();
        kill(Pid::from_raw(one.child.id() as i32), signal).expect("a signal");
    }
    for one in &mut all {
        one.expect_exit();
        one.target.goes_on_and_ends_by_itself();
    }
}

#[test]
fn a_process_that_ends_between_two_recordings_is_no_error() {
    needs_recording!();
    let _machine = together();
    let mut one = Renewed::start("RecordWritten");
    one.awaits_moment();
    one.target.goes_on_and_ends_by_itself();
    let err = one.expect_exit();
    assert!(err.contains("note: the target exited"), "{err}");
}

/// Returns the first line without the time.
fn head(tmux: &Tmux) -> String {
    let screen = tmux.screen();
    let line = screen.lines().next().unwrap_or_default();
    line.split("  ").filter(|part| !part.ends_with(" s")).collect()
}

/// Returns what a recording left in the target. Segments that the table itself still maps will go
/// with it.
fn marks_left(before: &Snapshot, target: &Target) -> Vec<String> {
    let mut marks = before.marks_left(&Snapshot::take(target.pid()));
    marks.retain(|mark| !mark.starts_with("segment new"));
    marks
}

#[test]
fn ctrl_z_gives_terminal_and_target_back_until_fg() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("split", &[]);
    let before = Snapshot::take(target.pid());
    let tmux = Tmux::start(100, 30);
    start(&tmux, &format!("{}", target.pid()));
    tmux.wait_for("kernel_alpha");
    let first = head(&tmux);
    tmux.press_key("C-z");
    tmux.wait_for("Stopped");
    tmux.wait_for("was-here");
    assert_eq!(marks_left(&before, &target), Vec::<String>::new());
    assert_eq!(files_in(&tmux.temporary()), 0, "temporary files");
    tmux.type_line("stty -a | grep -ow -e icanon");
    tmux.wait_for_screen(&|screen| screen.lines().any(|line| line == "icanon"), "icanon");
    tmux.type_line("fg; echo again-$?");
    tmux.wait_for("kernel_alpha");
    assert_eq!(head(&tmux), first);
    tmux.press_key("q");
    tmux.wait_for("again-0");
    tmux.wait_for("was-here");
    target.goes_on_and_ends_by_itself();
}

#[test]
fn a_trace_that_is_kept_goes_on_after_ctrl_z_and_after_a_stop() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("split", &[]);
    let (tmux, trace) = (Tmux::start(100, 30), Trace::new());
    start(&tmux, &format!("--output {} {}", trace.path().display(), target.pid()));
    tmux.wait_for("kernel_alpha");
    let top = child_named(tmux.shell(), "traceprof").expect("the command");
    tmux.press_key("C-z");
    tmux.wait_for("was-here");
    tmux.wait_for("Stopped");
    tmux.type_line("clear; fg; echo again-$?");
    tmux.wait_for("▾self %");
    // A shell that stops it with SIGSTOP finds the terminal unrestored and takes it.
    kill(Pid::from_raw(top), Signal::SIGSTOP).expect("a signal");
    tmux.wait_for("again-");
    tmux.type_line("clear; fg; echo at-last-$?");
    tmux.wait_for("▾self %");
    tmux.wait_for_screen(&|screen| !screen.contains("again-"), "the table alone");
    tmux.press_key("q");
    tmux.wait_for("at-last-0");
    tmux.wait_for("the trace is kept");
    assert!(trace.view(&["verify"]).contains("clean"), "{}", trace.view(&["verify"]));
    target.goes_on_and_ends_by_itself();
}

#[test]
fn in_the_background_it_waits_before_it_attaches() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("split", &[]);
    let before = Snapshot::take(target.pid());
    let tmux = Tmux::start(100, 30);
    tmux.type_line(&format!("{} top {} &", env!("CARGO_BIN_EXE_traceprof"), target.pid()));
    let is_stopped = || {
        child_named(tmux.shell(), "traceprof")
            .and_then(|pid| fs::read_to_string(format!("/proc/{pid}/stat")).ok())
            .is_some_and(|stat| stat.contains(") T "))
    };
    assert!(wait_until(PATIENCE, is_stopped), "{}", tmux.screen());
    assert_eq!(marks_left(&before, &target), Vec::<String>::new());
    tmux.type_line("fg; echo code-$?");
    tmux.wait_for("kernel_alpha");
    tmux.press_key("q");
    tmux.wait_for("code-0");
    target.goes_on_and_ends_by_itself();
}
