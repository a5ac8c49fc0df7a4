//! `traceprof stacks`.

mod json;
mod text;

use std::io::Write;

use super::arguments::StacksArguments;
use super::exit::Failure;
use super::output::{Destination, unwritable};
use super::record::failure;
use crate::record::stacks::stacks;
use crate::view::escape::escaped;

/// Looks at the process, and prints what was seen.
pub(super) fn run(arguments: &StacksArguments) -> Result<(), Failure> {
    let found = stacks(arguments.pid, arguments.kernel).map_err(failure)?;
    for notice in &found.notices {
        // Nobody to tell when the standard error is closed.
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
