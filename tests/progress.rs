//! How far long work is: on terminals, and nowhere else.

use std::process::Stdio;
use std::sync::OnceLock;

use traceprof::trace::Sample;

use crate::common::{Maker, Tmux, Trace, maker, traceprof};

/// A trace that takes some seconds to read, made once.
fn large() -> &'static Trace {
    static LARGE: OnceLock<Trace> = OnceLock::new();
    LARGE.get_or_init(|| {
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
    })
}

const SAMPLES: u64 = 150_000;

/// Goes to where the trace is, and waits until the shell is there.
fn enter(tmux: &Tmux) {
    tmux.types(&format!("cd {}; echo is''-there", large().dir().display()));
    tmux.sees("is-there");
}

/// Runs the command in a terminal; the line is seen, and gone at the end.
fn shows(words: &str, line: &str) {
    let tmux = Tmux::start(100, 20);
    enter(&tmux);
    tmux.types(&format!("{} {words}; echo code-$?", env!("CARGO_BIN_EXE_traceprof")));
    tmux.sees(line);
    tmux.sees("code-0");
    let screen = tmux.screen();
    assert!(!screen.contains(line), "it stays:\n{screen}");
}

#[test]
fn checking_tells_how_far_it_is() {
    shows("verify out.trace", "checking out.trace: ");
}

#[test]
fn exporting_tells_how_far_it_is() {
    shows("export out.trace --format folded --force -o x.folded", "reading out.trace: ");
}

#[test]
fn the_line_is_gone_before_what_is_printed() {
    let tmux = Tmux::start(100, 40);
    enter(&tmux);
    let ours = env!("CARGO_BIN_EXE_traceprof");
    tmux.types(&format!("{ours} export out.trace --format perf-script | head -5; echo code-$?"));
    tmux.sees("reading out.trace: ");
    tmux.sees("code-0");
    assert!(!tmux.screen().contains("reading out"), "{}", tmux.screen());
}

#[test]
fn recovering_and_indexing_tell_how_far_they_are() {
    shows("recover --force out.trace saved.trace", "recovering out.trace: ");
    shows("reindex out.trace", "indexing out.trace: ");
}

#[test]
fn nothing_of_it_is_in_a_pipe() {
    let path = large().path();
    for action in [&["verify"][..], &["print"], &["export", "--format", "folded"], &["reindex"]] {
        let mut command = traceprof(action);
        let output = command.arg(&path).stdout(Stdio::null()).output().expect("traceprof");
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{err}");
        let is_silent = !err.contains('\x1b') && !err.contains('\r') && !err.contains(" %");
        assert!(is_silent, "{action:?}: {err}");
    }
}
