//! `traceprof reindex`.

use std::io::{self, Write};

use anyhow::anyhow;

use super::arguments::ReindexArguments;
use super::exit::{ExitCode, Failure};
use super::source::note;
use super::work;
use crate::trace;
use crate::trace::index_path;
use crate::view::escape::escaped;

/// Writes the index anew.
pub(super) fn run(arguments: &ReindexArguments) -> Result<(), Failure> {
    let file = &arguments.file;
    if matches!(trace::is_being_written(file), Ok(true)) {
        let error = anyhow!(
            "{} is being recorded, and its index written: wait for the end",
            file.display()
        );
        return Err(Failure::new(ExitCode::Failure, error));
    }
    work::begin("indexing", file);
    let done = trace::reindex(file, arguments.full);
    work::end();
    let done = done.map_err(Failure::of_trace)?;
    done.notices.iter().for_each(|notice| note(notice));
    let index = index_path(file).display().to_string();
    let (bytes, cells) = (done.index_bytes, done.cells);
    // Nobody to tell when the standard error is closed; the index is written all the same.
    let _ = writeln!(io::stderr(), "index  {} of {bytes} bytes, {cells} cells", escaped(&index));
    Ok(())
}
