//! `traceprof export`.

use std::io::Write;

use anyhow::anyhow;

use super::arguments::ExportArguments;
use super::exit::{ExitCode, Failure};
use super::output::{Destination, unwritable};
use crate::view::export::{self, ExportOptions, Format};
use crate::view::{self};

/// Converts the trace.
pub(super) fn run(arguments: ExportArguments) -> Result<(), Failure> {
    let guess = || arguments.output.as_deref().and_then(Format::of_path);
    let Some(format) = arguments.format.or_else(guess) else {
        let known = Format::ALL.map(Format::name).join(", ");
        let error = anyhow!(
            "the format is not known: name it with --format ({known}), or by the extension of \
             --output"
        );
        return Err(Failure::new(ExitCode::Usage, error));
    };
    let profile =
        view::load(&arguments.file).map_err(|error| Failure::new(ExitCode::Failure, error))?;
    // The format has no place for these.
    for notice in &profile.notices {
        let _ = writeln!(std::io::stderr(), "note: {}", view::escape::escaped(notice));
    }
    let options = ExportOptions { format, threads: arguments.threads };
    Destination::new(arguments.output, arguments.force, &arguments.file)?
        .write(|out| export::write(&profile, &options, out).map_err(unwritable))
}
