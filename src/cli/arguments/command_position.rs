//! Finds the program in a command line of `record` that has no `--` in front of it.

use std::ffi::OsString;

use clap::{Arg, Command};

use super::refused_table::{REFUSED, Takes};

/// The index of the first word that is no option, no value of one, and no process. `None` if the
/// line has `--`.
pub(crate) fn command_position(words: &[OsString], record: &Command) -> Option<usize> {
    let mut place = 2;
    while let Some(word) = words.get(place) {
        let word = word.to_string_lossy();
        let takes_next = match word.strip_prefix("--") {
            Some("") => return None,
            Some(long) => long_takes(long, record),
            None if word.starts_with('-') && word.len() > 1 => letters_take(&word[1..], record),
            None if is_processes(&word) => false,
            None => return Some(place),
        };
        let next = words.get(place + 1).map(|next| next.to_string_lossy());
        let is_taken = takes_next && next.is_some_and(|next| !next.starts_with('-'));
        place += if is_taken { 2 } else { 1 };
    }
    None
}

fn is_processes(word: &str) -> bool {
    word.bytes().all(|byte| byte.is_ascii_digit() || byte == b',')
}

/// Whether the next word is the value of this long option.
fn long_takes(long: &str, record: &Command) -> bool {
    if long.contains('=') {
        return false;
    }
    if let Some(it) = REFUSED.iter().find(|it| it.long == long || it.also.contains(&long)) {
        return it.takes != Takes::Nothing;
    }
    let is_it = |arg: &&Arg| {
        let others = arg.get_all_aliases().unwrap_or_default();
        arg.get_long() == Some(long) || others.contains(&long)
    };
    record.get_arguments().find(is_it).is_some_and(takes_word)
}

/// Whether the next word is the value of the last of these one-letter options.
fn letters_take(letters: &str, record: &Command) -> bool {
    for (at, letter) in letters.char_indices() {
        let is_last = at + letter.len_utf8() == letters.len();
        if let Some(it) = REFUSED.iter().find(|it| it.short == Some(letter)) {
            if it.takes == Takes::Word {
                return is_last;
            }
            continue;
        }
        let is_it = |arg: &&Arg| {
            let others = arg.get_all_short_aliases().unwrap_or_default();
            arg.get_short() == Some(letter) || others.contains(&letter)
        };
        if record.get_arguments().find(is_it).is_some_and(takes_word) {
            return is_last;
        }
    }
    false
}

fn takes_word(arg: &Arg) -> bool {
    arg.get_action().takes_values() && !arg.is_require_equals_set()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::arguments::definition;

    #[test]
    fn values_of_options_and_processes_are_no_programs() {
        let definition = definition();
        let record = definition.find_subcommand("record").unwrap();
        let check = |line: &str, program: Option<&str>| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let place = command_position(&words, record);
            let found = place.map(|place| words[place].to_string_lossy().into_owned());
            assert_eq!(found.as_deref(), program, "{line}");
        };
        check("x record -F 99 ./a.out --flag", Some("./a.out"));
        check("x record -sF 99 -o out a", Some("a"));
        check("x record -F99 --output=out a", Some("a"));
        check("x record --rate 99 --wait a", Some("a"));
        check("x record --call-graph dwarf -j 5 a", Some("a"));
        check("x record -g a", Some("a"));
        check("x record 12,13 -p 14 sleep 10", Some("sleep"));
        check("x record -p 12 -o out", None);
        check("x record -p 12 -- sleep 10", None);
        check("x record", None);
    }
}
