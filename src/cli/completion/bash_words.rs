//! Completion in bash, which splits words at `=` and shows no descriptions.

use std::env;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;

use clap::Command;
use clap_complete::engine::{CompletionCandidate, complete};
use clap_complete::env::{Bash, EnvCompleter};

use super::INDEX_VARIABLE;

/// The kind of completion in which each candidate replaces the word in turn.
const MENU: &str = "37";

/// As [`Bash`], with `--option=value`, quoted file names, and the names of processes.
pub(super) struct BashWords;

impl EnvCompleter for BashWords {
    fn name(&self) -> &'static str {
        Bash.name()
    }

    fn is(&self, name: &str) -> bool {
        Bash.is(name)
    }

    fn write_registration(
        &self,
        var: &str,
        name: &str,
        bin: &str,
        completer: &str,
        buf: &mut dyn Write,
    ) -> io::Result<()> {
        Bash.write_registration(var, name, bin, completer, buf)
    }

    fn write_complete(
        &self,
        cmd: &mut Command,
        args: Vec<OsString>,
        current_dir: Option<&Path>,
        buf: &mut dyn Write,
    ) -> io::Result<()> {
        let index = env::var(INDEX_VARIABLE).ok().and_then(|index| index.parse().ok());
        let (words, index) = whole_words(args, index.unwrap_or_default());
        let candidates = complete(cmd, words, index, current_dir)?;
        let is_menu = env::var("_CLAP_COMPLETE_COMP_TYPE").is_ok_and(|kind| kind == MENU);
        let lines = lines(&candidates, is_menu);
        let between = env::var("_CLAP_IFS").unwrap_or_else(|_| "\n".to_owned());
        buf.write_all(lines.join(&between).as_bytes())
    }
}

/// Removes the `=` between an option and its value.
fn whole_words(words: Vec<OsString>, index: usize) -> (Vec<OsString>, usize) {
    let mut whole: Vec<OsString> = Vec::new();
    let mut shift = 0;
    for (place, word) in words.into_iter().enumerate() {
        let is_option = |word: &OsString| word.to_string_lossy().starts_with("--");
        if word == "=" && place < index && whole.last().is_some_and(is_option) {
            shift += 1;
        } else {
            whole.push(word);
        }
    }
    (whole, index - shift)
}

/// The words that bash shows, and of which it inserts what they have in common. So a process has
/// its name behind it only if there are several.
fn lines(candidates: &[CompletionCandidate], is_menu: bool) -> Vec<String> {
    let line = |candidate: &CompletionCandidate| {
        let value = candidate.get_value().to_string_lossy();
        let is_process = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
        match candidate.get_help().filter(|_| is_process && !is_menu && candidates.len() > 1) {
            Some(help) => format!("{value}  {help}"),
            None => quoted(&value),
        }
    };
    candidates.iter().map(line).collect()
}

/// Quotes each character that bash would not take literally.
fn quoted(word: &str) -> String {
    let mut quoted = String::new();
    for character in word.chars() {
        if !(character.is_alphanumeric() || "-_./,:=@%+~".contains(character)) {
            quoted.push('\\');
        }
        quoted.push(character);
    }
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_and_its_value_are_two_words() {
        let check = |line: &str, index, expected: &str, at| {
            let words = line.split(' ').map(OsString::from).collect();
            let (whole, found) = whole_words(words, index);
            assert_eq!((whole.join(" ".as_ref()), found), (expected.into(), at), "{line}");
        };
        check("x export --format = fl", 4, "x export --format fl", 3);
        check("x export --format = pprof a", 5, "x export --format pprof a", 4);
        check("x export a = b", 4, "x export a = b", 4);
        check("x record -- dd = x", 5, "x record -- dd = x", 5);
    }

    #[test]
    fn processes_have_names_where_there_is_a_choice() {
        let process = |pid: &str| CompletionCandidate::new(pid).help(Some("redis -x".into()));
        let file = || CompletionCandidate::new("a b$.trace").help(Some("a trace".into()));
        let two = [process("12"), process("13")];
        assert_eq!(lines(&two, false), ["12  redis -x", "13  redis -x"]);
        assert_eq!(lines(&two, true), ["12", "13"]);
        assert_eq!(lines(&two[..1], false), ["12"]);
        assert_eq!(lines(&[file(), process("1")], false)[0], "a\\ b\\$.trace");
    }
}
