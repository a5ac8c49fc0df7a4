//! `traceprof export`.

use std::io::{self, IsTerminal};

use anyhow::anyhow;

use super::arguments::ExportArguments;
use super::exit::{CommandFailure, ExitCode};
use super::input;
use super::output::Destination;
use crate::view::export::{self, ExportOptions, Format};
use crate::view::html::PageOptions;
use crate::view::{self, Grouping, Selection};

/// Converts the trace.
pub(super) fn run(arguments: ExportArguments) -> Result<(), CommandFailure> {
    let guess = || arguments.output.as_deref().and_then(Format::of_path);
    let Some(format) = arguments.format.or_else(guess) else {
        let known = Format::ALL.map(Format::name).join(", ");
        let error = anyhow!(
            "the format is unknown: name it with --format ({known}), or by the extension of \
             --output"
        );
        return Err(CommandFailure::new(ExitCode::Usage, error));
    };
    refuse_frames(&arguments, format)?;
    if arguments.annotate && format != Format::Folded {
        let error = anyhow!("--annotate is for folded stacks: use --format folded");
        return Err(CommandFailure::new(ExitCode::Usage, error));
    }
    refuse_terminal(&arguments, format)?;
    let selection = Selection { by: arguments.by, ..Selection::from(arguments.selection) };
    let trace = input::open_for(&arguments.file, &selection)?;
    let noted = trace.notices().len();
    let ExportArguments { threads, annotate, no_idle, output, force, .. } = arguments;
    let output = Destination::new(output, force, &arguments.file)?;
    if format == Format::Html {
        // A page has CPU time and all time.
        let page = PageOptions { no_idle, ..PageOptions::default() };
        return super::view::write(&trace, &selection, &page, &output);
    }
    let mut selected = input::select(&trace, &selection)?;
    if format.is_by_context() {
        selected.by = Some(Grouping::by_context());
    }
    let profile = view::load(&trace, &selected).map_err(CommandFailure::of_view)?;
    input::note_new(&trace, noted);
    input::note_if_empty(&selected, profile.count().samples);
    let options = ExportOptions { format, threads, annotate, no_idle };
    output.write(|out| {
        export::write(&trace, (&selected, &profile), &options, out).map_err(CommandFailure::of_view)
    })
}

/// Refuses to write binary data to a terminal.
fn refuse_terminal(arguments: &ExportArguments, format: Format) -> Result<(), CommandFailure> {
    let is_standard = arguments.output.as_ref().is_none_or(|path| path.as_os_str() == "-");
    if format.is_binary() && is_standard && io::stdout().is_terminal() {
        let error =
            anyhow!("{format} is binary and cannot go to a terminal: name a file with --output");
        return Err(CommandFailure::new(ExitCode::Usage, error));
    }
    Ok(())
}

/// Refuses to put threads, spans or tags into frames of a format that stores them elsewhere or not.
fn refuse_frames(arguments: &ExportArguments, format: Format) -> Result<(), CommandFailure> {
    let asked = [(arguments.threads, "threads"), (arguments.by.is_some(), "by")];
    let refused = asked.into_iter().find(|(is_asked, _)| *is_asked && !format.is_merged());
    let Some((_, option)) = refused else { return Ok(()) };
    let why = match (option, format.has_contexts()) {
        (_, true) => {
            "has threads, spans and tags beside the stacks, and its viewers can group by them"
        }
        ("threads", false) => "separates threads anyway",
        _ => "has no place for spans and tags; --span and --tag choose the samples of some",
    };
    let error = anyhow!("--{option} is for folded stacks and flame graphs: {format} {why}");
    Err(CommandFailure::new(ExitCode::Usage, error))
}
