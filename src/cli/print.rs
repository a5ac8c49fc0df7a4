//! `traceprof print`.

use std::io::Write;

use anyhow::anyhow;

use super::arguments::{Key, PrintArguments};
use super::combinations;
use super::exit::{ExitCode, Failure};
use super::follow;
use super::output::Destination;
use super::source;
use super::terminal;
use super::values::Percent;
use crate::trace::LazyTrace;
use crate::view::functions::RowOf;
use crate::view::json::{self, Part};
use crate::view::{
    self, Limits, Profile, Selected, Selection, Split, TreeOptions, ViewError, ranking, screen,
    timeline, tree,
};

/// The share of a call that has a line, in percent, if it is not said.
const MIN_PERCENT: f64 = 0.5;

/// Prints the trace.
pub(super) fn run(arguments: PrintArguments) -> Result<ExitCode, Failure> {
    combinations::check(&arguments).map_err(|text| Failure::new(ExitCode::Usage, anyhow!(text)))?;
    let output = Destination::new(arguments.output.clone(), arguments.force, &arguments.file)?;
    let style = Style::new(&arguments, output == Destination::Standard);
    let by = match arguments.by {
        Some(Key::Samples(by)) => Some(by),
        _ => None,
    };
    let selection = Selection { by, ..Selection::from(arguments.selection) };
    if arguments.follow {
        return follow::run(&arguments.file, selection, &style);
    }
    let trace = source::open(&arguments.file)?;
    let told = trace.notices().len();
    let selected = source::select(&trace, &selection)?;
    output.write(|out| style.whole(&trace, &selected, out).map_err(Failure::of_view))?;
    source::tell_from(&trace, told);
    Ok(ExitCode::Ok)
}

/// How a trace is printed.
#[derive(Debug)]
pub(super) struct Style {
    timeline: bool,
    json: bool,
    /// What follows the summary.
    part: Part,
    options: TreeOptions,
}

impl Style {
    fn new(arguments: &PrintArguments, is_standard: bool) -> Self {
        let asked = arguments.min_percent.map(|Percent(share)| share);
        let min_percent = asked.unwrap_or(MIN_PERCENT);
        let limits = Limits { min_percent, depth: arguments.depth };
        let steps = match arguments.by {
            Some(Key::Steps(steps)) => steps,
            Some(Key::Thread) if arguments.top.is_some() => RowOf::Thread,
            Some(Key::Process) if arguments.top.is_some() => RowOf::Process,
            _ => RowOf::Function,
        };
        let split = match arguments {
            PrintArguments { by: Some(Key::Thread), .. } => Split::ByThread,
            PrintArguments { by: Some(Key::Process), .. } => Split::ByProcess,
            PrintArguments { threads: true, .. } => Split::Threads,
            PrintArguments { aggregate: true, .. } | PrintArguments { inverted: true, .. } => {
                Split::Together
            }
            _ => Split::Pools,
        };
        let part = match (arguments.summary, arguments.top) {
            (true, _) => Part::Summary,
            (false, Some(most)) => Part::Top(most.get()),
            (false, None) => Part::Trees,
        };
        let options = TreeOptions {
            verbose: arguments.verbose,
            steps,
            split,
            inverted: arguments.inverted,
            limits,
            rows_min_percent: asked.unwrap_or(0.0),
            idle: arguments.idle,
            look: terminal::look(arguments.color, is_standard),
        };
        Self { timeline: arguments.timeline, json: arguments.json, part, options }
    }

    /// The summary and what follows it.
    pub(super) fn whole(
        &self,
        trace: &LazyTrace,
        selected: &Selected,
        out: &mut dyn Write,
    ) -> Result<(), ViewError> {
        if self.timeline {
            return timeline::write(trace, selected, &self.of_timeline(), out);
        }
        let profile = self.load(trace, selected)?;
        source::tell_if_empty(selected, profile.count().samples);
        if self.json {
            return Ok(json::write(&profile, self.part, &self.options, out)?);
        }
        let with_functions = !matches!(self.part, Part::Top(_));
        screen::write(&profile, with_functions, &self.options, out)?;
        self.write(&profile, out)
    }

    /// Whether it is text, which may have headings between its parts.
    pub(super) fn is_text(&self) -> bool {
        !self.json
    }

    /// What came since: what follows the summary, alone.
    pub(super) fn trees(
        &self,
        trace: &LazyTrace,
        selected: &Selected,
        out: &mut dyn Write,
    ) -> Result<(), ViewError> {
        if self.timeline {
            return timeline::write_news(trace, selected, &self.of_timeline(), out);
        }
        self.write(&self.load(trace, selected)?, out)
    }

    fn write(&self, profile: &Profile, out: &mut dyn Write) -> Result<(), ViewError> {
        match self.part {
            Part::Summary => Ok(()),
            Part::Trees => Ok(tree::write_threads(profile, &self.options, out)?),
            Part::Top(most) => Ok(ranking::write(profile, most, &self.options, out)?),
        }
    }

    fn of_timeline(&self) -> timeline::TimelineOptions {
        let TreeOptions { verbose, limits, look, .. } = self.options;
        timeline::TimelineOptions { verbose, json: self.json, limits, look }
    }

    fn load(&self, trace: &LazyTrace, selected: &Selected) -> Result<Profile, ViewError> {
        let TreeOptions { verbose, inverted, .. } = self.options;
        let load = if verbose && !inverted { view::load_with_contexts } else { view::load };
        let selected = match self.part {
            Part::Top(most) => selected.for_table(most),
            Part::Summary | Part::Trees => selected.for_tree(&self.options.limits),
        };
        load(trace, &selected)
    }
}
