//! `traceprof diff`.

use std::path::Path;

use anyhow::anyhow;

use super::arguments::DiffArguments;
use super::exit::{CommandFailure, ExitCode};
use super::input;
use super::output::Destination;
use crate::trace::FileState;
use crate::view::diff::{self, DiffFormat, DiffOptions, DiffSide};
use crate::view::{Selected, Selection};

/// Compares two traces, or two parts of one.
pub(super) fn run(arguments: DiffArguments) -> Result<(), CommandFailure> {
    let DiffArguments { paths, top, json, .. } = arguments;
    let format = if json { DiffFormat::Json } else { arguments.format };
    let selection = Selection::from(arguments.selection);
    let base = arguments.base.apply(&selection);
    let second = arguments.after.as_deref().unwrap_or(&arguments.before);
    let output = Destination::new(arguments.output.clone(), arguments.force, &arguments.before)?;
    let output = match output {
        Destination::Standard => output,
        Destination::File { .. } => Destination::new(arguments.output, arguments.force, second)?,
    };
    let before = load(&arguments.before, &base)?;
    let after = load(second, &selection)?;
    if before.mode() != after.mode() {
        let error = anyhow!(
            "one trace has all time, the other one only CPU time: compare CPU time with --mode cpu"
        );
        return Err(CommandFailure::new(ExitCode::Usage, error));
    }
    let options = DiffOptions { format, paths, top };
    output
        .write(|out| diff::write(&before, &after, &options, out).map_err(super::output::unwritable))
}

fn load(path: &Path, selection: &Selection) -> Result<DiffSide, CommandFailure> {
    let trace = input::open_for(path, selection)?;
    let noted = trace.notices().len();
    let selected = input::select(&trace, selection)?;
    let name = path.display().to_string();
    let side = DiffSide::load(&trace, &selected, &name).map_err(CommandFailure::of_view)?;
    input::note_new(&trace, noted);
    if side.samples() == 0 {
        return Err(no_sample(&name, &selected, trace.state()));
    }
    Ok(side)
}

/// Returns why a side has no sample: the command line is at fault only if it selects a part.
fn no_sample(name: &str, selected: &Selected, state: FileState) -> CommandFailure {
    let (code, why) = match (&selected.text, state) {
        (Some(selection), _) => {
            (ExitCode::Usage, format!("that matches the selection ({selection}): select others"))
        }
        (None, FileState::Lossy) => (
            ExitCode::Lossy,
            "left: parts of it are lost, and `traceprof verify` says which".to_owned(),
        ),
        (None, FileState::Unfinished) => {
            (ExitCode::Unfinished, "yet: its recording did not end".to_owned())
        }
        (None, FileState::Clean) => {
            (ExitCode::NoSamples, "to compare: record it for longer".to_owned())
        }
    };
    CommandFailure::new(code, anyhow!("{name} has no sample {why}"))
}
