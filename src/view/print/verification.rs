//! The verification of a trace file, as text or as JSON.

use std::io::{self, Write};

use serde_json::{Value as Json, json};

use crate::trace::{
    BadRange, FileState, IndexState, Loss, NOT_WRITTEN, Value, Verification, WRITE_ERROR,
};
use crate::view::text::escape::escaped;
use crate::view::text::number::counted;

/// Writes one line per finding. The last line is the verdict.
pub fn write(found: &Verification, file: &str, out: &mut dyn Write) -> io::Result<()> {
    let mut line = |label: &str, text: &str| writeln!(out, "{label:9} {}", escaped(text));
    line("file", file)?;
    line("size", &counted(found.bytes, "byte"))?;
    let frames = counted(found.frames, "complete frame");
    let (checked, coverage) = (counted(found.checked, "byte"), coverage_percent(found));
    line("checked", &format!("{checked} in {frames}, {coverage:.1} %"))?;
    for BadRange { offset, bytes, what } in &found.bad {
        line("bad", &format!("{} at offset {offset}: {what}", counted(*bytes, "byte")))?;
    }
    let threads = counted(u64::from(found.threads), "thread");
    line("samples", &format!("{} in {threads}", found.samples))?;
    for loss in &found.losses {
        line("lost", &loss_text(loss, begin_ns(found)))?;
    }
    let not_written = not_written(found);
    if not_written > 0 {
        line("lost", &format!("{} that could not be written", counted(not_written, "sample")))?;
    }
    if let Some(why) = ended_early(found) {
        line("ended", &format!("early: {why}"))?;
    }
    line("index", &index_text(&found.index))?;
    for notice in &found.notices {
        line("note", notice)?;
    }
    let (_, text) = verdict(found.state());
    match (found.state(), &found.index) {
        (FileState::Clean, IndexState::Broken(_)) => {
            line("verdict", "clean: every byte is sound except the index, which can be rebuilt")
        }
        (FileState::Clean, _) if not_written > 0 => {
            line("verdict", "clean: every byte that could be written is sound")
        }
        _ => line("verdict", text),
    }
}

/// Writes one JSON object in one line.
pub fn write_json(found: &Verification, file: &str, out: &mut dyn Write) -> io::Result<()> {
    let bad = |BadRange { offset, bytes, what }: &BadRange| -> Json {
        json!({ "offset": offset, "bytes": bytes, "what": what })
    };
    let (index, why) = match &found.index {
        IndexState::Missing => ("missing", None),
        IndexState::Sound => ("sound", None),
        IndexState::Journal => ("journal", None),
        IndexState::Broken(why) => ("broken", Some(why)),
    };
    let all = json!({
        "file": file,
        "bytes": found.bytes,
        "checked": found.checked,
        "coverage_percent": coverage_percent(found),
        "frames": found.frames,
        "bad": found.bad.iter().map(bad).collect::<Vec<_>>(),
        "samples": found.samples,
        "threads": found.threads,
        "begin_ns": begin_ns(found),
        "losses": found.losses.iter().map(loss_json).collect::<Vec<_>>(),
        "not_written": not_written(found),
        "ended_early": ended_early(found),
        "closed": found.closed,
        "index": { "state": index, "why": why },
        "notices": found.notices,
        "verdict": verdict(found.state()).0,
    });
    serde_json::to_writer(&mut *out, &all).map_err(io::Error::from)?;
    writeln!(out)
}

/// Returns a description of a loss. Times count from `begin_ns`.
pub fn loss_text(loss: &Loss, begin_ns: Option<u64>) -> String {
    let what = match loss.samples {
        Some(samples) => counted(samples, "sample"),
        None => "an unknown number of samples".to_owned(),
    };
    let whose = match loss.thread {
        Some(thread) => format!("of thread {}", u64::from(thread.0) + 1),
        None => "of unknown threads, or names".to_owned(),
    };
    let clock = if begin_ns.is_none() { " on the clock of the samples" } else { "" };
    let at = |time_ns: u64| {
        let since_ns = time_ns.saturating_sub(begin_ns.unwrap_or(0));
        format!("{:.6} s", since_ns as f64 / 1e9)
    };
    let when = match (loss.from_ns, loss.to_ns) {
        (0, u64::MAX) => "at any time".to_owned(),
        (0, to_ns) => format!("up to {}{clock}", at(to_ns)),
        (from_ns, u64::MAX) => format!("from {} on{clock}", at(from_ns)),
        (from_ns, to_ns) => format!("from {} to {}{clock}", at(from_ns), at(to_ns)),
    };
    format!("{what} {whose}, {when}")
}

/// Returns the start of the recording, if the recorder wrote it.
fn begin_ns(found: &Verification) -> Option<u64> {
    match found.metadata.get("start_monotonic_ns") {
        Some(Value::Unsigned(ns)) => Some(*ns),
        _ => None,
    }
}

/// Returns the number of samples that the recorder could not write.
fn not_written(found: &Verification) -> u64 {
    match found.metadata.get(NOT_WRITTEN) {
        Some(Value::Unsigned(samples)) => *samples,
        _ => 0,
    }
}

/// Returns why the recorder could not write on, if so.
fn ended_early(found: &Verification) -> Option<&str> {
    match found.metadata.get(WRITE_ERROR) {
        Some(Value::Text(why)) => Some(why),
        _ => None,
    }
}

fn loss_json(loss: &Loss) -> Json {
    json!({
        "thread": loss.thread.map(|thread| thread.0),
        "from_ns": loss.from_ns,
        "to_ns": (loss.to_ns != u64::MAX).then_some(loss.to_ns),
        "samples": loss.samples,
    })
}

fn coverage_percent(found: &Verification) -> f64 {
    match found.bytes {
        0 => 0.0,
        bytes => found.checked as f64 * 100.0 / bytes as f64,
    }
}

fn index_text(index: &IndexState) -> String {
    match index {
        IndexState::Missing => "missing; `traceprof reindex` writes one".to_owned(),
        IndexState::Sound => "sound".to_owned(),
        IndexState::Journal => "sound, from a recording that was not closed".to_owned(),
        IndexState::Broken(why) => format!("broken: {why}; `traceprof reindex` writes another"),
    }
}

/// Returns a word for scripts and a sentence for users.
fn verdict(state: FileState) -> (&'static str, &'static str) {
    match state {
        FileState::Clean => ("clean", "clean: every byte is sound"),
        FileState::Unfinished => (
            "unfinished",
            "unfinished: what was written is sound, but the recording is still running or was \
             killed",
        ),
        FileState::Lossy => {
            ("lossy", "lossy: parts of the trace are lost; `traceprof recover` saves the rest")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::ThreadId;

    #[test]
    fn a_time_without_a_begin_names_its_clock() {
        let loss = Loss { thread: None, from_ns: 0, to_ns: 2_000_000_000, samples: Some(1) };
        assert_eq!(
            loss_text(&loss, None),
            "1 sample of unknown threads, or names, up to 2.000000 s on the clock of the samples"
        );
    }

    #[test]
    fn a_loss_is_described_as_far_as_known() {
        let text = |thread: Option<u32>, from_ns, to_ns, samples| {
            let thread = thread.map(ThreadId);
            loss_text(&Loss { thread, from_ns, to_ns, samples }, Some(1_000_000_000))
        };
        assert_eq!(
            text(Some(0), 2_000_000_000, 3_500_000_000, Some(17)),
            "17 samples of thread 1, from 1.000000 s to 2.500000 s"
        );
        assert_eq!(
            text(None, 0, u64::MAX, None),
            "an unknown number of samples of unknown threads, or names, at any time"
        );
        assert_eq!(
            text(Some(2), 2_000_000_000, u64::MAX, None),
            "an unknown number of samples of thread 3, from 1.000000 s on"
        );
    }
}
