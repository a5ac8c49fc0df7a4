//! The command: arguments, the terminal, exit codes.
//!
//! Invariants: data goes to the standard output and nothing else does; every failure is one line on
//! the standard error and a documented exit code; only `main` ends the process.

pub mod arguments;
mod closing;
mod combinations;
mod detach;
mod diff;
mod doctor;
pub mod documents;
mod dump;
pub mod examples;
pub mod exit;
mod export;
mod follow;
mod limits;
mod modules;
mod opener;
mod output;
mod pidfile;
mod print;
mod progress;
mod ready;
mod record;
mod recover;
mod reindex;
pub mod sizes;
mod source;
mod stacks;
pub mod terminal;
mod top;
pub mod values;
mod verify;
mod view;
mod watch;
mod work;

use std::ffi::OsString;
use std::io::Write;

use clap::FromArgMatches;
use clap::error::ErrorKind;

use arguments::{Action, Arguments, Refusal, definition};
use exit::{ExitCode, Failure};

use crate::view::escape;

/// Runs the command line `words` and says how it ended.
pub fn run(words: impl IntoIterator<Item = OsString>) -> ExitCode {
    let words: Vec<OsString> = words.into_iter().collect();
    let parsed = definition()
        .try_get_matches_from(&words)
        .and_then(|mut matches| Arguments::from_arg_matches_mut(&mut matches));
    let arguments = match parsed {
        Ok(arguments) => arguments,
        Err(error) => {
            if let Some(text) = refusal(&error, &words) {
                let _ = writeln!(std::io::stderr(), "traceprof: {text}");
                return ExitCode::Usage;
            }
            // Help and version come this way too. A closed output has nobody to tell.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::Usage } else { ExitCode::Ok };
        }
    };
    let outcome = act(arguments.action);
    work::end();
    match outcome {
        Ok(code) => code,
        Err(failure) if failure.is_broken_pipe() => ExitCode::Ok,
        Err(failure) => {
            let _ = writeln!(std::io::stderr(), "{failure}");
            failure.code
        }
    }
}

/// What is said of words of another profiler that have no meaning here, and of those that contradict
/// each other.
fn refusal(error: &clap::Error, words: &[OsString]) -> Option<String> {
    let source = std::error::Error::source(error);
    if let Some(refusal) = source.and_then(|source| source.downcast_ref::<Refusal>()) {
        let definition = definition();
        let record = definition.find_subcommand("record")?;
        let line = Refusal::command_line(words, record);
        let line = line.map_or_else(String::new, |line| format!(", as in `{line}`"));
        return Some(format!("{refusal}{}", escape::escaped(&line)));
    }
    if error.kind() == ErrorKind::UnknownArgument {
        return program(words);
    }
    if error.kind() != ErrorKind::ArgumentConflict {
        return None;
    }
    let text = error.to_string();
    let first = text.lines().next()?.strip_prefix("error: ")?.to_owned();
    // The others, where there are several, are in lines of their own.
    let others = text.lines().skip(1).take_while(|line| line.starts_with("  ")).map(str::trim);
    let all: Vec<String> = [first].into_iter().chain(others.map(str::to_owned)).collect();
    let all = all.join(" ");
    let all = all.trim_end_matches(':');
    Some(format!("{all}: leave one of them out; --help says more"))
}

/// A program to record whose own options were taken for ours.
fn program(words: &[OsString]) -> Option<String> {
    let [_, action, program, ..] = words else { return None };
    let name = program.to_string_lossy();
    let is_pid = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit() || byte == b',');
    if action != "record" || name.starts_with('-') || is_pid(&name) {
        return None;
    }
    let rest = words.iter().skip(2).map(|word| escape::shell_quoted(&word.to_string_lossy()));
    let rest = rest.collect::<Vec<_>>().join(" ");
    let line = format!("a program to start comes after --: `traceprof record -- {rest}`");
    Some(escape::escaped(&line).into_owned())
}

fn act(action: Action) -> Result<ExitCode, Failure> {
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
        Action::Info(arguments) => modules::run(&arguments),
        Action::Verify(arguments) => return verify::run(&arguments),
        Action::Recover(arguments) => return recover::run(&arguments),
        Action::Reindex(arguments) => reindex::run(&arguments),
        Action::Completions(arguments) => documents::completions(&arguments),
        Action::Man(arguments) => documents::man(&arguments),
    }?;
    Ok(ExitCode::Ok)
}
