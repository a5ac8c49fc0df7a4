//! `traceprof print --follow`: what is in a trace, then what is added to it, until its end.
//!
//! Invariant: the output is flushed after every window, so that a pipe's reader sees it as soon as it
//! is there.

use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::anyhow;

use super::exit::{ExitCode, Failure};
use super::output::unwritable;
use super::print::Style;
use super::source::{self, note};
use super::watch::Watch;
use crate::trace::{self, LazyTrace, TraceError};
use crate::view::escape::escaped;
use crate::view::{News, Selection};

/// How long no change of the file is waited for before its recorder is looked for.
const PATIENCE: Duration = Duration::from_secs(1);
/// Between two windows: a fast recorder writes many frames a second.
const PAUSE: Duration = Duration::from_millis(200);

/// Prints until the recording ends.
pub(super) fn run(path: &Path, selection: Selection, style: &Style) -> Result<ExitCode, Failure> {
    // Before the first look, so that no change falls in between.
    let watch = Watch::new(path);
    let (mut trace, mut written) = open(path, &watch)?;
    let mut news = News::new(selection);
    first(&trace, &mut news, style)?;
    loop {
        if trace.closed() {
            note("the recording has ended");
            return Ok(ExitCode::Ok);
        }
        if !news.wants_more() {
            return Ok(ExitCode::Ok);
        }
        if !written {
            note("the recording did not end properly: its recorder is gone");
            return Ok(ExitCode::Unfinished);
        }
        watch.wait(PATIENCE);
        // In this order: what a recorder that is gone wrote last is there to be read.
        written = is_written(path);
        if trace.refresh().map_err(Failure::of_trace)? {
            let started = Instant::now();
            next(&trace, &mut news, style)?;
            if written {
                // Following leaves the recorder most of the machine, however long a look takes.
                std::thread::sleep(PAUSE.max(started.elapsed()));
            }
        }
    }
}

/// Opens the trace, as soon as there is something in it, and says whether it is being written.
fn open(path: &Path, watch: &Watch) -> Result<(LazyTrace, bool), Failure> {
    loop {
        // In this order: a recorder that comes or goes in between has written more, not less.
        let written = is_written(path);
        match LazyTrace::open(path) {
            // That it is not closed is what one follows it for: no need to be told.
            Ok(trace) if written => return Ok((trace, true)),
            Ok(trace) => {
                source::tell_from(&trace, 0);
                return Ok((trace, false));
            }
            Err(TraceError::NotATrace { .. } | TraceError::Corrupt { .. }) if written => {
                watch.wait(PATIENCE);
            }
            Err(error) => return Err(Failure::of_trace(error)),
        }
    }
}

/// Whether the recorder is there. If the system does not say, it is: the end of the trace will tell.
fn is_written(path: &Path) -> bool {
    trace::is_being_written(path).unwrap_or(true)
}

/// Prints the summary and what there is so far.
fn first(trace: &LazyTrace, news: &mut News, style: &Style) -> Result<(), Failure> {
    let usage = |text: String| Failure::new(ExitCode::Usage, anyhow!(text));
    let selected = match news.next(trace).map_err(usage)? {
        Some(selected) => selected,
        // A summary without threads.
        None => news.none_yet(trace).map_err(usage)?,
    };
    print(|out| style.whole(trace, &selected, out).map_err(Failure::of_view))
}

/// Prints what came since.
fn next(trace: &LazyTrace, news: &mut News, style: &Style) -> Result<(), Failure> {
    let selected = news.next(trace).map_err(|text| Failure::new(ExitCode::Usage, anyhow!(text)))?;
    let late = news.late(trace, selected.as_ref()).map_err(Failure::of_trace)?;
    if late > 0 {
        let samples = if late == 1 { "sample was" } else { "samples were" };
        note(&format!("{late} {samples} written too late to be in a window"));
    }
    let Some(selected) = selected else { return Ok(()) };
    print(|out| {
        if style.is_text() {
            let heading = selected.text.as_deref().unwrap_or_default();
            writeln!(out, "\n== {}", escaped(heading)).map_err(unwritable)?;
        }
        style.trees(trace, &selected, out).map_err(Failure::of_view)
    })
}

/// Writes to the standard output, all of it now.
fn print(write: impl FnOnce(&mut dyn Write) -> Result<(), Failure>) -> Result<(), Failure> {
    let mut out = BufWriter::new(io::stdout().lock());
    write(&mut out)?;
    out.flush().map_err(unwritable)
}
