//! The trace that a command reads.

use std::path::Path;

use anyhow::anyhow;

use super::exit::{CommandFailure, ExitCode};
use super::notes::note;
use super::progress_line;
use crate::trace::LazyTrace;
use crate::view::{Selected, Selection};

/// Opens a trace and prints the notes of its reader.
pub(super) fn open(path: &Path) -> Result<LazyTrace, CommandFailure> {
    progress_line::begin("reading", path);
    let trace = LazyTrace::open(path).map_err(CommandFailure::of_trace)?;
    note_new(&trace, 0);
    Ok(trace)
}

/// Prints the reader's notes after the first `noted`, and returns their number. Reading may add
/// notes after the opening.
pub(super) fn note_new(trace: &LazyTrace, noted: usize) -> usize {
    let notices = trace.notices();
    notices.iter().skip(noted).for_each(|notice| note(notice));
    notices.len()
}

/// Resolves a selection in a trace.
pub(super) fn select(trace: &LazyTrace, selection: &Selection) -> Result<Selected, CommandFailure> {
    selection.resolve(trace).map_err(|text| CommandFailure::new(ExitCode::Usage, anyhow!(text)))
}

/// Prints a note if no sample matches the selection.
pub(super) fn note_if_empty(selected: &Selected, samples: u64) {
    if samples == 0 && selected.filter.is_narrow() {
        let selection = selected.text.as_deref().unwrap_or("all");
        note(&format!("no sample matches the selection: {selection}"));
    }
}
