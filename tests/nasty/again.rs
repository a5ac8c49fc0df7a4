//! One busy process, with many attaches and detaches.

use std::time::Duration;

use crate::common::{Recorder, Snapshot, Target, is_long_run, needs_recording, together};

/// How long one recording stopped the target, in nanoseconds.
struct Stops {
    attach: u64,
    detach: u64,
}

fn record_for_a_moment(target: &Target, engine: &str) -> Stops {
    let pid = target.pid().to_string();
    let args = ["--pid", &pid, "--duration", "0.05", "--freq", "2000", "--engine", engine];
    let outcome = Recorder::start(&args).finish();
    let text = outcome.text();
    // On a busy machine it may not have run in that time.
    assert!(matches!(outcome.code(), Some(0 | 4)), "{:?} {text}", outcome.code());
    assert!(!text.contains("left behind"), "{text}");
    let attach = outcome.trace.numbers("attach_stops_ns").iter().sum();
    Stops { attach, detach: outcome.trace.number("detach_stopped_ns") }
}

fn median(times: impl Iterator<Item = u64>) -> u64 {
    let mut times: Vec<u64> = times.collect();
    times.sort_unstable();
    times[times.len() / 2]
}

#[test]
fn costs_do_not_accumulate() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("steady", &["12"]);
    let before = Snapshot::take(target.pid());
    let rounds = if is_long_run() { 200 } else { 40 };
    let mut stops = Vec::new();
    for round in 0..rounds {
        stops.push(record_for_a_moment(&target, super::BOTH[round % 2]));
        let left = before.differences(&Snapshot::take(target.pid()));
        assert!(left.is_empty(), "round {round}: {left:#?}");
    }
    let quarter = rounds / 4;
    for (what, of) in
        [("attach", (|it| it.attach) as fn(&Stops) -> u64), ("detach", |it| it.detach)]
    {
        let first = median(stops[..quarter].iter().map(of));
        let last = median(stops[rounds - quarter..].iter().map(of));
        eprintln!(
            "{what}: {} us in the first quarter, {} us in the last",
            first / 1000,
            last / 1000
        );
        // An accumulating cost makes the stops longer each time. A busy machine makes some of them
        // longer, and half of them by less than a time slice or two.
        let slices = Duration::from_millis(20).as_nanos() as u64;
        assert!(last < 10 * first + slices, "{what}: {first} ns -> {last} ns");
    }
    target.goes_on_and_ends_by_itself();
    assert_eq!((target.fact("eintr"), target.fact("other"), target.fact("wrong")), (0, 0, 0));
}
