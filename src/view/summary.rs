//! The head of a printed trace: what was recorded, how, and how good it is.
//!
//! Every line rests on what the trace holds; a key that the recorder did not write leaves its part
//! out, it is never guessed.

use std::io::{self, Write};

use traceprof_abi::unwind::EndReason;

use super::date::utc;
use super::escape::{escaped, shell_quoted};
use super::profile::Profile;
use super::rows::{counted, percent};
use crate::trace::Value;

/// Writes the head.
pub(super) fn write(profile: &Profile, out: &mut dyn Write) -> io::Result<()> {
    let lines = [
        ("command", command(profile)),
        ("recorded", recorded(profile)),
        ("sampling", sampling(profile)),
        ("samples", samples(profile)),
        ("rooted", rooted(profile)),
        ("lost", lost(profile)),
        ("cpu time", cpu_time(profile)),
        ("target", stops(profile)),
        ("note", unfinished(profile)),
    ];
    for (label, text) in lines {
        if let Some(text) = text {
            writeln!(out, "{label:9} {}", escaped(&text))?;
        }
    }
    for notice in &profile.notices {
        writeln!(out, "{:9} {}", "note", escaped(notice))?;
    }
    Ok(())
}

fn command(profile: &Profile) -> Option<String> {
    let pid = profile.number("pid").map(|pid| format!("pid {pid}"));
    let Some(Value::List(words)) = profile.metadata.get("command_line") else {
        return pid;
    };
    let words: Vec<String> = words
        .iter()
        .filter_map(|word| match word {
            Value::Text(word) => Some(shell_quoted(word)),
            _ => None,
        })
        .collect();
    match (words.is_empty(), pid) {
        (true, pid) => pid,
        (false, None) => Some(words.join(" ")),
        (false, Some(pid)) => Some(format!("{} ({pid})", words.join(" "))),
    }
}

fn recorded(profile: &Profile) -> Option<String> {
    let mut parts = Vec::new();
    if let Some(time_ns) = profile.number("start_realtime_ns") {
        parts.push(utc(time_ns));
    }
    if let Some(duration_ns) = duration_ns(profile) {
        parts.push(format!("for {:.3} s", duration_ns as f64 / 1e9));
    }
    if let Some(host) = profile.text("host") {
        let kernel = profile.text("kernel").map(|kernel| format!(", {kernel}"));
        parts.push(format!("on {host}{}", kernel.unwrap_or_default()));
    }
    if let Some(cpus) = profile.number("cpus") {
        parts.push(format!("with {}", counted(cpus, "cpu")));
    }
    (!parts.is_empty()).then(|| parts.join(" "))
}

/// From the recorder, or from the first to the last sample.
fn duration_ns(profile: &Profile) -> Option<u64> {
    let spans = || profile.threads.iter().filter_map(|thread| thread.span_ns);
    let start = profile.number("start_monotonic_ns").or(spans().map(|span| span.0).min())?;
    let end = profile.number("end_monotonic_ns").or(spans().map(|span| span.1).max())?;
    end.checked_sub(start)
}

fn sampling(profile: &Profile) -> Option<String> {
    let mut parts = Vec::new();
    if let Some(engine) = profile.text("engine") {
        parts.push(format!("{engine} engine"));
    }
    if let Some(hz) = profile.number("freq_hz") {
        parts.push(format!("{hz} Hz"));
    }
    if let Some(period_ns) = profile.period_ns() {
        parts.push(format!("period {:.3} ms of cpu time", period_ns / 1e6));
    }
    match profile.number("kernel_included") {
        Some(0) => parts.push("without time in the kernel".to_owned()),
        Some(_) => parts.push("with time in the kernel".to_owned()),
        None => {}
    }
    if let Some(version) = profile.text("traceprof_version") {
        parts.push(format!("traceprof {version}"));
    }
    (!parts.is_empty()).then(|| parts.join(", "))
}

fn samples(profile: &Profile) -> Option<String> {
    let count = profile.count();
    let threads = profile.threads.iter().filter(|thread| thread.count.samples > 0).count();
    Some(format!(
        "{} for {} in {}",
        count.samples,
        counted(count.weight, "period"),
        counted(threads as u64, "thread")
    ))
}

fn rooted(profile: &Profile) -> Option<String> {
    let all = profile.count().samples;
    let mut by_reason = std::collections::BTreeMap::new();
    for (reason, samples) in profile.threads.iter().flat_map(|thread| &thread.ends) {
        *by_reason.entry(*reason).or_insert(0u64) += samples;
    }
    let rooted = by_reason.remove(&(EndReason::Root as u16)).unwrap_or(0);
    if all == 0 {
        return None;
    }
    let mut text = format!("{:.1} % of the stacks reach the root", percent(rooted, all));
    for (index, (reason, samples)) in by_reason.iter().enumerate() {
        let name = EndReason::from_number(*reason).map_or("unknown reason", EndReason::name);
        let before = if index == 0 { "; stopped early: " } else { ", " };
        text.push_str(&format!("{before}{name} {samples}"));
    }
    Some(text)
}

fn lost(profile: &Profile) -> Option<String> {
    let mut total = 0u64;
    let mut reasons = Vec::new();
    let mut counted_any = false;
    for (key, value) in &profile.metadata {
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

fn cpu_time(profile: &Profile) -> Option<String> {
    let used_ns = profile.number("cpu_time_ns")? as f64;
    let seen_ns = profile.count().weight as f64 * profile.period_ns()?;
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

fn stops(profile: &Profile) -> Option<String> {
    let mut parts = Vec::new();
    if let Some(Value::List(stops)) = profile.metadata.get("attach_stops_ns") {
        let stops: Vec<String> = stops
            .iter()
            .filter_map(|stop| match stop {
                Value::Unsigned(ns) => Some(milliseconds(*ns)),
                _ => None,
            })
            .collect();
        if !stops.is_empty() {
            parts.push(format!("{} at attach", stops.join(" + ")));
        }
    }
    if let Some(ns) = profile.number("detach_stopped_ns") {
        parts.push(format!("{} at detach", milliseconds(ns)));
    }
    (!parts.is_empty()).then(|| format!("stopped for {}", parts.join(", ")))
}

fn milliseconds(ns: u64) -> String {
    format!("{:.3} ms", ns as f64 / 1e6)
}

/// For a reader that does not say it itself.
fn unfinished(profile: &Profile) -> Option<String> {
    let text = "the recording did not end properly: this is all that was written until then";
    (!profile.closed && profile.notices.is_empty()).then(|| text.to_owned())
}
