//! The results of the wall-clock measurement, as lines of the closing report and as metadata.

use crate::record::source::wall::WallStats;
use crate::trace::RunState;

/// Returns the numbers for the metadata, each with its key.
pub(crate) fn numbers(stats: &WallStats) -> Vec<(String, u64)> {
    let mut numbers: Vec<_> = [
        ("looks", stats.checks),
        ("stacks_known", stats.known),
        ("stacks_read", stats.read),
        ("stacks_by_stop", stats.stopped),
        ("stop_ns_max", stats.stop_ns_max),
        ("moved", stats.moved),
        ("stacks_missed", stats.missed),
        ("stacks_native_only", stats.unsearched),
        ("turns_capped", stats.capped.0),
        ("threads_put_off", stats.capped.1),
        ("threads_reopened", stats.reopened),
        ("threads_unwatched", stats.unwatched),
        ("threads_unmet", stats.ended_unseen),
        ("accounts_refused", stats.impossible),
        ("unplaced_us", stats.stackless_us),
    ]
    .map(|(name, number)| (format!("wall.{name}"), number))
    .into();
    let times = RunState::ALL.into_iter().zip(stats.reported_us);
    numbers.extend(times.map(|(state, us)| (format!("wall.{}_us", state.name()), us)));
    numbers
}

/// Returns the label and text of each line of the closing report.
pub(crate) fn lines(stats: &WallStats) -> Vec<(&'static str, String)> {
    let time = |state: RunState| {
        format!("{} {:.3} s", state.name(), stats.reported_us[state as usize] as f64 / 1e6)
    };
    let times: Vec<_> = RunState::ALL.into_iter().map(time).collect();
    let mut text = times.join(", ");
    if stats.stackless_us > 0 {
        let seconds = stats.stackless_us as f64 / 1e6;
        text.push_str(&format!("; {seconds:.3} s of it without a stack"));
    }
    let mut stacks = format!(
        "{} read without a stop, {} recognised, {} read with a stop",
        stats.read, stats.known, stats.stopped
    );
    if stats.stopped > 0 {
        stacks.push_str(&format!(" of {} us at most", stats.stop_ns_max / 1000));
    }
    for (count, what) in [
        (stats.moved, "running again before they were read"),
        (stats.missed, "not readable"),
        (stats.unsearched, "with native frames only, since their thread pointer is not known"),
    ] {
        if count > 0 {
            stacks.push_str(&format!(", {count} {what}"));
        }
    }
    if stats.kernel_hidden {
        stacks.push_str("; without the kernel's functions, which only root may read");
    }
    let mut lines = vec![("wall time", text), ("sleepers", stacks)];
    if stats.capped.0 > 0 {
        let (turns, threads) = stats.capped;
        let text = format!("{threads} checks in {turns} turns that ran out of time");
        lines.push(("put off", text));
    }
    if stats.ended_unseen > 0 {
        let text = format!("{} threads that exited before their first check", stats.ended_unseen);
        lines.push(("not seen", text));
    }
    if stats.reopened > 0 {
        let count = stats.reopened;
        let text = format!(
            "the accounts of {count} threads at each check: too few descriptors to keep them open \
             (see `ulimit -Hn`)"
        );
        lines.push(("opened", text));
    }
    if stats.unwatched > 0 {
        let count = stats.unwatched;
        let text = format!("{count} threads at a time: too few descriptors (see `ulimit -Hn`)");
        lines.push(("not watched", text));
    }
    lines
}
