//! The progress of long work: on terminals, and nowhere else.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use traceprof::trace::meter::{self, PassUnit};
use traceprof::trace::{LazyTrace, Sample, WriterOptions, recover};
use traceprof::view::export::{self, ExportOptions, Format};
use traceprof::view::html::{self, PageOptions};
use traceprof::view::{Selection, load};

use crate::common::{Maker, Tmux, Trace, maker, needs_recording, traceprof, wait_until};

/// A trace that takes some seconds to read on a shared processor.
fn large() -> Trace {
    traced(SAMPLES)
}

fn traced(samples: u64) -> Trace {
    let mut maker = Maker::new();
    let thread = maker.thread(1, "x");
    let places: Vec<_> = (0..64).map(|n| maker.location(&format!("f{n}"))).collect();
    for n in 0..samples {
        // Each stack shares little with the stacks before and after it.
        let depth = 8 + (n * 7 % 48) as usize;
        let stack: Vec<_> = (0..depth).map(|at| places[(at * 5 + n as usize) % 64]).collect();
        let time_ns = maker::BEGIN_NS + n * 1_000_000;
        let sample = Sample { time_ns, trace_id: n, ..Sample::default() };
        maker.writer.sample(thread, &sample, &stack).expect("a sample");
    }
    maker.finish()
}

const SAMPLES: u64 = 100_000;

/// Another process on the same processor, which makes the work slow on any machine.
struct Hog(Pid);

impl Hog {
    /// Starts in the same terminal, whose processes share a scheduling group.
    fn start(tmux: &Tmux, trace: &Trace) -> Self {
        tmux.type_line("taskset -c 0 sh -c 'echo $$ >hog; while :; do :; done' &");
        Self(written_pid(&trace.dir().join("hog")))
    }
}

/// Waits until a process has written its pid to the file, and removes the file.
fn written_pid(path: &Path) -> Pid {
    let mut pid = String::new();
    let is_there = wait_until(Duration::from_secs(60), || {
        pid = std::fs::read_to_string(path).unwrap_or_default();
        pid.ends_with('\n')
    });
    assert!(is_there, "{} is not written", path.display());
    std::fs::remove_file(path).unwrap();
    Pid::from_raw(pid.trim().parse().unwrap())
}

impl Drop for Hog {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGKILL);
    }
}

/// Prefix that runs the command on the hog's processor.
const BESIDE: &str = "taskset -c 0 nice -n 12";

/// Changes to the directory of the trace, and waits until the shell is there.
fn enter(tmux: &Tmux, trace: &Trace) {
    tmux.type_line(&format!("cd {}; echo is''-there", trace.dir().display()));
    tmux.wait_for("is-there");
}

/// Runs the command in a terminal. The line must appear, with a share of at most 100 %, and must be
/// erased at the end.
fn shows(trace: &Trace, words: &str, line: &str) {
    let tmux = Tmux::start(100, 20);
    enter(&tmux, trace);
    let mut hog = Some(Hog::start(&tmux, trace));
    tmux.type_line(&format!("{BESIDE} {} {words}; echo code-$?", env!("CARGO_BIN_EXE_traceprof")));
    let has_exited = |screen: &str| {
        let codes = screen.split("code-").skip(1);
        codes.into_iter().any(|rest| rest.starts_with(|it: char| it.is_ascii_digit()))
    };
    let ended = wait_until(Duration::from_secs(120), || {
        let screen = tmux.screen();
        let shown = screen.lines().find_map(|it| it.split_once(line).map(|it| it.1));
        // The test may read it before it is complete.
        if let Some(rest) = shown.filter(|rest| rest.contains(" of ")) {
            let percent = rest.split_once(" %").and_then(|(text, _)| text.parse::<u32>().ok());
            assert!(percent.is_some_and(|it| it <= 100), "no share:\n{screen}");
            hog = None;
        }
        has_exited(&screen)
    });
    let screen = tmux.screen();
    assert!(ended && screen.contains("code-0"), "{screen}");
    assert!(hog.is_none(), "the line was not seen:\n{screen}");
    assert!(!screen.contains(line), "the line stays:\n{screen}");
}

/// The meter is global to the process, and other tests also read traces.
#[test]
fn every_pass_over_a_trace_has_an_end_that_is_known() {
    const ALONE: &str = "TRACEPROF_TEST_PASSES";
    if std::env::var_os(ALONE).is_none() {
        let name = "progress::every_pass_over_a_trace_has_an_end_that_is_known";
        let mut alone = Command::new(std::env::current_exe().expect("a path"));
        let output = alone.args(["--exact", name]).env(ALONE, "1").output().expect("a test");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    let file = traced(2_000);
    let bytes = std::fs::metadata(file.path()).expect("a file").len();
    meter::begin("looking at", bytes);
    let trace = LazyTrace::open(&file.path()).expect("a trace");
    let is_done = |doing: &str, turn: u32, samples: u64| {
        let pass = meter::current().expect("a pass");
        assert_eq!((pass.doing, pass.turn, pass.unit), (doing, turn, PassUnit::Samples));
        assert_eq!((pass.done, pass.whole), (samples, samples), "{doing}");
    };
    let selected = Selection::default().resolve(&trace).expect("all");
    let profile = load(&trace, &selected).expect("a profile");
    is_done("reading", 1, 2_000);
    load(&trace, &selected).expect("a profile");
    is_done("reading", 2, 2_000);
    let both = [(&selected, &profile), (&selected, &profile)];
    html::write(&trace, &both, &PageOptions::default(), &mut std::io::sink()).expect("a page");
    is_done("drawing", 1, 4_000);
    let options = ExportOptions::new(Format::Speedscope);
    export::write(&trace, (&selected, &profile), &options, &mut std::io::sink()).expect("a file");
    is_done("exporting", 1, 2_000);
    meter::begin("recovering", bytes);
    let saved = file.dir().join("saved.trace");
    recover(&file.path(), &saved, WriterOptions::default()).expect("saved");
    let pass = meter::current().expect("a pass");
    assert_eq!((pass.doing, pass.turn, pass.unit), ("recovering", 3, PassUnit::Bytes));
    assert!(pass.done > pass.whole / 2 && pass.done <= pass.whole, "{pass:?}");
}

#[test]
fn verify_shows_its_progress() {
    shows(&large(), "verify out.trace", "checking out.trace: ");
}

#[test]
fn view_shows_its_progress() {
    shows(&large(), "view --force out.trace", "reading out.trace: ");
}

#[test]
fn export_shows_its_progress() {
    shows(&large(), "export out.trace --format folded --force -o x.folded", "reading out.trace: ");
}

#[test]
fn the_line_is_erased_before_the_output() {
    let (tmux, trace) = (Tmux::start(100, 40), large());
    enter(&tmux, &trace);
    let ours = format!("{BESIDE} {}", env!("CARGO_BIN_EXE_traceprof"));
    let hog = Hog::start(&tmux, &trace);
    tmux.type_line(&format!(
        "{ours} export out.trace --format perf-script | head -5; echo code-$?"
    ));
    tmux.wait_for("reading out.trace: ");
    drop(hog);
    tmux.wait_for("code-0");
    assert!(!tmux.screen().contains("reading out"), "{}", tmux.screen());
}

#[test]
fn recover_and_reindex_show_their_progress() {
    let trace = large();
    shows(&trace, "recover --force out.trace saved.trace", "recovering out.trace: ");
    shows(&trace, "reindex out.trace", "indexing out.trace: ");
}

/// Alternately runs the recorder for a moment and stops it for longer while the screen is read. The
/// line is due in each moment, so it is seen however fast the machine is.
fn step_to(tmux: &Tmux, recorder: Pid, is_there: impl Fn(&str) -> bool) {
    let mut screen = String::new();
    wait_until(Duration::from_secs(120), || {
        let _ = kill(recorder, Signal::SIGSTOP);
        screen = tmux.screen();
        std::thread::sleep(Duration::from_millis(95));
        // The recorder may have exited.
        let _ = kill(recorder, Signal::SIGCONT);
        is_there(&screen) || screen.contains("code-0")
    });
    assert!(is_there(&screen), "{screen}");
}

/// Stops the recorder until the program that it started has exited.
fn fall_behind(recorder: Pid) {
    let children = format!("/proc/{recorder}/task/{recorder}/children");
    let children = std::fs::read_to_string(children).expect("the recorder's children");
    kill(recorder, Signal::SIGSTOP).expect("a recorder");
    let has_exited = |pid: &str| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_none_or(|it| it.1.starts_with('Z'))
    };
    let is_over = || children.split_whitespace().any(has_exited);
    assert!(wait_until(Duration::from_secs(60), is_over), "{children}");
}

/// The recorder reads the function names of a large program at the end. Most samples come while the
/// recorder is stopped.
#[test]
fn the_end_of_a_recording_shows_how_many_names_are_missing() {
    needs_recording!();
    let (tmux, trace) = (Tmux::start(100, 20), large());
    enter(&tmux, &trace);
    let ours = env!("CARGO_BIN_EXE_traceprof");
    tmux.type_line(&format!(
        "sh -c \"sh -c 'echo \\$\\$ >recorder; exec {ours} record -F 9973 -o x.trace -- {ours} \
         export out.trace --format firefox --force -o x.json'; echo code-\\$?\""
    ));
    let recorder = written_pid(&trace.dir().join("recorder"));
    tmux.wait_for(" lost  ");
    fall_behind(recorder);
    step_to(&tmux, recorder, |screen| {
        let line = screen.lines().find_map(|it| it.split_once("naming functions: "));
        line.is_some_and(|(_, rest)| rest.contains(" %, ") && rest.contains(" addresses"))
    });
    tmux.wait_for("code-0");
    assert!(!tmux.screen().contains("naming functions: "), "{}", tmux.screen());
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
