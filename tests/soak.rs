//! Storms of everything that a recording could disturb, with fast sampling and repeated attach and
//! detach: ten seconds in the test suite, any time with `scripts/soak`.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::{Recorder, Snapshot, Target, cpp_program, needs_recording, program, together};

const SECONDS: u64 = 10;
const HZ: &str = "5000";
const STORMS: [&str; 9] = [
    "exceptions",
    "libraries",
    "forks",
    "executions",
    "threads",
    "memory",
    "signals",
    "jumps",
    "computing",
];

/// The results of the recordings.
#[derive(Debug, Default)]
struct Found {
    recordings: u64,
    samples: u64,
    losses: Vec<String>,
    longest_attach_ns: u64,
    longest_detach_ns: u64,
    left_behind: Vec<String>,
}

impl Found {
    fn record(&mut self, target: &Target, engine: &str, length: &str) {
        let pid = target.pid().to_string();
        let args = ["--pid", &pid, "--duration", length, "--freq", HZ, "--engine", engine];
        let outcome = Recorder::start(&args).finish();
        let text = outcome.text();
        assert!(matches!(outcome.code(), Some(0 | 4)), "{engine}: {:?} {text}", outcome.code());
        assert!(!text.contains("panicked"), "{text}");
        for line in text.lines() {
            if line.starts_with("left behind") {
                self.left_behind.push(format!("{engine}: {line}"));
            } else if line.starts_with("lost ") && !line.ends_with(" none") {
                self.losses.push(format!("{engine}: {line}"));
            }
        }
        self.recordings += 1;
        self.samples += outcome.trace.number("samples");
        let stops = outcome.trace.numbers("attach_stops_ns").iter().sum();
        self.longest_attach_ns = self.longest_attach_ns.max(stops);
        self.longest_detach_ns =
            self.longest_detach_ns.max(outcome.trace.number("detach_stopped_ns"));
    }

    fn tell(&self, target: &Target, taken: Duration) {
        let storms = STORMS.map(|name| format!("{} {name}", target.fact(&format!("done_{name}"))));
        eprintln!(
            "soak: {} s, {} recordings at {HZ} Hz with both engines, {} samples, losses in {} of \
             them; longest \
             stops {} us at attach, {} us at detach; meanwhile {}",
            taken.as_secs(),
            self.recordings,
            self.samples,
            self.losses.len(),
            self.longest_attach_ns / 1000,
            self.longest_detach_ns / 1000,
            storms.join(", ")
        );
        for line in &self.losses {
            eprintln!("soak: {line}");
        }
    }
}

#[test]
fn target_full_of_storms_survives() {
    needs_recording!();
    let _machine = together();
    let seconds = std::env::var("TRACEPROF_TEST_SOAK")
        .map_or(SECONDS, |text| text.parse().expect("TRACEPROF_TEST_SOAK: a number of seconds"));
    let mut command = Command::new(cpp_program("soak"));
    command.arg(program("plugin"));
    let mut target = Target::spawn(command);
    let (started, before) = (Instant::now(), Snapshot::take(target.pid()));
    let mut found = Found::default();
    for (engine, length) in
        ["perf", "timer"].into_iter().cycle().zip(["0.1", "1", "0.5"].into_iter().cycle())
    {
        // On a busy machine each may take seconds.
        if started.elapsed() >= Duration::from_secs(seconds) && found.recordings >= 4 {
            break;
        }
        found.record(&target, engine, length);
        let left = before.marks_left(&Snapshot::take(target.pid()));
        assert!(left.is_empty() || !found.left_behind.is_empty(), "{engine}: {left:#?}");
    }
    let taken = started.elapsed();
    target.goes_on_and_ends_by_itself();
    found.tell(&target, taken);
    for name in STORMS {
        assert_eq!(target.fact(&format!("wrong_{name}")), 0, "{name}: {found:?}");
        assert!(target.fact(&format!("done_{name}")) > 0, "{name} did nothing");
    }
    assert!(found.left_behind.is_empty(), "{:#?}", found.left_behind);
    assert!(found.samples > 0, "{found:?}");
}
