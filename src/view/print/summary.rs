//! The header of a printed trace: the recorded program, the method and the quality.
//!
//! Every line comes from the trace. If the recorder did not write the key of a line, the line is
//! left out.

use std::collections::BTreeSet;
use std::io::{self, Write};

use traceprof_abi::unwind::EndReason;

use crate::trace::{self, Language, Value};
use crate::view::print::header_processes::{executed, process_count, processes};
use crate::view::profile::sample_totals::SampleTotals;
use crate::view::recording::mode::Mode;
use crate::view::recording::rate_changes;
use crate::view::recording::recording_info::RecordingInfo;
use crate::view::recording::unit::WeightUnit;
use crate::view::text::date::utc;
use crate::view::text::escape::{escaped, shell_quoted};
use crate::view::text::number::{counted, percent, wall_seconds};
use crate::view::text::text_style::{Ink, TextStyle};

/// Width of a label and the space after it.
pub(super) const LABEL: usize = 10;
/// The label of the activity line.
const ACTIVITY: &str = "activity";
/// Maximum number of lines of a command on a terminal.
const COMMAND_LINES: usize = 2;
/// Maximum number of processes that are named.
const PROCESSES_NAMED: usize = 4;
/// Maximum number of stops that are listed.
const STOPS_LISTED: usize = 4;

/// Writes the header without the activity line, for views that show the time in another way.
pub(in crate::view) fn write(
    recording: &RecordingInfo,
    totals: &SampleTotals,
    out: &mut dyn Write,
) -> io::Result<()> {
    let lines = lines(recording, totals, PROCESSES_NAMED);
    write_lines(&lines, &TextStyle::default(), out).map(|_| ())
}

/// Writes the header with the activity line. Returns the number of lines on the terminal.
pub(in crate::view) fn write_with_activity(
    recording: &RecordingInfo,
    totals: &SampleTotals,
    (style, out): (&TextStyle, &mut dyn Write),
) -> io::Result<usize> {
    let mut lines = lines(recording, totals, PROCESSES_NAMED);
    lines.extend(activity(recording, totals, style));
    write_lines(&lines, style, out)
}

/// Returns the lines of the header with the activity line, for a view that names the processes.
pub(super) fn lines_without_process_names(
    recording: &RecordingInfo,
    totals: &SampleTotals,
    style: &TextStyle,
) -> Vec<(&'static str, String)> {
    let mut lines = lines(recording, totals, 0);
    lines.extend(activity(recording, totals, style));
    lines
}

fn activity(
    recording: &RecordingInfo,
    totals: &SampleTotals,
    style: &TextStyle,
) -> Option<(&'static str, String)> {
    let unit = WeightUnit::new(totals.mode, recording);
    let base_ns = recording.begin_ns().unwrap_or(0);
    totals.activity.line(unit, base_ns, style).map(|line| (ACTIVITY, line))
}

/// Returns the lines of the header, each a label and a text. They name some processes.
fn lines(
    recording: &RecordingInfo,
    totals: &SampleTotals,
    named: usize,
) -> Vec<(&'static str, String)> {
    let lines = [
        ("command", command(recording)),
        ("processes", processes(recording, totals, named)),
        ("recorded", recorded(recording)),
        ("executed", executed(recording)),
        ("sampling", sampling(recording)),
        ("window", recording.window.clone()),
        ("samples", Some(samples(recording, totals))),
        ("rooted", rooted(totals)),
        ("languages", languages(recording, totals)),
        ("names", names(totals)),
        ("lost", lost(recording)),
        ("cpu time", cpu_time(recording, totals)),
        ("wall time", totals.states().map(|states| states.summary())),
        ("lock", lock(recording, totals)),
        ("target", stops(recording)),
        ("damage", damage(recording)),
        ("origin", origin(recording)),
        ("ended", recording.text("write_error").map(|why| format!("early: {why}"))),
        ("note", unfinished(recording)),
    ];
    lines.into_iter().filter_map(|(label, text)| text.map(|text| (label, text))).collect()
}

/// Returns a line of the header as lines of the terminal.
pub(super) fn rows(label: &str, text: &str, style: &TextStyle) -> Vec<String> {
    let mut texts = match label {
        // Spaces in this line are times without a sample, not ends of words.
        ACTIVITY => vec![text.to_owned()],
        _ => style.wrapped(&escaped(text), LABEL),
    };
    // A command line may be arbitrarily long. Numbers are never truncated.
    if label == "command" && texts.len() > COMMAND_LINES {
        let rest = texts.split_off(COMMAND_LINES - 1).join(" ");
        texts.push(style.fit(&rest, LABEL).into_owned());
    }
    texts
}

/// Writes lines with labels. Returns their number on the terminal.
pub(super) fn write_lines(
    lines: &[(&str, String)],
    style: &TextStyle,
    out: &mut dyn Write,
) -> io::Result<usize> {
    let mut count = 0;
    for (label, text) in lines {
        let texts = rows(label, text, style);
        count += texts.len();
        let mut label = format!("{label:9}");
        for text in texts {
            writeln!(out, "{} {text}", style.paint(Some(Ink::Heading), &label))?;
            label = " ".repeat(LABEL - 1);
        }
    }
    Ok(count)
}

fn command(recording: &RecordingInfo) -> Option<String> {
    let pid = recording.number("pid").map(|pid| format!("pid {pid}"));
    let Some(Value::List(words)) = recording.metadata.get("command_line") else {
        return pid;
    };
    let words: Vec<&str> = words
        .iter()
        .filter_map(|word| match word {
            Value::Text(word) => Some(word.as_str()),
            _ => None,
        })
        .collect();
    let words: Vec<String> = match trace::process_title(&words) {
        Some(title) => vec![title.to_owned()],
        None => words.into_iter().map(shell_quoted).collect(),
    };
    // The command line belongs to one process. The next line names the others.
    let others = process_count(recording).saturating_sub(1);
    let others = match others {
        0 => String::new(),
        1 => " and 1 other process".to_owned(),
        _ => format!(" and {others} other processes"),
    };
    match (words.is_empty(), pid) {
        (true, pid) => pid.map(|pid| format!("{pid}{others}")),
        (false, None) => Some(format!("{}{others}", words.join(" "))),
        (false, Some(pid)) => Some(format!("{} ({pid}){others}", words.join(" "))),
    }
}

fn recorded(recording: &RecordingInfo) -> Option<String> {
    let mut parts = Vec::new();
    if let Some(time_ns) = recording.number("start_realtime_ns") {
        parts.push(utc(time_ns));
    }
    if let Some(duration_ns) = duration_ns(recording) {
        parts.push(format!("for {:.3} s", duration_ns as f64 / 1e9));
    }
    if let Some(host) = recording.text("host") {
        let kernel = recording.text("kernel").map(|kernel| format!(", {kernel}"));
        parts.push(format!("on {host}{}", kernel.unwrap_or_default()));
    }
    if let Some(cpus) = recording.number("cpus") {
        parts.push(format!("with {}", counted(cpus, "cpu")));
    }
    (!parts.is_empty()).then(|| parts.join(" "))
}

/// Returns the duration from the recorder, or from the first to the last sample.
fn duration_ns(recording: &RecordingInfo) -> Option<u64> {
    recording.end_ns()?.checked_sub(recording.begin_ns()?)
}

fn sampling(recording: &RecordingInfo) -> Option<String> {
    let mut parts = Vec::new();
    if let Some(engine) = recording.text("engine") {
        parts.push(format!("{engine} engine"));
    }
    if let Some(mode) = recording.text("mode").filter(|_| recording.has_wall()) {
        parts.push(format!("mode {mode}"));
    }
    if let Some(hz) = recording.number("freq_hz") {
        parts.push(format!("{hz} Hz"));
    }
    parts.extend(rate_changes::changes(&recording.metadata));
    if let Some(period_ns) = recording.period_ns() {
        parts.push(format!("period {:.3} ms of cpu time", period_ns / 1e6));
    }
    if let Some(interval_ns) = recording.number("wall_interval_ns") {
        parts.push(format!("wall interval {:.3} ms", interval_ns as f64 / 1e6));
    }
    match recording.number("kernel_included") {
        Some(0) => parts.push("without time in the kernel".to_owned()),
        Some(_) => parts.push("with time in the kernel".to_owned()),
        None => {}
    }
    if let Some(version) = recording.text("traceprof_version") {
        parts.push(format!("traceprof {version}"));
    }
    (!parts.is_empty()).then(|| parts.join(", "))
}

fn samples(recording: &RecordingInfo, totals: &SampleTotals) -> String {
    let (samples, threads) = (totals.count.samples, counted(totals.threads, "thread"));
    if samples == 0 && recording.closed && recording.window.is_none() && !recording.has_wall() {
        return "none; --mode wall records what threads wait for".to_owned();
    }
    match totals.states() {
        Some(states) => format!("{samples} for {} s in {threads}", wall_seconds(states.total())),
        None => format!("{samples} for {} in {threads}", counted(totals.count.weight, "period")),
    }
}

fn rooted(totals: &SampleTotals) -> Option<String> {
    let (rooted, all) = totals.rooted();
    if all == 0 {
        return None;
    }
    let mut text = format!("{:.1} % of the stacks reach the root", percent(rooted, all));
    let stopped = totals.ends.iter().filter(|(reason, _)| **reason != EndReason::Root as u16);
    for (index, (reason, samples)) in stopped.enumerate() {
        let name = EndReason::from_number(*reason).map_or("unknown reason", EndReason::name);
        let before = if index == 0 { "; stopped early: " } else { ", " };
        text.push_str(&format!("{before}{name} {samples}"));
    }
    Some(text)
}

/// Returns whose code used the time, if it is not only native code.
fn languages(recording: &RecordingInfo, totals: &SampleTotals) -> Option<String> {
    let languages = totals.languages.heaviest_first()?;
    let shares: Vec<String> = languages
        .into_iter()
        .map(|(language, count)| {
            format!("{} {:.1} %", language.name(), percent(count.weight, totals.count.weight))
        })
        .collect();
    let shares = if shares.is_empty() { "none".to_owned() } else { shares.join(", ") };
    let own = totals.languages.of_interpreters;
    let left_out = match (recording.leaves_frames_out, own) {
        (false, _) => String::new(),
        (true, 0) => "; frames of interpreters are left out".to_owned(),
        (true, own) => {
            let samples = counted(own, "sample");
            format!("; frames of interpreters are left out, but {samples} without others")
        }
    };
    Some(format!("{shares} by the innermost function{left_out}"))
}

/// Returns in how many of the samples with managed functions the innermost of these has a name.
fn names(totals: &SampleTotals) -> Option<String> {
    let share = |(language, samples, named): (Language, u64, u64)| {
        let share = percent(named, samples);
        let samples = counted(samples, "sample");
        format!("{share:.1} % of {samples} with a function in {}", language.name())
    };
    let shares: Vec<String> = totals.languages.named().map(share).collect();
    (!shares.is_empty()).then(|| shares.join(", "))
}

/// Returns how long threads held the lock of a language's runtime, and waited for it.
fn lock(recording: &RecordingInfo, totals: &SampleTotals) -> Option<String> {
    let (name, held) = (recording.lock()?, totals.held);
    let (samples, weight) = (totals.count.samples, totals.count.weight);
    if samples == 0 {
        return None;
    }
    let share = percent(held.weight, weight);
    let is_all = recording.tells_lock_in_kernel() || held.weight == weight;
    let mut text = match totals.mode {
        Mode::Cpu => {
            let least = if is_all { "" } else { "at least " };
            format!("{name} was held in {least}{share:.1} % of the CPU time")
        }
        Mode::Wall => {
            let [held, waited] = [held, totals.waited].map(|it| wall_seconds(it.weight));
            match totals.waited.weight {
                0 => format!("threads held {name} for {held} s"),
                _ => format!("threads held {name} for {held} s and waited {waited} s for it"),
            }
        }
    };
    if !is_all {
        text.push_str("; perf events in the kernel do not say who held it");
    }
    Some(text)
}

fn lost(recording: &RecordingInfo) -> Option<String> {
    let mut total = 0u64;
    let mut reasons = Vec::new();
    let mut counted_any = false;
    for (key, value) in &recording.metadata {
        if let (Some(reason), Value::Unsigned(number)) = (key.strip_prefix("lost."), value) {
            counted_any = true;
            total = total.saturating_add(*number);
            if *number > 0 {
                reasons.push(format!("{} {number}", reason.replace('_', " ")));
            }
        }
    }
    match (counted_any, reasons.is_empty()) {
        (false, _) => None,
        (true, true) => Some("no sample".to_owned()),
        (true, false) => Some(format!("{}: {}", counted(total, "sample"), reasons.join(", "))),
    }
}

/// Returns the CPU time of the complete recording. The CPU time of a part is unknown.
fn cpu_time(recording: &RecordingInfo, totals: &SampleTotals) -> Option<String> {
    if recording.window.is_some() {
        return None;
    }
    let used_ns = recording.number("cpu_time_ns")? as f64;
    let seen_ns = totals.periods()? as f64 * recording.period_ns()?;
    let share = if used_ns > 0.0 {
        format!(" ({:.1} %)", seen_ns * 100.0 / used_ns)
    } else {
        String::new()
    };
    Some(format!(
        "the samples stand for {:.3} s of the {:.3} s that the target used{share}",
        seen_ns / 1e9,
        used_ns / 1e9
    ))
}

fn stops(recording: &RecordingInfo) -> Option<String> {
    let mut parts = Vec::new();
    if let Some(Value::List(stops)) = recording.metadata.get("attach_stops_ns") {
        let stops: Vec<u64> = stops
            .iter()
            .filter_map(|stop| match stop {
                Value::Unsigned(ns) => Some(*ns),
                _ => None,
            })
            .collect();
        let listed: Vec<String> = stops.iter().map(|ns| milliseconds(*ns)).collect();
        match stops.iter().max() {
            Some(longest_ns) if stops.len() > STOPS_LISTED => {
                let sum = milliseconds(stops.iter().fold(0u64, |sum, ns| sum.saturating_add(*ns)));
                let longest = milliseconds(*longest_ns);
                parts.push(format!("{sum} in {} stops at attach, {longest} at most", stops.len()));
            }
            Some(_) => parts.push(format!("{} at attach", listed.join(" + "))),
            None => {}
        }
    }
    if let Some(ns) = recording.number("detach_stopped_ns") {
        parts.push(format!("{} at detach", milliseconds(ns)));
    }
    (!parts.is_empty()).then(|| format!("stopped for {}", parts.join(", ")))
}

fn milliseconds(ns: u64) -> String {
    format!("{:.3} ms", ns as f64 / 1e6)
}

/// Returns a description of the unreadable part of the file.
fn damage(recording: &RecordingInfo) -> Option<String> {
    let losses = &recording.losses;
    if losses.is_empty() {
        let bytes: u64 = recording.bad.iter().map(|range| range.bytes).sum();
        // Only the end of the file says that no sample is missing.
        let samples = if recording.closed { "; no sample is lost" } else { "" };
        let text = || format!("{} can no longer be read{samples}", counted(bytes, "byte"));
        return (!recording.bad.is_empty()).then(text);
    }
    let threads: BTreeSet<_> = losses.iter().filter_map(|loss| loss.thread).collect();
    let known: u64 = losses.iter().filter_map(|loss| loss.samples).sum();
    let more = losses.iter().any(|loss| loss.samples.is_none());
    let samples = match (known, more) {
        (0, true) => "an unknown number of samples".to_owned(),
        (known, true) => format!("{} and an unknown number more", counted(known, "sample")),
        (known, false) => counted(known, "sample"),
    };
    let places = counted(losses.len() as u64, "place");
    let threads = counted(threads.len() as u64, "thread");
    Some(format!("{samples} can no longer be read, at {places} of {threads}"))
}

/// Returns the origin of a trace that does not come directly from a recorder.
fn origin(recording: &RecordingInfo) -> Option<String> {
    let file = recording.text("recovered_from")?;
    let lost = recording.number("recovered_lost_samples").unwrap_or(0);
    let frames = recording.number("recovered_lost_frames").unwrap_or(0);
    let lost = match (lost, frames) {
        (0, 0) => "nothing was lost".to_owned(),
        (0, frames) => format!("{} are lost", counted(frames, "frame")),
        (lost, frames) => {
            format!("{} of {} are lost", counted(lost, "sample"), counted(frames, "frame"))
        }
    };
    let unfinished = match recording.number("recovered_unfinished") {
        Some(1..) => ", whose recording did not end properly; of what was written",
        _ => ":",
    };
    Some(format!("recovered from {}{unfinished} {lost}", shell_quoted(file)))
}

fn unfinished(recording: &RecordingInfo) -> Option<String> {
    let text = match recording.running {
        true => "the recording is still running: this is what was written so far",
        false => "the recording did not end properly: this is all that it had written",
    };
    (!recording.closed).then(|| text.to_owned())
}
