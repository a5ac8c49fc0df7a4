//! `traceprof dump`.

use std::io::Write;

use super::arguments::DumpArguments;
use super::exit::CommandFailure;
use super::input;
use super::output::Destination;
use crate::trace::index_path;
use crate::view::dump::{self, DumpFormat};
use crate::view::text::escape::escaped;

/// Lists the trace.
pub(super) fn run(arguments: &DumpArguments) -> Result<(), CommandFailure> {
    let form = if arguments.json { DumpFormat::Json } else { DumpFormat::Text };
    input::limit_memory(&arguments.file);
    let mut indexed = true;
    Destination::Standard.write(|out| {
        indexed = dump::write(&arguments.file, form, out).map_err(CommandFailure::of_view)?;
        Ok(())
    })?;
    if !indexed {
        let index = index_path(&arguments.file).display().to_string();
        let note = format!("note: there is no index file {}", escaped(&index));
        let _ = writeln!(std::io::stderr(), "{note}");
    }
    Ok(())
}
