//! Single stacks: those of all threads at one time, and call traces by their ids.

use std::io::Write;

use anyhow::anyhow;

use crate::cli::arguments::PrintArguments;
use crate::cli::color;
use crate::cli::exit::{CommandFailure, ExitCode};
use crate::trace::LazyTrace;
use crate::view::stacks::{by_id, instant};
use crate::view::{Selected, StackOptions, TimePoint};

/// Which stacks are printed.
#[derive(Debug)]
enum StackChoice {
    At(TimePoint),
    Ids(Vec<u64>),
    Preserved,
}

/// The stacks to print, and how.
#[derive(Debug)]
pub(super) struct SingleStacks {
    choice: StackChoice,
    options: StackOptions,
}

impl SingleStacks {
    /// Returns what the arguments ask for, if it is single stacks.
    pub(super) fn new(arguments: &PrintArguments, is_standard: bool) -> Option<Self> {
        let choice = match arguments {
            PrintArguments { at: Some(at), .. } => StackChoice::At(*at),
            PrintArguments { preserved: true, .. } => StackChoice::Preserved,
            PrintArguments { trace_id, .. } if !trace_id.is_empty() => {
                StackChoice::Ids(trace_id.iter().map(|id| id.0).collect())
            }
            _ => return None,
        };
        let style = color::text_style(arguments.color, is_standard);
        let PrintArguments { verbose, json, .. } = *arguments;
        Some(Self { choice, options: StackOptions { verbose, json, style } })
    }

    /// Writes the stacks.
    pub(super) fn write(
        &self,
        trace: &LazyTrace,
        selected: &Selected,
        out: &mut dyn Write,
    ) -> Result<(), CommandFailure> {
        let usage = |text: String| CommandFailure::new(ExitCode::Usage, anyhow!(text));
        let options = &self.options;
        match &self.choice {
            StackChoice::At(at) => {
                let time_ns = instant::time_of(*at, trace).map_err(usage)?;
                instant::write(trace, (selected, time_ns), options, out)
                    .map_err(CommandFailure::of_view)
            }
            StackChoice::Ids(ids) => {
                let missing = by_id::write(trace, (selected, ids), options, out);
                match missing.map_err(CommandFailure::of_view)?.first() {
                    None => Ok(()),
                    Some(id) => Err(usage(format!(
                        "no call trace has the id {id:#x}: `print --timeline --verbose` shows the \
                         ids of samples"
                    ))),
                }
            }
            StackChoice::Preserved => {
                let any = by_id::write_preserved(trace, selected, options, out);
                match any.map_err(CommandFailure::of_view)? {
                    true => Ok(()),
                    false => Err(usage(
                        "the trace has no list of preserved call traces: record it with \
                         `--preserve N`"
                            .to_owned(),
                    )),
                }
            }
        }
    }
}
