//! `traceprof print`.

use super::arguments::PrintArguments;
use super::exit::{ExitCode, Failure};
use super::output::{Destination, unwritable};
use crate::view::{self, Limits, tree};

/// Prints the trace.
pub(super) fn run(arguments: PrintArguments) -> Result<(), Failure> {
    let profile =
        view::load(&arguments.file).map_err(|error| Failure::new(ExitCode::Failure, error))?;
    let limits = Limits { min_percent: arguments.min_percent.0, depth: arguments.depth };
    let options = tree::TreeOptions { verbose: arguments.verbose, limits };
    Destination::new(arguments.output, arguments.force, &arguments.file)?
        .write(|out| tree::write(&profile, &options, out).map_err(unwritable))
}
