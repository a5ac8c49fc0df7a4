//! `traceprof reindex`.

use std::io::{self, Write};

use anyhow::anyhow;

use super::arguments::ReindexArguments;
use super::exit::{CommandFailure, ExitCode};
use super::notes::note;
use super::{input, progress_line};
use crate::trace;
use crate::trace::index_path;
use crate::view::text::escape::escaped;

/// Rebuilds the index.
pub(super) fn run(arguments: &ReindexArguments) -> Result<(), CommandFailure> {
    let file = &arguments.file;
    if matches!(trace::is_being_written(file), Ok(true)) {
        let error = anyhow!(
            "{} is being recorded, and the recorder writes its index: wait for its end",
            file.display()
        );
        return Err(CommandFailure::new(ExitCode::Failure, error));
    }
    input::begin("indexing", file);
    let done = trace::reindex(file, arguments.full);
    progress_line::end();
    let done = done.map_err(CommandFailure::of_trace)?;
    done.notices.iter().for_each(|notice| note(notice));
    let index = index_path(file).display().to_string();
    let (bytes, cells) = (done.index_bytes, done.cells);
    // A closed standard error leaves nobody to tell; the index is written anyway.
    let _ = writeln!(io::stderr(), "index  {} of {bytes} bytes, {cells} cells", escaped(&index));
    Ok(())
}
