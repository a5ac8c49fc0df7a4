//! The trace that a command reads.

use std::io::Write;
use std::path::Path;

use anyhow::anyhow;

use super::exit::{ExitCode, Failure};
use super::work;
use crate::trace::LazyTrace;
use crate::view::escape::escaped;
use crate::view::{Selected, Selection};

/// Opens a trace and tells what its reader has to say.
pub(super) fn open(path: &Path) -> Result<LazyTrace, Failure> {
    work::begin("reading", path);
    let trace = LazyTrace::open(path).map_err(Failure::of_trace)?;
    tell_from(&trace, 0);
    Ok(trace)
}

/// Tells what the reader of a trace has to say since it had `told` things to say; how many it has
/// now. Reading on may show more than opening.
pub(super) fn tell_from(trace: &LazyTrace, told: usize) -> usize {
    let notices = trace.notices();
    notices.iter().skip(told).for_each(|notice| note(notice));
    notices.len()
}

/// What of a trace is meant.
pub(super) fn select(trace: &LazyTrace, selection: &Selection) -> Result<Selected, Failure> {
    selection.resolve(trace).map_err(|text| Failure::new(ExitCode::Usage, anyhow!(text)))
}

/// Tells that no sample is as it was asked for.
pub(super) fn tell_if_empty(selected: &Selected, samples: u64) {
    if samples == 0 && selected.filter.is_narrow() {
        let asked = selected.text.as_deref().unwrap_or("all");
        note(&format!("no sample is in what is asked for: {asked}"));
    }
}

/// Tells something on the standard error.
pub(super) fn note(text: &str) {
    // Nobody to tell when it is closed.
    let _ = work::aside(|| writeln!(std::io::stderr(), "note: {}", escaped(text)));
}
