//! `traceprof print --follow`: prints a trace, then what is added to it, until its end.
//!
//! Invariant: the output is flushed after every window, so that the reader of a pipe sees it at
//! once.

use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::anyhow;

use super::file_watch::FileWatch;
use super::printer::Printer;
use crate::cli::exit::{CommandFailure, ExitCode};
use crate::cli::input;
use crate::cli::notes::note;
use crate::cli::output::unwritable;
use crate::trace::{self, LazyTrace, TraceError};
use crate::view::text::escape::escaped;
use crate::view::{NewSamples, Selection};

/// How long to wait for a change before checking that the recorder is running.
const PATIENCE: Duration = Duration::from_secs(1);
/// The shortest time between two windows: a fast recorder writes many frames a second.
const PAUSE: Duration = Duration::from_millis(200);

/// Prints until the recording ends.
pub(super) fn run(
    path: &Path,
    selection: Selection,
    printer: &Printer,
) -> Result<ExitCode, CommandFailure> {
    // Before the first read, so that no change is missed.
    let mut watch = FileWatch::new(path);
    input::limit_memory(path);
    let (mut trace, mut written) = open(path, &mut watch)?;
    input::show(&mut trace, &selection);
    let mut news = NewSamples::new(selection);
    first(&trace, &mut news, printer)?;
    loop {
        if trace.closed() {
            note("the recording has ended");
            return Ok(ExitCode::Ok);
        }
        if !news.wants_more() {
            return Ok(ExitCode::Ok);
        }
        if !written {
            note("the recorder exited without closing the trace; `traceprof verify` checks it");
            return Ok(ExitCode::Unfinished);
        }
        watch.wait(PATIENCE);
        // Checked before the read, so that the read sees the last write of a recorder that exited.
        written = is_written(path);
        if trace.refresh().map_err(CommandFailure::of_trace)? {
            let started = Instant::now();
            next(&trace, &mut news, printer)?;
            if written {
                // Leaves most of the machine to the recorder, however long a read takes.
                std::thread::sleep(PAUSE.max(started.elapsed()));
            }
        }
    }
}

/// Opens the trace as soon as it has content, and returns whether it is being written.
fn open(path: &Path, watch: &mut FileWatch) -> Result<(LazyTrace, bool), CommandFailure> {
    loop {
        // Checked before the read: a recorder that comes or goes in between has written more.
        let written = is_written(path);
        match LazyTrace::open(path) {
            // An open trace is normal here and needs no note.
            Ok(trace) if written => return Ok((trace, true)),
            Ok(trace) => {
                input::note_new(&trace, 0);
                return Ok((trace, false));
            }
            Err(TraceError::NotATrace { .. } | TraceError::Corrupt { .. }) if written => {
                watch.wait(PATIENCE);
            }
            Err(error) => return Err(CommandFailure::of_trace(error)),
        }
    }
}

/// Whether the recorder is running. If that is unknown, the end of the trace will show it.
fn is_written(path: &Path) -> bool {
    trace::is_being_written(path).unwrap_or(true)
}

/// Prints the summary and the samples so far.
fn first(
    trace: &LazyTrace,
    news: &mut NewSamples,
    printer: &Printer,
) -> Result<(), CommandFailure> {
    let usage = |text: String| CommandFailure::new(ExitCode::Usage, anyhow!(text));
    let selected = match news.next(trace).map_err(usage)? {
        Some(selected) => selected,
        // Nothing yet: a summary without threads.
        None => news.none_yet(trace).map_err(usage)?,
    };
    print(|out| printer.whole(trace, &selected, out).map_err(CommandFailure::of_view))
}

/// Prints the samples since the last window.
fn next(trace: &LazyTrace, news: &mut NewSamples, printer: &Printer) -> Result<(), CommandFailure> {
    let selected =
        news.next(trace).map_err(|text| CommandFailure::new(ExitCode::Usage, anyhow!(text)))?;
    let late = news.late(trace, selected.as_ref()).map_err(CommandFailure::of_trace)?;
    if late > 0 {
        let samples = if late == 1 { "sample was" } else { "samples were" };
        note(&format!("{late} {samples} written too late for their window"));
    }
    let Some(selected) = selected else { return Ok(()) };
    print(|out| {
        if printer.is_text() {
            let heading = selected.text.as_deref().unwrap_or_default();
            writeln!(out, "\n== {}", escaped(heading)).map_err(unwritable)?;
        }
        printer.trees(trace, &selected, out).map_err(CommandFailure::of_view)
    })
}

/// Writes to the standard output and flushes it.
fn print(
    write: impl FnOnce(&mut dyn Write) -> Result<(), CommandFailure>,
) -> Result<(), CommandFailure> {
    let mut out = BufWriter::new(io::stdout().lock());
    write(&mut out)?;
    out.flush().map_err(unwritable)
}
