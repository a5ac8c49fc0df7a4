//! `traceprof export`.

use anyhow::anyhow;

use super::arguments::ExportArguments;
use super::exit::{ExitCode, Failure};
use super::output::{Destination, unwritable};
use super::source;
use crate::view::export::{self, ExportOptions, Format};
use crate::view::{self, Selection};

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
    let trace = source::open(&arguments.file)?;
    let told = trace.notices().len();
    let selected = source::select(&trace, &Selection::from(arguments.selection))?;
    let profile = view::load(&trace, &selected).map_err(Failure::of_trace)?;
    source::tell_from(&trace, told);
    let ExportArguments { threads, no_idle, .. } = arguments;
    let options = ExportOptions { format, threads, no_idle };
    Destination::new(arguments.output, arguments.force, &arguments.file)?
        .write(|out| export::write(&profile, &options, out).map_err(unwritable))
}
