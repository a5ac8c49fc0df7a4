//! Messages for wrong command lines, where clap's own message does not help.

use std::ffi::OsString;

use clap::FromArgMatches;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::arguments::{Action, Arguments, OptionRefusal, command_position, definition};
use super::record;
use crate::view::text::escape::{escaped, shell_quoted};

/// The message for options of other profilers, for options of a program without `--`, and for
/// options that contradict each other. `None` if clap's message suffices; its tips then name no
/// refused option.
pub(super) fn refusal(error: &mut clap::Error, words: &[OsString]) -> Option<String> {
    let source = std::error::Error::source(error);
    if let Some(text) = name_after_n(error, words) {
        return Some(text);
    }
    if let Some(refusal) = source.and_then(|source| source.downcast_ref::<OptionRefusal>()) {
        let definition = definition();
        let record = definition.find_subcommand("record")?;
        let line = OptionRefusal::command_line(words, record).filter(|line| is_accepted(line));
        let line = line.map_or_else(String::new, |line| format!(", as in `{}`", joined(&line)));
        return Some(format!("{refusal}{}", escaped(&line)));
    }
    match error.kind() {
        ErrorKind::UnknownArgument => {
            keep_tips_of_use(error);
            program(error, words)
        }
        ErrorKind::ArgumentConflict => conflict(error),
        ErrorKind::InvalidSubcommand => no_command(error),
        _ => None,
    }
}

/// The message for `record -n NAME`, where other tools would find a process by its name.
fn name_after_n(error: &clap::Error, words: &[OsString]) -> Option<String> {
    let is_refused = std::error::Error::source(error)?.downcast_ref::<OptionRefusal>().is_some();
    let mut pairs = words.windows(2).filter(|_| is_refused);
    let [_, name] = pairs.find(|pair| pair[0] == "-n")? else { return None };
    let name = name.to_string_lossy();
    if name.starts_with('-') || name.parse::<i32>().is_ok() {
        return None;
    }
    let name = shell_quoted(&name);
    Some(format!("-n does not name a process: `traceprof record --name {name}` finds processes"))
}

/// The message for a name in place of a subcommand, unless it resembles one.
fn no_command(error: &clap::Error) -> Option<String> {
    let name = text_of(error, ContextKind::InvalidSubcommand)?;
    if error.get(ContextKind::SuggestedSubcommand).is_some() {
        return None;
    }
    let name = shell_quoted(&name);
    let text = format!(
        "{name} is no command of traceprof: `traceprof record --name {name}` records a running \
         program, `traceprof record -- {name}` starts one; see `traceprof --help`"
    );
    Some(escaped(&text).into_owned())
}

/// Whether a command line is valid, without checking any process.
fn is_accepted(words: &[OsString]) -> bool {
    let parsed = definition()
        .try_get_matches_from(words)
        .and_then(|mut matches| Arguments::from_arg_matches_mut(&mut matches));
    match parsed.map(|arguments| arguments.action) {
        Ok(Action::Record(arguments)) => record::options(arguments).is_ok(),
        Ok(_) => true,
        Err(_) => false,
    }
}

fn joined(words: &[OsString]) -> String {
    words.iter().map(|word| shell_quoted(&word.to_string_lossy())).collect::<Vec<_>>().join(" ")
}

/// Removes tips that name refused options, and the tip to put an option after `--`: there it would
/// be a program.
fn keep_tips_of_use(error: &mut clap::Error) {
    let similar = text_of(error, ContextKind::SuggestedArg);
    if similar.is_some_and(|similar| OptionRefusal::is_of(&similar)) {
        error.remove(ContextKind::SuggestedArg);
    }
    if let Some(ContextValue::StyledStrs(mut tips)) = error.remove(ContextKind::Suggested) {
        tips.retain(|tip| {
            let tip = tip.to_string();
            let mut words = tip.split([' ', '\'']);
            !tip.contains(" as a value") && !words.any(OptionRefusal::is_of)
        });
        if !tips.is_empty() {
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
        }
    }
}

fn text_of(error: &clap::Error, kind: ContextKind) -> Option<String> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    }
}

/// The message for a program without `--` in front, or a misspelt option after a name.
fn program(error: &clap::Error, words: &[OsString]) -> Option<String> {
    if words.get(1)? != "record" {
        return None;
    }
    let definition = definition();
    let (before, program) =
        words.split_at(command_position(words, definition.find_subcommand("record")?)?);
    let is_before = |error: clap::Error| error.kind() == ErrorKind::UnknownArgument;
    if definition.clone().try_get_matches_from(before).is_err_and(is_before) {
        return None;
    }
    let unknown = text_of(error, ContextKind::InvalidArg)?;
    let first = program.first()?;
    let name = joined(std::slice::from_ref(first));
    // --name does not match paths.
    let is_path = first.to_string_lossy().contains('/');
    let text = match text_of(error, ContextKind::SuggestedArg).filter(|_| !is_path) {
        // No command line to paste: it would start the program instead of finding it.
        Some(similar) => format!(
            "unexpected argument '{unknown}', a similar one is '{similar}'; {name} is not a \
             process id: --name {name} finds running processes, and a program to start comes after \
             --"
        ),
        None => {
            let line = ["traceprof".into()].into_iter().chain(before.iter().skip(1).cloned());
            let line: Vec<_> = line.chain(["--".into()]).chain(program.iter().cloned()).collect();
            let line = Some(line).filter(|line| is_accepted(line));
            let line = line.map_or_else(String::new, |line| format!(": `{}`", joined(&line)));
            format!(
                "unexpected argument '{unknown}': a program to start comes after --{line}; --name \
                 {name} finds running processes"
            )
        }
    };
    Some(escaped(&text).into_owned())
}

fn conflict(error: &clap::Error) -> Option<String> {
    let text = error.to_string();
    let first = text.lines().next()?.strip_prefix("error: ")?.to_owned();
    // Several other options are in lines of their own.
    let others = text.lines().skip(1).take_while(|line| line.starts_with("  ")).map(str::trim);
    let all: Vec<String> = [first].into_iter().chain(others.map(str::to_owned)).collect();
    let all = all.join(" ");
    let all = all.trim_end_matches(':');
    Some(format!("{all}: leave one of them out; see --help"))
}
