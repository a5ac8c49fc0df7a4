//! How a trace is printed: its summary, then trees, a table or a timeline.

use std::io::Write;

use crate::cli::arguments::{GroupKey, PrintArguments};
use crate::cli::color;
use crate::cli::input;
use crate::cli::option_values::Percent;
use crate::trace::LazyTrace;
use crate::view::json::{self, JsonPart};
use crate::view::print::{first_screen, summary_screen, top_table, tree};
use crate::view::profile::flat_profile::RowType;
use crate::view::{self, PrintLimits, Profile, Selected, Split, TreeOptions, ViewError, timeline};

/// The default for --min-percent.
const MIN_PERCENT: f64 = 0.5;

/// How a trace is printed.
#[derive(Debug)]
pub(super) struct Printer {
    timeline: bool,
    json: bool,
    /// Whether the user has set a limit.
    is_limited: bool,
    /// The part of the output after the summary.
    part: JsonPart,
    options: TreeOptions,
}

impl Printer {
    pub(super) fn new(arguments: &PrintArguments, is_standard: bool) -> Self {
        let asked = arguments.min_percent.map(|Percent(share)| share);
        let min_percent = asked.unwrap_or(MIN_PERCENT);
        let limits = PrintLimits { min_percent, depth: arguments.depth };
        let steps = match arguments.by {
            Some(GroupKey::Steps(steps)) => steps,
            Some(GroupKey::Thread) if arguments.top.is_some() => RowType::Thread,
            Some(GroupKey::Process) if arguments.top.is_some() => match arguments.merge_processes {
                true => RowType::Program,
                false => RowType::Process,
            },
            _ => RowType::Function,
        };
        let split = match arguments {
            PrintArguments { by: Some(GroupKey::Thread), .. } => Split::ByThread,
            PrintArguments { by: Some(GroupKey::Process), merge_processes: true, .. } => {
                Split::ByProgram
            }
            PrintArguments { by: Some(GroupKey::Process), .. } => Split::ByProcess,
            PrintArguments { threads: true, .. } => Split::Threads,
            PrintArguments { aggregate: true, .. } | PrintArguments { inverted: true, .. } => {
                Split::Together
            }
            PrintArguments { merge_processes: true, .. } => Split::PoolsOfPrograms,
            _ => Split::Pools,
        };
        let part = match (arguments.summary, arguments.top) {
            (true, _) => JsonPart::Summary,
            (false, Some(most)) => JsonPart::Top(most.get()),
            (false, None) if wants_trees(arguments) => JsonPart::Trees,
            (false, None) => JsonPart::Summary,
        };
        let options = TreeOptions {
            verbose: arguments.verbose,
            steps,
            split,
            inverted: arguments.inverted,
            limits,
            rows_min_percent: asked.unwrap_or(0.0),
            idle: arguments.idle,
            style: color::text_style(arguments.color, is_standard),
        };
        let is_limited = asked.is_some() || arguments.depth.is_some();
        Self { timeline: arguments.timeline, json: arguments.json, is_limited, part, options }
    }

    /// Prints the summary and the part that follows it.
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
        input::note_if_empty(selected, profile.count().samples);
        if self.json {
            return Ok(json::write(&profile, self.part, &self.options, out)?);
        }
        if self.part == JsonPart::Summary {
            return Ok(first_screen::write(&profile, &self.options, out)?);
        }
        let with_functions = !matches!(self.part, JsonPart::Top(_));
        summary_screen::write(&profile, with_functions, &self.options, out)?;
        self.write(&profile, out)
    }

    /// Whether the output is text, which may have headings between its parts.
    pub(super) fn is_text(&self) -> bool {
        !self.json
    }

    /// Prints only the part after the summary, for samples that were added.
    pub(super) fn trees(
        &self,
        trace: &LazyTrace,
        selected: &Selected,
        out: &mut dyn Write,
    ) -> Result<(), ViewError> {
        if self.timeline {
            return timeline::write_new_samples(trace, selected, &self.of_timeline(), out);
        }
        self.write(&self.load(trace, selected)?, out)
    }

    fn write(&self, profile: &Profile, out: &mut dyn Write) -> Result<(), ViewError> {
        match self.part {
            JsonPart::Summary => Ok(()),
            JsonPart::Trees => Ok(tree::write_threads(profile, &self.options, out)?),
            JsonPart::Top(most) => Ok(top_table::write(profile, most, &self.options, out)?),
        }
    }

    fn of_timeline(&self) -> timeline::TimelineOptions {
        let TreeOptions { verbose, limits, style, .. } = self.options;
        let whole_lines = if self.is_limited { 0 } else { first_screen::LINES_MAX };
        timeline::TimelineOptions { verbose, json: self.json, limits, style, whole_lines }
    }

    fn load(&self, trace: &LazyTrace, selected: &Selected) -> Result<Profile, ViewError> {
        let TreeOptions { verbose, inverted, .. } = self.options;
        let load = if verbose && !inverted { view::load_with_contexts } else { view::load };
        let selected = match self.part {
            JsonPart::Top(most) => selected.for_table(most),
            JsonPart::Summary | JsonPart::Trees => {
                selected.for_tree(self.options.limits.min_percent)
            }
        };
        load(trace, &selected)
    }
}

/// Returns whether an option asks for trees. JSON always has them, because scripts need no screen.
fn wants_trees(arguments: &PrintArguments) -> bool {
    let PrintArguments { tree, inverted, threads, aggregate, verbose, idle, follow, json, .. } =
        *arguments;
    let of_trees = tree
        || arguments.merge_processes
        || inverted
        || threads
        || aggregate
        || verbose
        || idle
        || follow
        || json;
    let is_limited = arguments.min_percent.is_some() || arguments.depth.is_some();
    let selection = &arguments.selection;
    let of_some = !selection.thread.is_empty() || !selection.process.is_empty();
    of_trees || is_limited || of_some || arguments.by.is_some()
}
