//! `traceprof print`.

mod conflicts;
mod file_watch;
mod follow;
mod printer;
mod single_stacks;

use anyhow::anyhow;

use self::printer::Printer;
use self::single_stacks::SingleStacks;
use super::arguments::{GroupKey, PrintArguments};
use super::exit::{CommandFailure, ExitCode};
use super::input;
use super::output::Destination;
use crate::view::Selection;

/// Prints the trace.
pub(super) fn run(arguments: PrintArguments) -> Result<ExitCode, CommandFailure> {
    conflicts::check(&arguments)
        .map_err(|text| CommandFailure::new(ExitCode::Usage, anyhow!(text)))?;
    let output = Destination::new(arguments.output.clone(), arguments.force, &arguments.file)?;
    let printer = Printer::new(&arguments, output == Destination::Standard);
    let single = SingleStacks::new(&arguments, output == Destination::Standard);
    let by = match arguments.by {
        Some(GroupKey::Samples(by)) => Some(by),
        _ => None,
    };
    let selection = Selection { by, ..Selection::from(arguments.selection) };
    if arguments.follow {
        return follow::run(&arguments.file, selection, &printer);
    }
    let trace = input::open_for(&arguments.file, &selection)?;
    let noted = trace.notices().len();
    let selected = input::select(&trace, &selection)?;
    output.write(|out| match &single {
        Some(single) => single.write(&trace, &selected, out),
        None => printer.whole(&trace, &selected, out).map_err(CommandFailure::of_view),
    })?;
    input::note_new(&trace, noted);
    Ok(ExitCode::Ok)
}
