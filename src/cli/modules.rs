//! `traceprof info`.

use super::arguments::InfoArguments;
use super::exit::Failure;
use super::output::{Destination, unwritable};
use super::source;
use crate::view::{self, Selection, modules};

/// Lists the modules of a trace.
pub(super) fn run(arguments: &InfoArguments) -> Result<(), Failure> {
    let trace = source::open(&arguments.file)?;
    let told = trace.notices().len();
    let selected = source::select(&trace, &Selection::default())?;
    let profile = view::load(&trace, &selected).map_err(Failure::of_view)?;
    source::tell_from(&trace, told);
    Destination::Standard.write(|out| modules::write(&profile, out).map_err(unwritable))
}
