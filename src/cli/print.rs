//! `traceprof print`.

use super::arguments::PrintArguments;
use super::exit::{ExitCode, Failure};
use super::follow;
use super::output::Destination;
use super::source;
use crate::trace::LazyTrace;
use crate::view::{self, Limits, Profile, Selected, Selection, ViewError, timeline, tree};

/// Prints the trace.
pub(super) fn run(arguments: PrintArguments) -> Result<ExitCode, Failure> {
    let style = Style {
        timeline: arguments.timeline,
        verbose: arguments.verbose,
        idle: arguments.idle,
        limits: Limits { min_percent: arguments.min_percent.0, depth: arguments.depth },
    };
    let selection = Selection { by: arguments.by, ..Selection::from(arguments.selection) };
    if arguments.follow {
        return follow::run(&arguments.file, selection, &style);
    }
    let trace = source::open(&arguments.file)?;
    let told = trace.notices().len();
    let selected = source::select(&trace, &selection)?;
    Destination::new(arguments.output, arguments.force, &arguments.file)?
        .write(|out| style.whole(&trace, &selected, out).map_err(Failure::of_view))?;
    source::tell_from(&trace, told);
    Ok(ExitCode::Ok)
}

/// How a trace is printed.
#[derive(Debug)]
pub(super) struct Style {
    timeline: bool,
    verbose: bool,
    idle: bool,
    limits: Limits,
}

impl Style {
    /// The summary and the trees.
    pub(super) fn whole(
        &self,
        trace: &LazyTrace,
        selected: &Selected,
        out: &mut dyn std::io::Write,
    ) -> Result<(), ViewError> {
        let Self { timeline, verbose, idle, limits } = *self;
        if timeline {
            let options = timeline::TimelineOptions { verbose, limits };
            return timeline::write(trace, selected, &options, out);
        }
        let profile = self.load(trace, &selected.for_tree(&limits))?;
        source::tell_if_empty(selected, profile.count().samples);
        Ok(tree::write(&profile, &tree::TreeOptions { verbose, limits, idle }, out)?)
    }

    fn load(&self, trace: &LazyTrace, selected: &Selected) -> Result<Profile, ViewError> {
        let load = if self.verbose { view::load_with_contexts } else { view::load };
        load(trace, selected)
    }

    /// The trees alone.
    pub(super) fn trees(
        &self,
        trace: &LazyTrace,
        selected: &Selected,
        out: &mut dyn std::io::Write,
    ) -> Result<(), ViewError> {
        let Self { timeline, verbose, idle, limits } = *self;
        if timeline {
            let options = timeline::TimelineOptions { verbose, limits };
            return timeline::write_threads(trace, selected, &options, out);
        }
        let profile = self.load(trace, &selected.for_tree(&limits))?;
        Ok(tree::write_threads(&profile, &tree::TreeOptions { verbose, limits, idle }, out)?)
    }
}
