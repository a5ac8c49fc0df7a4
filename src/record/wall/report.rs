//! What the looks at threads came to: lines of the trailer, numbers of the metadata.

use super::WallStats;
use crate::trace::RunState;

/// Numbers for the metadata, by name.
pub(in crate::record) fn numbers(stats: &WallStats) -> Vec<(String, u64)> {
    let mut numbers: Vec<_> = [
        ("looks", stats.looks),
        ("stacks_known", stats.known),
        ("stacks_read", stats.read),
        ("stacks_by_stop", stats.stopped),
        ("stop_ns_max", stats.stop_ns_max),
        ("moved", stats.moved),
        ("stacks_missed", stats.missed),
        ("turns_capped", stats.capped.0),
        ("threads_put_off", stats.capped.1),
        ("threads_unwatched", stats.unwatched),
        ("threads_unmet", stats.unmet),
        ("accounts_refused", stats.impossible),
        ("unplaced_us", stats.unplaced_us),
    ]
    .map(|(name, number)| (format!("wall.{name}"), number))
    .into();
    let times = RunState::ALL.into_iter().zip(stats.told_us);
    numbers.extend(times.map(|(state, us)| (format!("wall.{}_us", state.name()), us)));
    numbers
}

/// What the trailer says.
pub(in crate::record) fn lines(stats: &WallStats) -> Vec<(&'static str, String)> {
    let time = |state: RunState| {
        format!("{} {:.3} s", state.name(), stats.told_us[state as usize] as f64 / 1e6)
    };
    let times: Vec<_> = RunState::ALL.into_iter().map(time).collect();
    let mut text = times.join(", ");
    if stats.unplaced_us > 0 {
        let seconds = stats.unplaced_us as f64 / 1e6;
        text.push_str(&format!("; {seconds:.3} s of it without a stack"));
    }
    let mut stacks = format!(
        "{} read without a stop, {} known again, {} by a stop",
        stats.read, stats.known, stats.stopped
    );
    if stats.stopped > 0 {
        stacks.push_str(&format!(" of {} us at most", stats.stop_ns_max / 1000));
    }
    for (count, what) in [(stats.moved, "gone on meanwhile"), (stats.missed, "not to be had")] {
        if count > 0 {
            stacks.push_str(&format!(", {count} {what}"));
        }
    }
    let mut lines = vec![("wall time", text), ("sleepers", stacks)];
    if stats.capped.0 > 0 {
        let (turns, threads) = stats.capped;
        let text = format!("{threads} looks by {turns} turns that had too much to do");
        lines.push(("put off", text));
    }
    if stats.unmet > 0 {
        let text = format!("{} threads that ended before they were looked at", stats.unmet);
        lines.push(("not seen", text));
    }
    if stats.unwatched > 0 {
        let count = stats.unwatched;
        let text = format!("{count} threads at a time: too few descriptors (see `ulimit -n`)");
        lines.push(("not watched", text));
    }
    lines
}
