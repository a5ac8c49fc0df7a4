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
mod shortcuts;
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
use exit::{CommandExit, CommandFailure, ExitCode};

/// Runs the command line `words` and returns how this program exits.
pub fn run(words: impl IntoIterator<Item = OsString>) -> CommandExit {
    let words = shortcuts::expanded(words.into_iter().collect());
    let parsed = match completion::answer(&words) {
        Ok(true) => return ExitCode::Ok.into(),
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
                return ExitCode::Usage.into();
            }
            // Help and version come this way too. A closed output leaves nobody to tell.
            let _ = error.print();
            let code = if error.use_stderr() { ExitCode::Usage } else { ExitCode::Ok };
            return code.into();
        }
    };
    let outcome = act(arguments.action);
    progress_line::end();
    match outcome {
        Ok(exit) => exit,
        Err(failure) if failure.is_broken_pipe() => ExitCode::Ok.into(),
        Err(failure) => {
            let _ = writeln!(std::io::stderr(), "{failure}");
            failure.code.into()
        }
    }
}

fn act(action: Action) -> Result<CommandExit, CommandFailure> {
    match action {
        Action::Record(arguments) => return record::run(arguments),
        Action::Detach(arguments) => detach::run(&arguments),
        Action::Doctor(arguments) => return doctor::run(&arguments).map(CommandExit::from),
        Action::Stacks(arguments) => stacks::run(&arguments),
        Action::Top(arguments) => return top::run(&arguments).map(CommandExit::from),
        Action::Print(arguments) => return print::run(arguments).map(CommandExit::from),
        Action::Dump(arguments) => dump::run(&arguments),
        Action::Export(arguments) => export::run(arguments),
        Action::View(arguments) => view::run(arguments),
        Action::Diff(arguments) => diff::run(arguments),
        Action::Info(arguments) => trace_info::run(&arguments),
        Action::Verify(arguments) => return verify::run(&arguments).map(CommandExit::from),
        Action::Recover(arguments) => return recover::run(&arguments).map(CommandExit::from),
        Action::Reindex(arguments) => reindex::run(&arguments),
        Action::Completions(arguments) => documents::completions(&arguments),
        Action::Man(arguments) => documents::man(&arguments),
    }?;
    Ok(ExitCode::Ok.into())
}
