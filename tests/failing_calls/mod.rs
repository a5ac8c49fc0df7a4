//! Recordings in which one system call of the recorder or the guardian fails: the n-th of its kind.
//!
//! A test run makes one call of each kind fail in each scenario; which one changes with the seed of
//! the run. In a long run every call fails once.

mod kinds;
mod run;
mod supervisor;

use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::{Random, is_long_run, needs_recording, seed, together};
use kinds::{KINDS, Kind};
use run::{Failure, Scenario};

/// Number of recordings at the same time: most of the time they wait.
const WORKERS: usize = 4;

static SCENARIOS: [Scenario; 3] = [
    Scenario { name: "perf", engine: "perf", program: "spin", mode: "cpu" },
    Scenario { name: "timer", engine: "timer", program: "crowd", mode: "cpu" },
    Scenario { name: "wall", engine: "perf", program: "crowd", mode: "cpu,wall" },
];

/// The only kind, call or scenario of a run that is given in `TRACEPROF_TEST_CALL=SCENARIO/KIND/N`.
fn chosen(scenario: &Scenario, kind: &Kind, n: usize) -> bool {
    let Ok(text) = std::env::var("TRACEPROF_TEST_CALL") else { return true };
    let mut words = text.split('/');
    let is = |word: Option<&str>, name: &str| word.is_none_or(|word| word == "*" || word == name);
    is(words.next(), scenario.name)
        && is(words.next(), kind.name)
        && is(words.next(), &n.to_string())
}

fn jobs() -> Vec<(&'static Scenario, Failure)> {
    let (mut random, mut jobs) = (Random::new(21), Vec::new());
    for scenario in &SCENARIOS {
        for (kind, count) in KINDS.iter().zip(run::counts(scenario, &KINDS)) {
            if count == 0 {
                continue;
            }
            let one = 1 + random.below(count as u64) as usize;
            let all = if is_long_run() { 1..=count } else { one..=one };
            jobs.extend(
                all.filter(|n| chosen(scenario, kind, *n)).map(|n| (scenario, Failure { kind, n })),
            );
        }
    }
    jobs
}

#[test]
fn target_and_samples_survive_each_failing_call() {
    needs_recording!();
    let _machine = together();
    let jobs = jobs();
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let wrong = Mutex::new(Vec::new());
    let log = std::env::var_os("TRACEPROF_TEST_LOG")
        .map(|path| Mutex::new(std::fs::File::create(path).expect("the log")));
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                // Relaxed: each index is given out once, and the results have their own locks.
                while let Some((scenario, failure)) = jobs.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    let result = run::fail(scenario, *failure);
                    let Failure { kind, n } = failure;
                    let name = format!("{}, {} {n}", scenario.name, kind.name);
                    if let Some(log) = &log {
                        let _ = writeln!(log.lock().unwrap(), "{name}: {result:?}");
                    }
                    match result {
                        Ok(None) => {}
                        Ok(Some(_)) => {
                            // Relaxed: read after the threads were joined.
                            done.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(error) => wrong.lock().unwrap().push(format!("{name}: {error}")),
                    }
                }
            });
        }
    });
    let (done, wrong) = (done.into_inner(), wrong.into_inner().unwrap());
    let _ = writeln!(std::io::stderr(), "seed {}: {done} of {} calls failed", seed(), jobs.len());
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert!(done * 10 >= jobs.len() * 8, "{done} of {}", jobs.len());
}
