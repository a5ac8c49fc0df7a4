//! The last minute of the table as a trace of its own.

use std::path::Path;

use crate::cli::exit::CommandFailure;
use crate::record::{Occasion, OutputPattern};
use crate::trace::{LazyTrace, WriterOptions, excerpt};
use crate::view::text::escape::shell_quoted;

const MINUTE_NS: u64 = 60_000_000_000;

/// Writes the last minute up to `now_ns` to a new file in the current directory. Returns what was
/// saved and how to see it.
pub(super) fn save(trace: &LazyTrace, pid: i32, now_ns: u64) -> Result<String, CommandFailure> {
    let first_ns = trace.threads().iter().filter_map(|thread| thread.first_ns).min();
    let from_ns = now_ns.saturating_sub(MINUTE_NS).max(first_ns.unwrap_or(0));
    let name = format!("traceprof-top-{pid}.trace");
    let pattern = OutputPattern::literal(Path::new(&name)).with_number();
    let path = pattern.path(Occasion::now(Some(pid)));
    excerpt(trace, from_ns..=now_ns, &path, WriterOptions::default())
        .map_err(CommandFailure::of_trace)?;
    let seconds = now_ns.saturating_sub(from_ns) as f64 / 1e9;
    let path = shell_quoted(&path.display().to_string());
    Ok(format!("saved the last {seconds:.0} s: traceprof print {path}"))
}
