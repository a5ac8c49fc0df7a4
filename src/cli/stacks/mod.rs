//! `traceprof stacks`.

mod json;
mod text;

use std::io::Write;

use super::arguments::StacksArguments;
use super::exit::CommandFailure;
use super::output::{Destination, unwritable};
use crate::inspect::stacks::stacks;
use crate::view::text::escape::escaped;

/// Prints the stacks of the process.
pub(super) fn run(arguments: &StacksArguments) -> Result<(), CommandFailure> {
    let mut found =
        stacks(arguments.pid, arguments.kernel).map_err(CommandFailure::of_recording)?;
    if !arguments.native_frames {
        found.remove_carriers();
    }
    for notice in &found.notices {
        // A closed standard error leaves nobody to tell.
        let _ = writeln!(std::io::stderr(), "note: {}", escaped(notice));
    }
    Destination::Standard.write(|out| {
        let written = if arguments.json {
            json::write(&found, out)
        } else {
            text::write(&found, arguments.verbose, out)
        };
        written.map_err(unwritable)
    })
}
