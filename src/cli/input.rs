//! The trace that a command reads.

use std::fs;
use std::path::Path;

use anyhow::anyhow;

use super::exit::{CommandFailure, ExitCode};
use super::notes::note;
use super::progress_line;
use crate::trace::{LazyTrace, index_path, memory};
use crate::view::{Selected, Selection, SourceMaps};

/// Starts work on the trace at `path`, which `doing` names: shows its progress, and limits its
/// memory.
pub(super) fn begin(doing: &'static str, path: &Path) {
    progress_line::begin(doing, path);
    limit_memory(path);
}

/// Limits the memory of this process in proportion to the files of a trace, besides those of the
/// traces before.
pub(super) fn limit_memory(path: &Path) {
    // A file that cannot be read is reported by the code that opens it.
    let bytes = |path: &Path| fs::metadata(path).map_or(0, |meta| meta.len());
    memory::allow(bytes(path).saturating_add(bytes(&index_path(path))));
}

/// Opens a trace and prints the notes of its reader.
pub(super) fn open(path: &Path) -> Result<LazyTrace, CommandFailure> {
    begin("reading", path);
    let trace = LazyTrace::open(path).map_err(CommandFailure::of_trace)?;
    note_new(&trace, 0);
    Ok(trace)
}

/// Opens a trace as [`open`] does, for a view of a selection.
pub(super) fn open_for(path: &Path, selection: &Selection) -> Result<LazyTrace, CommandFailure> {
    let mut trace = open(path)?;
    show(&mut trace, selection);
    Ok(trace)
}

/// Shows frames as the selection says: which ones, and their names.
pub(super) fn show(trace: &mut LazyTrace, selection: &Selection) {
    if !selection.native_frames {
        trace.leave_out_interpreters();
    }
    if selection.source_maps {
        let maps = SourceMaps::of(trace.metadata());
        trace.relabel(Box::new(maps));
    }
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
