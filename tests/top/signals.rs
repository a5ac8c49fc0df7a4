//! Signals at a table: between two recordings, and those of job control.

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

/// A table that begins a new recording as often as it can, and stands still for some seconds at a
/// moment of that.
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

    /// It ends by itself, well; what it told.
    fn ends(&mut self) -> String {
        let has_ended = wait_until(PATIENCE, || self.child.try_wait().expect("a child").is_some());
        let moment = self.moment;
        if !has_ended {
            self.child.kill().expect("a kill");
        }
        let mut err = Vec::new();
        let mut pipe = self.child.stderr.take().expect("a pipe");
        std::io::Read::read_to_end(&mut pipe, &mut err).expect("text");
        let status = self.child.wait().expect("its end");
        assert!(has_ended, "{moment}: it goes on");
        assert_eq!(status.code(), Some(0), "{moment}: {}", text(&err));
        assert_eq!(files_in(self.temporary.path()), 0, "{moment}: temporary files");
        text(&err)
    }
}

#[test]
fn a_signal_at_any_moment_of_a_renewal_ends_it() {
    needs_recording!();
    let _machine = together();
    // The first recording does not listen any more; the next one does not listen yet, or attaches.
    let moments = ["RecordEnding", "RecordWritten", "RecordStarted.2", "RecordAttached.2"];
    let mut all: Vec<Renewed> = moments.into_iter().map(Renewed::start).collect();
    let signals = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP];
    for (one, signal) in all.iter().zip(signals.into_iter().cycle()) {
        one.awaits_moment();
        kill(Pid::from_raw(one.child.id() as i32), signal).expect("a signal");
    }
    for one in &mut all {
        one.ends();
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
    let err = one.ends();
    assert!(err.contains("note: the target exited"), "{err}");
}

/// The first line but for the time.
fn head(tmux: &Tmux) -> String {
    let screen = tmux.screen();
    let line = screen.lines().next().unwrap_or_default();
    line.split("  ").filter(|part| !part.ends_with(" s")).collect()
}

/// What a recording left in the target. Segments that the table itself has still go with it.
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
    tmux.sees("kernel_alpha");
    let first = head(&tmux);
    tmux.presses("C-z");
    tmux.sees("Stopped");
    tmux.sees("was-here");
    assert_eq!(marks_left(&before, &target), Vec::<String>::new());
    assert_eq!(files_in(&tmux.temporary()), 0, "temporary files");
    tmux.types("stty -a | grep -ow -e icanon");
    tmux.sees_all(&|screen| screen.lines().any(|line| line == "icanon"), "icanon");
    tmux.types("fg; echo again-$?");
    tmux.sees("kernel_alpha");
    assert_eq!(head(&tmux), first);
    tmux.presses("q");
    tmux.sees("again-0");
    tmux.sees("was-here");
    target.goes_on_and_ends_by_itself();
}

#[test]
fn a_trace_that_is_kept_goes_on_after_ctrl_z_and_after_a_stop() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("split", &[]);
    let (tmux, trace) = (Tmux::start(100, 30), Trace::new());
    start(&tmux, &format!("--output {} {}", trace.path().display(), target.pid()));
    tmux.sees("kernel_alpha");
    let top = child_named(tmux.shell(), "traceprof").expect("the command");
    tmux.presses("C-z");
    tmux.sees("was-here");
    tmux.sees("Stopped");
    tmux.types("clear; fg; echo again-$?");
    tmux.sees("▾self %");
    // A shell that stops it by force finds the terminal as it is, and takes it.
    kill(Pid::from_raw(top), Signal::SIGSTOP).expect("a signal");
    tmux.sees("again-");
    tmux.types("clear; fg; echo at-last-$?");
    tmux.sees("▾self %");
    tmux.sees_all(&|screen| !screen.contains("again-"), "the table alone");
    tmux.presses("q");
    tmux.sees("at-last-0");
    tmux.sees("the trace is kept");
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
    tmux.types(&format!("{} top {} &", env!("CARGO_BIN_EXE_traceprof"), target.pid()));
    let is_stopped = || {
        child_named(tmux.shell(), "traceprof")
            .and_then(|pid| fs::read_to_string(format!("/proc/{pid}/stat")).ok())
            .is_some_and(|stat| stat.contains(") T "))
    };
    assert!(wait_until(PATIENCE, is_stopped), "{}", tmux.screen());
    assert_eq!(marks_left(&before, &target), Vec::<String>::new());
    tmux.types("fg; echo code-$?");
    tmux.sees("kernel_alpha");
    tmux.presses("q");
    tmux.sees("code-0");
    target.goes_on_and_ends_by_itself();
}
