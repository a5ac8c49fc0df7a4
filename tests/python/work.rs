//! Programs with typical work, recorded by traceprof and by py-spy at the same time: both give the
//! same shares to the same functions.
//!
//! traceprof samples the CPU time of threads, and py-spy the clock, at random times. Of these it
//! keeps those at which the kernel says that the thread runs or waits for a processor. So the
//! comparison leaves out what py-spy cannot know:
//! - Only the samples of the times in which both recorded count.
//! - Threads take turns, so that few wait for a processor. The kernel's scheduler tells how long
//!   they waited all the same. That part of py-spy's samples may be in any function.
//! - Stacks that end where threads sleep are left out on both sides.
//! - Stacks of functions that had gone before traceprof read their names are left out. As many of
//!   py-spy's samples may be in any function.

use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::signal::Signal;
use nix::time::ClockId;
use nix::unistd::Pid;

use super::functions::FunctionShares;
use super::load::Load;
use super::processor_time::{ProcessorTime, tree_of};
use super::recorded::shares_within;
use super::witness::{self, PySpy};
use crate::common::{
    Python, Random, Recorder, Target, alone, is_long_run, needs_recording, pythons, script, skip,
    tool, wait_until,
};

/// Sampling rate of the recordings: a prime.
const HZ: u32 = 997;
/// The version of Python for which `scripts/test` unpacks packages.
const PACKAGES_MINOR: u32 = 11;
/// How long to wait for a target to use its CPU time, on an overloaded machine.
const PATIENCE: Duration = Duration::from_secs(400);

/// The most times that py-spy may hang.
const HANGS_MAX: usize = 3;

/// How much is compared.
struct Extent {
    /// The sampling rate of py-spy.
    rate: u32,
    /// The number of py-spy's recordings, and how much CPU time the target uses in each. If it hangs
    /// in one, the others count.
    recordings: usize,
    cpu: Duration,
}

impl Extent {
    fn new() -> Self {
        if is_long_run() {
            Self { rate: 100, recordings: 4, cpu: Duration::from_secs(5) }
        } else {
            Self { rate: 250, recordings: 2, cpu: Duration::from_secs(2) }
        }
    }
}

/// A program with typical work.
struct Work<'a> {
    python: Python,
    /// The interpreter's arguments, in the folder of the tests' programs.
    arguments: &'a str,
    packages: &'a [&'a str],
    /// Whether several of its processes are recorded.
    has_processes: bool,
    /// Functions that the test is about, each with a share of at least a hundredth.
    functions: &'a [&'a str],
}

impl Work<'_> {
    /// Starts the program. Returns `None` if its packages are not installed.
    fn start(&self) -> Option<Target> {
        let tools = tool("python-packages");
        let folders: Vec<_> = self.packages.iter().map(|name| tools.join(name)).collect();
        let mut command = self.python.command();
        command.args(self.arguments.split(' ')).current_dir(script("python"));
        if !folders.is_empty() {
            command.env("PYTHONPATH", std::env::join_paths(&folders).expect("plain paths"));
        }
        folders.iter().all(|folder| folder.exists()).then(|| Target::spawn(command))
    }

    /// Records the program and compares the shares of all functions.
    fn compare(&self, target: &Target, py_spy: &Path) {
        let (ours, theirs, time) = self.record(target, py_spy);
        // Of the time that py-spy's stacks stand for, the part that is no CPU time.
        let cpu = ours.total() / f64::from(HZ);
        let waiting = (1.0 - cpu / (time.all().as_secs_f64() * theirs.kept())).max(0.0);
        let nameless = ours.nameless();
        let found = ours.compare(&theirs, waiting + nameless);
        let what = format!("{}, {}", self.arguments, self.python);
        eprintln!(
            "{what}: within {:.3} ({:.0} samples, {:.0} of py-spy, {waiting:.3} of them waiting, \
             {nameless:.3} of ours without a name)",
            found.largest,
            ours.draws(),
            theirs.draws(),
        );
        for name in self.functions {
            assert!(ours.share_of(name) > 0.01, "{what}: {name} has {:.4}", ours.share_of(name));
        }
        assert!(ours.draws() > 300.0 && theirs.draws() > 300.0, "{what}: few samples");
        let different = &found.disagreements;
        assert!(different.is_empty(), "{what}: {waiting:.3} waiting, {different:#?}");
    }

    /// Returns both profiles, and the time in which threads ran and waited for a processor.
    fn record(
        &self,
        target: &Target,
        py_spy: &Path,
    ) -> (FunctionShares, FunctionShares, ProcessorTime) {
        let extent = Extent::new();
        let (pid, freq) = (target.pid().to_string(), HZ.to_string());
        let options: &[&str] = if self.has_processes { &["--subprocesses"] } else { &[] };
        let mut recorder =
            Recorder::start(&[&["--pid", &pid, "--freq", &freq][..], options].concat());
        let pids = if self.has_processes { tree_of(target.pid()) } else { vec![target.pid()] };
        pids.iter().for_each(|pid| recorder.wait_until_attached(*pid));
        let (mut theirs, mut times) = (FunctionShares::new(), Vec::new());
        let (mut all, mut hangs) = (ProcessorTime::default(), 0);
        while times.len() < extent.recordings {
            let mut witness = PySpy::start_sampling(py_spy, target.pid(), extent.rate, options);
            let (start, from) = (now(), ProcessorTime::of(&pids));
            let used = || ProcessorTime::of(&pids).since(from);
            let is_over = wait_until(PATIENCE, || {
                used().ran >= extent.cpu || witness.hangs() || recorder.has_exited()
            });
            assert!(is_over, "{}: {:?} in {PATIENCE:?}", self.arguments, used());
            let (time, used) = (Range { start, end: now() }, used());
            if let Some(shares) = witness.finish_with_shares() {
                theirs.merge(shares);
                times.push(time);
                all = all.and(used);
            } else {
                hangs += 1;
                assert!(hangs <= HANGS_MAX, "{}: py-spy hangs each time", self.arguments);
            }
        }
        recorder.send(Signal::SIGINT);
        let outcome = recorder.finish().expect_code(0);
        (shares_within(&outcome.trace.path(), &times), theirs, all)
    }
}

/// Returns the time by the clock of the samples.
fn now() -> Duration {
    ClockId::CLOCK_MONOTONIC.now().expect("a clock").into()
}

/// Compares the profiles of a program. `load` keeps it busy.
fn check(work: &Work, load: impl FnOnce(&Target) -> Option<Load>) {
    let Some(py_spy) = witness::command() else {
        skip!("py-spy: not installed");
    };
    let _machine = alone();
    let Some(target) = work.start() else {
        skip!("packages of Python: not installed");
    };
    let load = load(&target);
    work.compare(&target, &py_spy);
    if let Some(load) = load {
        let answers = load.end();
        assert!(answers > 100, "{answers} answers");
    }
}

/// Compares the profiles of a program that needs no packages, with an interpreter of any version.
/// In long runs, does so with each version.
fn check_with_any(arguments: &str, functions: &[&str], has_processes: bool) {
    needs_recording!();
    let mut all = pythons();
    all.retain(Python::is_own_program);
    if !is_long_run() && !all.is_empty() {
        all = vec![all.swap_remove(Random::new(7).below(all.len() as u64) as usize)];
    }
    for python in all {
        check(&Work { python, arguments, packages: &[], has_processes, functions }, |_| None);
    }
}

/// Compares the profiles of a program that needs packages.
fn check_with_packages(arguments: &str, packages: &[&str], functions: &[&str]) {
    needs_recording!();
    let Some(python) = Python::installed(PACKAGES_MINOR) else {
        skip!("python 3.{PACKAGES_MINOR}: not installed");
    };
    let has_processes = packages.contains(&"gunicorn");
    let load = |target: &Target| has_processes.then(|| Load::start(target.fact("port") as u16));
    check(&Work { python, arguments, packages, has_processes, functions }, load);
}

#[test]
fn shares_in_the_interpreter_are_those_of_py_spy() {
    check_with_any("work_cpu.py", &["fibonacci", "sieve", "count_words", "multiply"], false);
}

#[test]
fn shares_of_threads_in_libraries_are_those_of_py_spy() {
    let functions = ["compress", "digest", "read_and_write", "raw_decode", "search", "findall"];
    check_with_any("work_threads.py", &functions, false);
}

#[test]
fn shares_of_an_event_loop_are_those_of_py_spy() {
    // The program makes a system call every few microseconds. A stop from another processor takes
    // as long to arrive, and a thread that leaves a system call meanwhile stops there.
    let mut first = CpuSet::new();
    first.set(0).expect("a processor");
    sched_setaffinity(Pid::from_raw(0), &first).expect("for this thread and its children");
    check_with_any("work_asyncio.py", &["parse", "answer", "send", "_run_once"], false);
}

#[test]
fn shares_of_a_pool_of_processes_are_those_of_py_spy() {
    check_with_any("work_pool.py", &["worker", "work", "other_work"], true);
}

#[test]
fn shares_of_arrays_are_those_of_py_spy() {
    check_with_packages("work_numpy.py", &["numpy"], &["smooth", "solve", "each_row"]);
}

#[test]
fn shares_of_a_test_suite_are_those_of_py_spy() {
    check_with_packages("work_tests.py", &["sympy", "mpmath"], &["_test", "test_file"]);
}

#[test]
fn shares_of_a_server_under_load_are_those_of_py_spy() {
    let arguments = "-m gunicorn --config gunicorn_config.py";
    let functions = ["application", "render", "check", "handle_request"];
    check_with_packages(arguments, &["gunicorn", "packaging"], &functions);
}
