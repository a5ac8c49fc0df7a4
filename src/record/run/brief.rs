//! The short closing report: what was sampled, what is wrong, and what it cost.
//!
//! # Invariants
//! - Whatever is lost, left behind or not sampled has a line here, too.

use std::collections::BTreeMap;
use std::path::Path;

use crate::record::contract::number_format::{percent, seconds};
use crate::record::contract::summary::NamedShare;
use crate::record::run::accounting::{Accounting, LOST, NONE};
use crate::record::run::ended_process::EndedProcess;
use crate::record::run::ended_recording::EndedRecording;
use crate::record::session::SessionEnd;
use crate::record::source::kernel::Obstacle;
use crate::trace::Written;

/// The labels of lines that this report replaces, or that only `--stats` prints.
const DETAILS: [&str; 12] = [
    "engine", "kernel", "rate", "samples", "threads", "executed", "CPU time", "cost", "sleepers",
    "stopped", "process", "memory",
];
/// The share of samples with a name, in percent, from which on nothing is to be explained.
const GOOD_PERCENT: f64 = 90.0;
/// The number of programs that are named.
const NAMED: usize = 4;

/// Returns labels and texts of the short report, from the lines of the complete one.
pub(crate) fn lines(over: &EndedRecording, complete: &[(String, String)]) -> Vec<(String, String)> {
    let accounting = over.accounting();
    let mut lines = vec![
        ("recorded".to_owned(), recorded(over, &accounting)),
        ("CPU time".to_owned(), cpu(&accounting)),
    ];
    let shares = over.totals.managed.shares();
    if over.is_several() {
        lines.push(("programs".to_owned(), programs(over)));
        let early: Vec<_> = over.ended.iter().filter_map(ended_early).collect();
        let more = early.len().saturating_sub(NAMED);
        lines.extend(early.into_iter().take(NAMED));
        lines.extend((more > 0).then(|| ("ended".to_owned(), format!("{more} more early"))));
    }
    for (label, text) in complete {
        let is_shown = match label.as_str() {
            LOST => text != NONE,
            label => !DETAILS.contains(&label),
        };
        if is_shown {
            lines.push((label.clone(), first_part(label, text, &shares)));
        }
    }
    let frames = over.program_run.setup.frames;
    // Only what a permission would change.
    if let Some(obstacle) = Obstacle::to(frames).filter(|it| it.sysctl.is_some()) {
        lines.push(("kernel".to_owned(), obstacle.line()));
    }
    let cost = over.program_run.overhead.brief(accounting.elapsed_ns());
    lines.extend(cost.map(|text| ("cost".to_owned(), text)));
    lines.push(("paused".to_owned(), pauses(&accounting)));
    lines
}

/// Returns what was recorded.
fn recorded(over: &EndedRecording, accounting: &Accounting<'_>) -> String {
    let what = match (&over.ended[..], over.is_several()) {
        ([only, ..], false) => only.title(),
        _ => format!("{} processes", over.count),
    };
    let totals = accounting.totals;
    let wall = totals.wall.0;
    let samples = match wall {
        0 if totals.samples == 1 => "1 sample".to_owned(),
        0 => format!("{} samples", totals.samples),
        _ => format!("{} samples on and {wall} off the CPU", totals.samples),
    };
    let threads = match totals.threads {
        1 => "1 thread".to_owned(),
        count => format!("{count} threads"),
    };
    let all = totals.samples + wall;
    let rooted = percent(accounting.rooted() + totals.wall.1, all);
    let elapsed = accounting.elapsed_ns() as f64 / 1e9;
    let complete = if all == 0 { String::new() } else { format!(", {rooted} complete") };
    format!("{what} for {elapsed:.1} s: {samples} in {threads}{complete}")
}

/// Returns the programs with the most CPU time, each with the number of its processes.
fn programs(over: &EndedRecording) -> String {
    let all_ns = over.program_run.cpu.used_ns();
    let mut programs: BTreeMap<&str, (u64, usize)> = BTreeMap::new();
    for ended in &over.ended {
        let (used_ns, count) = programs.entry(&ended.opened.name).or_default();
        *used_ns += ended.program_run.cpu.used_ns();
        *count += 1;
    }
    let mut programs: Vec<_> = programs.into_iter().collect();
    programs.sort_by_key(|(_, (used_ns, _))| std::cmp::Reverse(*used_ns));
    let text = |(name, (used_ns, count)): &(&str, (u64, usize))| {
        let times = if *count > 1 { format!(" x{count}") } else { String::new() };
        format!("{name}{times} {}", percent(*used_ns, all_ns))
    };
    let mut texts: Vec<String> = programs.iter().take(NAMED).map(text).collect();
    let listed: usize = programs.iter().take(NAMED).map(|(_, (_, count))| count).sum();
    match (over.count as usize).saturating_sub(listed) {
        0 => {}
        1 => texts.push("1 other".to_owned()),
        others => texts.push(format!("{others} others")),
    }
    texts.join(", ")
}

/// Returns the line about one of several processes that did not end by itself or at the end.
fn ended_early(ended: &EndedProcess) -> Option<(String, String)> {
    let is_usual = matches!(ended.end, SessionEnd::Exited) && ended.death().is_none();
    let reason = ended.reason().filter(|_| !is_usual)?;
    Some(("ended".to_owned(), format!("{}: {reason}", ended.title())))
}

/// Returns how much of the CPU time the samples stand for.
fn cpu(accounting: &Accounting<'_>) -> String {
    let (used_ns, sampled_ns) = (accounting.cpu_ns(), accounting.sampled_ns());
    if used_ns < accounting.period_ns() {
        return format!("{} used, less than one sampling period", seconds(used_ns));
    }
    let missing = accounting.shortfall();
    let missing = match &missing[..] {
        // Little is always missing: threads exit between two samples.
        _ if sampled_ns >= used_ns / 100 * 95 => String::new(),
        [] => String::new(),
        missing => format!("; not sampled: {}", missing.join(", ")),
    };
    let share = percent(sampled_ns, used_ns);
    format!("{share} sampled, {} of {}{missing}", seconds(sampled_ns), seconds(used_ns))
}

/// Returns how long the target stood still.
fn pauses(accounting: &Accounting<'_>) -> String {
    let ms = |ns: u64| format!("{:.1} ms", ns as f64 / 1e6);
    let longest_ns = accounting.longest_pause_ns();
    match accounting.program_run.paused_ns {
        0 => "never".to_owned(),
        sum_ns => format!("{} in all, at most {} at once", ms(sum_ns), ms(longest_ns)),
    }
}

/// Returns the part of a text that a short report shows. Of a language it is the share of samples
/// with a name.
fn first_part(label: &str, text: &str, shares: &[NamedShare]) -> String {
    let share = shares.iter().find(|it| it.language.name() == label);
    match (share, text.split_once("; ")) {
        (Some(share), Some((first, _))) if share.percent() >= GOOD_PERCENT => first.to_owned(),
        (Some(_), Some((first, _))) => format!("{first} (--stats says why)"),
        _ => text.to_owned(),
    }
}

/// Returns the line about the file of a recording.
pub(crate) fn written(path: &Path, written: &Written) -> (String, String) {
    let bytes = written.data_bytes + written.index_bytes;
    let size = match bytes {
        1_000_000.. => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} kB", bytes as f64 / 1e3),
    };
    ("written".to_owned(), format!("{} ({size})", path.display()))
}
