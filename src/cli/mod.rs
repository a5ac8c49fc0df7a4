//! The command: arguments, the terminal, exit codes.
//!
//! Invariants: data goes to the standard output and nothing else does; every failure is one line on
//! the standard error and a documented exit code; only `main` ends the process.

pub mod arguments;
mod browser;
pub mod color;
mod completion;
mod detach;
mod diff;
mod doctor;
pub mod documents;
mod dump;
pub mod examples;
pub mod exit;
mod export;
mod input;
mod known_limits;
mod notes;
mod number_values;
pub mod option_values;
mod output;
mod print;
mod progress_line;
mod record;
mod recover;
mod reindex;
pub mod size_values;
mod stacks;
mod top;
mod trace_info;
mod usage_errors;
mod verify;
mod view;

use std::ffi::OsString;
use std::io::Write;

use clap::FromArgMatches;

use arguments::{Action, Arguments, definition};
use exit::{CommandFailure, ExitCode};

/// Runs the command line `words` and returns its exit code.
pub fn run(words: impl IntoIterator<Item = OsString>) -> ExitCode {
    let words: Vec<OsString> = words.into_iter().collect();
    let parsed = match completion::answer(&words) {
        Ok(true) => return ExitCode::Ok,
        Ok(false) => definition()
            .try_get_matches_from(&words)
            .and_then(|mut matches| Arguments::from_arg_matches_mut(&mut matches)),
        Err(error) => Err(error),
    };
    let arguments = match parsed {
        Ok(arguments) => arguments,
        Err(mut error) => {
            if let Some(text) = usage_errors::refusal(&mut error, &words) {
                let _ = writeln!(std::io::stderr(), "traceprof: {text}");
                return ExitCode::Usage;
            }
            // Help and version come this way too. A closed output leaves nobody to tell.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::Usage } else { ExitCode::Ok };
        }
    };
    let outcome = act(arguments.action);
    progress_line::end();
    match outcome {
        Ok(code) => code,
        Err(failure) if failure.is_broken_pipe() => ExitCode::Ok,
        Err(failure) => {
            let _ = writeln!(std::io::stderr(), "{failure}");
            failure.code
        }
    }
}

fn act(action: Action) -> Result<ExitCode, CommandFailure> {
    match action {
        Action::Record(arguments) => record::run(arguments),
        Action::Detach(arguments) => detach::run(&arguments),
        Action::Doctor(arguments) => return doctor::run(&arguments),
        Action::Stacks(arguments) => stacks::run(&arguments),
        Action::Top(arguments) => return top::run(&arguments),
        Action::Print(arguments) => return print::run(arguments),
        Action::Dump(arguments) => dump::run(&arguments),
        Action::Export(arguments) => export::run(arguments),
        Action::View(arguments) => view::run(arguments),
        Action::Diff(arguments) => diff::run(arguments),
        Action::Info(arguments) => trace_info::run(&arguments),
        Action::Verify(arguments) => return verify::run(&arguments),
        Action::Recover(arguments) => return recover::run(&arguments),
        Action::Reindex(arguments) => reindex::run(&arguments),
        Action::Completions(arguments) => documents::completions(&arguments),
        Action::Man(arguments) => documents::man(&arguments),
    }?;
    Ok(ExitCode::Ok)
}
