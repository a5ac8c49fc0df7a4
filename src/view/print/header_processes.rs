//! The lines of the header about several processes, and about the programs that they executed.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::view::profile::sample_totals::SampleTotals;
use crate::view::recording::mode::Mode;
use crate::view::recording::recording_info::{ExecutedProgram, RecordingInfo};
use crate::view::text::escape::shell_quoted;
use crate::view::text::number::percent;

/// Returns the number of processes that were recorded together, 0 for a single process.
pub(super) fn process_count(recording: &RecordingInfo) -> u64 {
    // The recorder lists only a limited number of them.
    recording.number("processes").unwrap_or(0).max(recording.processes().len() as u64)
}

/// Returns the processes that were recorded together. Names at most `most`, with their shares of
/// the selected samples.
pub(super) fn processes(
    recording: &RecordingInfo,
    totals: &SampleTotals,
    most: usize,
) -> Option<String> {
    // Two processes may have had the same id, one after the other. The totals contain the id once.
    let mut names: BTreeMap<u64, &str> =
        totals.processes.iter().map(|(pid, it)| (u64::from(*pid), it.name.as_str())).collect();
    names.extend(recording.processes().into_iter().map(|it| (it.pid, it.name)));
    let weight = |pid: &u64| {
        let pid = u32::try_from(*pid).ok();
        pid.and_then(|pid| totals.processes.get(&pid)).map_or(0, |it| it.count.weight)
    };
    let mut pids: Vec<u64> = names.keys().copied().collect();
    pids.sort_by_key(|pid| Reverse(weight(pid)));
    let all = totals.count.weight;
    let one = |pid: &u64| {
        let name = names.get(pid).map_or_else(String::new, |name| quoted_if_odd(name));
        let share = match all {
            0 => String::new(),
            _ => format!(" {:.1} %", percent(weight(pid), all)),
        };
        format!("{name} ({pid}){share}")
    };
    let named: Vec<String> = pids.iter().take(most).map(one).collect();
    let count = process_count(recording);
    let more = match count.saturating_sub(named.len() as u64) {
        0 => String::new(),
        more => {
            let shown: u64 = pids.iter().take(most).map(weight).sum();
            let share = percent(all.saturating_sub(shown), all);
            format!(" and {more} more {share:.1} %")
        }
    };
    let others = |key: &str, what: &str| {
        let number = recording.number(key).filter(|number| *number > 0);
        number.map_or_else(String::new, |number| format!("; {number} {what}"))
    };
    let refused = others("processes_refused", "could not be recorded");
    let missed = others("processes_missed", "exited before they could be recorded");
    // Shares of CPU time differ from shares of the time of all threads.
    let of = match (all, totals.mode) {
        (0, _) => "",
        (_, Mode::Cpu) => " of CPU time",
        (_, Mode::Wall) => " of the time of all threads",
    };
    let shares = match most {
        0 => String::new(),
        _ => format!(": {}{more}{of}", named.join(", ")),
    };
    // Of one process the other lines say enough.
    let is_several = count > 1 || !refused.is_empty() || !missed.is_empty();
    is_several.then(|| format!("{count}{shares}{refused}{missed}"))
}

/// Returns the name of a process. Blanks are usual in titles.
fn quoted_if_odd(name: &str) -> String {
    match name.chars().any(char::is_control) {
        true => shell_quoted(name),
        false => name.to_owned(),
    }
}

/// Returns the programs that the target executed during the recording, each with its process if
/// there are several.
pub(super) fn executed(recording: &RecordingInfo) -> Option<String> {
    const NAMED: usize = 4;
    let programs = recording.executed();
    let are_several = process_count(recording) > 1;
    let one = |it: &ExecutedProgram<'_>| {
        let by = it.pid.filter(|_| are_several).map(|pid| format!(" by {pid}"));
        let by = by.unwrap_or_default();
        let after_ns = recording.begin_ns().map(|begin_ns| it.time_ns.saturating_sub(begin_ns));
        let after =
            after_ns.map_or_else(String::new, |ns| format!(" after {:.3} s", ns as f64 / 1e9));
        let why = it.not_sampled.map_or_else(String::new, |why| format!(" (not sampled: {why})"));
        format!("{}{by}{after}{why}", shell_quoted(it.name))
    };
    let named: Vec<String> = programs.iter().take(NAMED).map(one).collect();
    // The recorder lists only a limited number of them.
    let count = recording.number("executions").unwrap_or(0).max(programs.len() as u64);
    let more = match count.saturating_sub(named.len() as u64) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    (!named.is_empty()).then(|| format!("{}{more}", named.join(", ")))
}
