//! How far long work is: on terminals, and nowhere else.

use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use traceprof::trace::Sample;

use crate::common::{Maker, Tmux, Trace, maker, traceprof, wait_until};

/// A trace that takes some seconds to read, beside something else.
fn large() -> Trace {
    let mut maker = Maker::new();
    let thread = maker.thread(1, "x");
    let places: Vec<_> = (0..64).map(|n| maker.location(&format!("f{n}"))).collect();
    for n in 0..SAMPLES {
        // Stacks that have little in common with those before and after them.
        let depth = 8 + (n * 7 % 48) as usize;
        let stack: Vec<_> = (0..depth).map(|at| places[(at * 5 + n as usize) % 64]).collect();
        let time_ns = maker::BEGIN_NS + n * 1_000_000;
        let sample = Sample { time_ns, trace_id: n, ..Sample::default() };
        maker.writer.sample(thread, &sample, &stack).expect("a sample");
    }
    maker.finish()
}

const SAMPLES: u64 = 100_000;

/// Something else that uses the processor: beside it the work takes long on any machine.
struct Hog(Pid);

impl Hog {
    /// In the same terminal, whose processes share their part of the machine.
    fn start(tmux: &Tmux, trace: &Trace) -> Self {
        tmux.types("taskset -c 0 sh -c 'echo $$ >hog; while :; do :; done' &");
        let path = trace.dir().join("hog");
        let mut pid = String::new();
        let is_there = wait_until(Duration::from_secs(60), || {
            pid = std::fs::read_to_string(&path).unwrap_or_default();
            pid.ends_with('\n')
        });
        assert!(is_there, "{}", tmux.screen());
        std::fs::remove_file(&path).unwrap();
        Self(Pid::from_raw(pid.trim().parse().unwrap()))
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGKILL);
    }
}

/// Has the command run beside it.
const BESIDE: &str = "taskset -c 0 nice -n 12";

/// Goes to where the trace is, and waits until the shell is there.
fn enter(tmux: &Tmux, trace: &Trace) {
    tmux.types(&format!("cd {}; echo is''-there", trace.dir().display()));
    tmux.sees("is-there");
}

/// Runs the command in a terminal; the line is seen, and gone at the end.
fn shows(trace: &Trace, words: &str, line: &str) {
    let tmux = Tmux::start(100, 20);
    enter(&tmux, trace);
    let hog = Hog::start(&tmux, trace);
    tmux.types(&format!("{BESIDE} {} {words}; echo code-$?", env!("CARGO_BIN_EXE_traceprof")));
    tmux.sees(line);
    drop(hog);
    tmux.sees("code-0");
    let screen = tmux.screen();
    assert!(!screen.contains(line), "it stays:\n{screen}");
}

#[test]
fn checking_tells_how_far_it_is() {
    shows(&large(), "verify out.trace", "checking out.trace: ");
}

#[test]
fn making_a_page_tells_how_far_it_is() {
    shows(&large(), "view --force out.trace", "reading out.trace: ");
}

#[test]
fn exporting_tells_how_far_it_is() {
    shows(&large(), "export out.trace --format folded --force -o x.folded", "reading out.trace: ");
}

#[test]
fn the_line_is_gone_before_what_is_printed() {
    let (tmux, trace) = (Tmux::start(100, 40), large());
    enter(&tmux, &trace);
    let ours = format!("{BESIDE} {}", env!("CARGO_BIN_EXE_traceprof"));
    let hog = Hog::start(&tmux, &trace);
    tmux.types(&format!("{ours} export out.trace --format perf-script | head -5; echo code-$?"));
    tmux.sees("reading out.trace: ");
    drop(hog);
    tmux.sees("code-0");
    assert!(!tmux.screen().contains("reading out"), "{}", tmux.screen());
}

#[test]
fn recovering_and_indexing_tell_how_far_they_are() {
    let trace = large();
    shows(&trace, "recover --force out.trace saved.trace", "recovering out.trace: ");
    shows(&trace, "reindex out.trace", "indexing out.trace: ");
}

#[test]
fn nothing_of_it_is_in_a_pipe() {
    let trace = large();
    let path = trace.path();
    for action in [&["verify"][..], &["print"], &["export", "--format", "folded"], &["reindex"]] {
        let mut command = traceprof(action);
        let output = command.arg(&path).stdout(Stdio::null()).output().expect("traceprof");
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{err}");
        let is_silent = !err.contains('\x1b') && !err.contains('\r') && !err.contains(" %");
        assert!(is_silent, "{action:?}: {err}");
    }
}
