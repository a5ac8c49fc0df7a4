//! Every kind of target: how it is built, where it runs and what it does with its threads and
//! signals. Each is recorded with one of the engines, in long runs with both, and compared from
//! outside before and after. It checks itself meanwhile, and exits with its own code.

mod again; // repeated attach and detach
mod calls; // in the middle of every kind of system call
mod forks; // children of a recorded process
mod forwarders; // handlers over ours that forward to ours
mod kinds; // compilers, runtimes, numbers of threads, stacks, signals
mod paused; // frozen, or without a processor
mod places; // namespaces, users, deleted files
mod refused; // targets that cannot be recorded
mod scribblers; // targets that overwrite or unmap the agent's memory
mod sleepers; // every kind of blocking call, where nobody records
mod stopped; // stopped by job control, or waiting for a child of vfork

use std::hash::{DefaultHasher, Hash, Hasher};
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::common::{
    Outcome, Recorder, Snapshot, Target, Trace, cpu_clock, is_long_run, seed, tick, traceprof,
};

const HZ: &str = "2000";
const BOTH: &[&str] = &["perf", "timer"];

/// Returns both engines in a long run, and otherwise one, which the seed and the test's name choose.
fn some_engines() -> &'static [&'static str] {
    if is_long_run() {
        return BOTH;
    }
    let mut hasher = DefaultHasher::new();
    (seed(), std::thread::current().name()).hash(&mut hasher);
    let one = hasher.finish() as usize % BOTH.len();
    &BOTH[one..=one]
}
/// How long each engine samples.
const SAMPLED: Duration = Duration::from_secs(1);
/// The CPU time that the target must also have used by then, on a busy machine.
const CPU_AT_LEAST: Duration = Duration::from_millis(300);

/// A target and what the test expects of it.
struct Proof<'a> {
    target: Target,
    command: Box<dyn Fn() -> Command + 'a>,
    options: Vec<&'a str>,
    engines: &'a [&'a str],
    changes: bool,
    samples: bool,
}

impl<'a> Proof<'a> {
    fn of(target: Target) -> Self {
        Self {
            target,
            command: Box::new(|| traceprof(&[])),
            options: Vec::new(),
            engines: some_engines(),
            changes: false,
            samples: true,
        }
    }

    /// Records with this command, which ends with the program `traceprof`.
    fn recorded_by(mut self, command: impl Fn() -> Command + 'a) -> Self {
        self.command = Box::new(command);
        self
    }

    fn with(mut self, option: &'a str) -> Self {
        self.options.push(option);
        self
    }

    /// Only this engine records it; the other engine refuses it.
    fn only_by(mut self, engine: &'a [&'a str]) -> Self {
        self.engines = engine;
        self
    }

    /// The target maps memory, starts threads and opens files while it runs.
    fn changes(mut self) -> Self {
        self.changes = true;
        self
    }

    /// The target blocks the signal in all threads.
    fn without_samples(mut self) -> Self {
        self.samples = false;
        self
    }

    /// Checks that nothing remains in the target, that nothing went wrong in it, and that it was
    /// sampled.
    fn survives(mut self) -> Target {
        for engine in self.engines {
            self.round(engine);
        }
        self.target.goes_on_and_ends_by_itself();
        for (key, value) in self.target.facts() {
            let is_harm = ["eintr", "other", "wrong"].iter().any(|it| key.starts_with(it));
            let is_early = value.contains("early");
            assert!(
                (!is_harm || value == "0") && !is_early,
                "{key} {value}: {:?}",
                self.target.facts()
            );
        }
        self.target
    }

    fn round(&mut self, engine: &str) {
        let pid = self.target.pid();
        let before = Snapshot::take(pid);
        let outcome = self.record(engine);
        let text = outcome.text();
        assert!(!text.contains("left behind"), "{engine}: {text}");
        // The command verifies by itself, and agrees with this test.
        assert!(text.lines().any(|line| line.starts_with("verified")), "{engine}: {text}");
        assert_eq!(outcome.trace.number("left_in_target"), 0, "{engine}: {text}");
        let after = Snapshot::take(pid);
        let left =
            if self.changes { before.marks_left(&after) } else { before.differences(&after) };
        assert!(left.is_empty(), "{engine} left: {left:#?}\n{text}");
        if self.samples {
            let sampled = outcome.trace.number("weight_sum") as f64 / 2000.0 * 1e9;
            let used = outcome.trace.number("cpu_time_ns") as f64;
            // Of each thread, a timer misses the time after its last tick.
            let ticks = outcome.trace.objects("THREAD").len() as u32 * tick();
            let missed = if engine == "timer" { ticks.as_nanos() as f64 } else { 0.0 };
            assert!(
                sampled / used > 0.5 || used - sampled < missed,
                "{engine}: {:.2} of its CPU time is sampled: {text}",
                sampled / used
            );
        }
    }

    fn record(&self, engine: &str) -> Outcome {
        let pid = self.target.pid();
        let mut command = (self.command)();
        command.args(["record", "--verify-detach", "--freq", HZ, "--engine", engine]);
        command.args(["--pid", &pid.to_string()]);
        command.args(&self.options);
        let mut recorder = Recorder::spawn(command, Trace::new());
        recorder.wait_until_attached(pid);
        let attached = cpu_clock(pid);
        std::thread::sleep(SAMPLED);
        let used = cpu_clock(pid).saturating_sub(attached);
        if self.samples && used < CPU_AT_LEAST {
            recorder.wait_for_cpu(pid, CPU_AT_LEAST - used);
        }
        recorder.send(Signal::SIGINT);
        let outcome = recorder.finish();
        // If the signal is blocked, there may be only samples of time in the kernel.
        let is_right = outcome.code() == Some(0) || (!self.samples && outcome.code() == Some(4));
        assert!(is_right, "{engine}: {:?} {}", outcome.code(), outcome.text());
        outcome
    }
}

/// Runs the target without a recorder for as long as [`Proof`] would take.
fn left_alone(target: &mut Target) {
    std::thread::sleep(2 * SAMPLED);
    target.goes_on_and_ends_by_itself();
}
