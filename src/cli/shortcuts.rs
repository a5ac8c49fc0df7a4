//! Command lines without a subcommand that can only mean `record`.

use std::ffi::OsString;

use super::notes::note;
use crate::view::text::escape::shell_quoted;

/// Returns the words of a command line, with `record` in front of a process id or `--pid`. A note
/// shows the complete command.
pub(super) fn expanded(mut words: Vec<OsString>) -> Vec<OsString> {
    let Some(first) = words.get(1).map(|word| word.to_string_lossy().into_owned()) else {
        return words;
    };
    if !is_process(&first) {
        return words;
    }
    words.insert(1, "record".into());
    let rest: Vec<String> =
        words.iter().skip(1).map(|word| shell_quoted(&word.to_string_lossy())).collect();
    if !words.iter().any(|word| word == "-q" || word == "--quiet") {
        note(&format!("this means `traceprof {}`", rest.join(" ")));
    }
    words
}

/// Whether a word names a process, as an id or as the option with one.
fn is_process(word: &str) -> bool {
    let is_ids = |text: &str| {
        !text.is_empty() && text.split(',').all(|id| id.parse::<i32>().is_ok_and(|id| id > 0))
    };
    let value = word.strip_prefix("--pid=").or_else(|| word.strip_prefix("-p"));
    is_ids(word) || word == "-p" || word == "--pid" || value.is_some_and(is_ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_alone_is_recorded() {
        let expand = |line: &str| {
            let words = expanded(line.split(' ').map(OsString::from).collect());
            words.join(" ".as_ref()).into_string().unwrap()
        };
        assert_eq!(expand("traceprof 12"), "traceprof record 12");
        assert_eq!(expand("traceprof 12,15 -d 5"), "traceprof record 12,15 -d 5");
        for option in ["-p 12", "--pid 12", "-p12", "--pid=12"] {
            assert_eq!(
                expand(&format!("traceprof {option}")),
                format!("traceprof record {option}")
            );
        }
        for other in ["traceprof", "traceprof print 12", "traceprof redis", "traceprof -print"] {
            assert_eq!(expand(other), other);
        }
        assert_eq!(expand("traceprof 0"), "traceprof 0", "no process");
    }
}
