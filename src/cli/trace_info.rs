//! `traceprof info`.

use super::arguments::InfoArguments;
use super::exit::CommandFailure;
use super::input;
use super::output::{Destination, unwritable};
use crate::view::{self, Selection, modules};

/// Lists the modules of a trace.
pub(super) fn run(arguments: &InfoArguments) -> Result<(), CommandFailure> {
    let trace = input::open(&arguments.file)?;
    let noted = trace.notices().len();
    let selected = input::select(&trace, &Selection::default())?;
    let profile = view::load(&trace, &selected).map_err(CommandFailure::of_view)?;
    input::note_new(&trace, noted);
    Destination::Standard.write(|out| modules::write(&profile, out).map_err(unwritable))
}
