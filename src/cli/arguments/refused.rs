//! Refuses options of other profilers, with what to use instead.

use std::ffi::OsString;
use std::fmt;

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};

use super::command_position::command_position;
use super::refused_table::{REFUSED, RefusedOption, Takes};

/// No refused option was given.
#[derive(Debug)]
pub struct RefusedArguments;

impl FromArgMatches for RefusedArguments {
    fn from_arg_matches(_: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(Self)
    }

    fn update_from_arg_matches(&mut self, _: &ArgMatches) -> Result<(), clap::Error> {
        Ok(())
    }
}

impl Args for RefusedArguments {
    fn augment_args(command: Command) -> Command {
        REFUSED.iter().fold(command, |command, it| {
            let also =
                it.also.iter().fold(command, |command, name| command.arg(argument(it, name)));
            let arg = argument(it, it.long);
            also.arg(match it.short {
                Some(short) => arg.short(short),
                None => arg,
            })
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// The option under one of its names. Its value parser fails, so this error comes before others.
fn argument(it: &'static RefusedOption, name: &'static str) -> Arg {
    let refuse = move |_: &str| Err::<String, _>(OptionRefusal { option: name, advice: it.advice });
    let arg = Arg::new(name).long(name).hide(true).value_parser(refuse);
    arg.num_args(0..=1).require_equals(true).default_missing_value("")
}

/// Why an option of another profiler is refused.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OptionRefusal {
    option: &'static str,
    advice: &'static str,
}

impl OptionRefusal {
    /// Whether an option, with its dashes, is refused.
    pub(crate) fn is_of(option: &str) -> bool {
        let name = option.strip_prefix("--");
        name.is_some_and(|name| REFUSED.iter().any(|it| it.long == name || it.also.contains(&name)))
    }

    /// The command line without idle options, and with `--` in front of a program. `None` if it has
    /// an option that needs another one instead.
    pub(crate) fn command_line(words: &[OsString], command: &Command) -> Option<Vec<OsString>> {
        let (words, program) =
            words.split_at(command_position(words, command).unwrap_or(words.len()));
        let mut kept: Vec<OsString> = vec!["traceprof".into()];
        let mut rest = words.iter().skip(1).peekable();
        while let Some(word) = rest.next() {
            let text = word.to_string_lossy();
            if text == "--" {
                kept.push(word.clone());
                kept.extend(rest.by_ref().cloned());
                break;
            }
            let (left, takes) = match text.strip_prefix("--") {
                Some(long) => without_long(long)?,
                None if text.starts_with('-') && text.len() > 1 => without_short(&text, command)?,
                None => (Some(text.as_ref().to_owned()), Takes::Nothing),
            };
            kept.extend(left.map(OsString::from));
            if rest.peek().is_some_and(|next| takes.is_its(&next.to_string_lossy())) {
                rest.next();
            }
        }
        if !program.is_empty() {
            kept.push("--".into());
            kept.extend(program.iter().cloned());
        }
        Some(kept)
    }
}

/// What remains of a long option, and whether it takes the next word. `None` if it cannot be left
/// out.
fn without_long(long: &str) -> Option<(Option<String>, Takes)> {
    let (name, has_value) = long.split_once('=').map_or((long, false), |(name, _)| (name, true));
    match REFUSED.iter().find(|it| it.long == name || it.also.contains(&name)) {
        Some(it) if !it.is_idle => None,
        Some(it) => Some((None, if has_value { Takes::Nothing } else { it.takes })),
        None => Some((Some(format!("--{long}")), Takes::Nothing)),
    }
}

/// The same for a word of one-letter options.
fn without_short(word: &str, command: &Command) -> Option<(Option<String>, Takes)> {
    let mut kept = String::from("-");
    for (at, letter) in word.char_indices().skip(1) {
        let of = |it: &&RefusedOption| it.short == Some(letter);
        let Some(it) = REFUSED.iter().find(of) else {
            kept.push(letter);
            let is_it = |arg: &&Arg| {
                let others = arg.get_all_short_aliases().unwrap_or_default();
                arg.get_short() == Some(letter) || others.contains(&letter)
            };
            let known = command.get_arguments().find(is_it);
            if known.is_some_and(|arg| arg.get_action().takes_values()) {
                // The rest of the word is its value.
                kept.push_str(&word[at + letter.len_utf8()..]);
                break;
            }
            continue;
        };
        if !it.is_idle {
            return None;
        }
        let is_last = at + letter.len_utf8() == word.len();
        if it.takes == Takes::Word {
            let left = (kept.len() > 1).then_some(kept);
            return Some((left, if is_last { it.takes } else { Takes::Nothing }));
        }
    }
    Some(((kept.len() > 1).then_some(kept), Takes::Nothing))
}

impl fmt::Display for OptionRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { option, advice } = self;
        let short = REFUSED.iter().find(|it| it.long == *option).and_then(|it| it.short);
        match short {
            Some(short) => write!(f, "-{short} (--{option}): {advice}"),
            None => write!(f, "--{option}: {advice}"),
        }
    }
}

impl std::error::Error for OptionRefusal {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::arguments::definition;

    fn rest(line: &str) -> Option<String> {
        let definition = definition();
        let record = definition.find_subcommand("record").unwrap();
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let left = OptionRefusal::command_line(&words, record)?;
        Some(left.join(" ".as_ref()).to_string_lossy().into_owned())
    }

    #[test]
    fn what_is_left_of_a_line_can_be_pasted() {
        let check = |line: &str, expected: &str| {
            assert_eq!(rest(line).as_deref(), Some(expected), "{line}");
        };
        check("perf record -F 99 -g -p 12", "traceprof record -F 99 -p 12");
        check("x record --call-graph dwarf -p 12", "traceprof record -p 12");
        check("x record --call-graph=dwarf,16384 12", "traceprof record 12");
        check("x record --call-graph -p 12", "traceprof record -p 12");
        check("x record -gF99 -p12", "traceprof record -F99 -p12");
        check("x record -sg -p 12", "traceprof record -s -p 12");
        check("x record -g 12", "traceprof record 12");
        // The letters of a value are not options.
        check("x record -ogn.trace -g 12", "traceprof record -ogn.trace 12");
        check("x record -j 512 -p 12", "traceprof record -p 12");
        check("x record -g -- ./a -g b", "traceprof record -- ./a -g b");
        check("x record -g ./a -g b", "traceprof record -- ./a -g b");
        check("x record -g -p 12 sleep 10", "traceprof record -p 12 -- sleep 10");
        check("x record -n 12", "traceprof record 12");
        check("x record --max-stack=5 --no-open 12", "traceprof record 12");
    }

    #[test]
    fn what_has_to_be_said_otherwise_is_not_left_out() {
        for line in [
            "x record -ag",
            "x record -g -f svg -p 1",
            "x record --format=svg -p 1",
            "x record -ga",
        ] {
            assert_eq!(rest(line), None, "{line}");
        }
    }

    #[test]
    fn every_advice_says_what_to_do() {
        for it in REFUSED {
            let is_left_out = it.advice.contains("leave it out");
            assert_eq!(it.is_idle, is_left_out, "{}", it.long);
            let names_another = it.advice.contains("traceprof ") || it.advice.contains("give ");
            assert!(is_left_out || names_another, "{}", it.long);
        }
    }
}
