//! Parsers of options that are numbers, with one message for what is none.

use std::num::NonZeroUsize;
use std::ops::RangeInclusive;

/// The end of limits that only have a start.
const NO_END: u64 = u64::MAX;

/// Returns the parser of a whole number within these limits.
pub(super) fn number<T: TryFrom<u64>>(
    limits: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text| {
        let number = text.parse().ok().filter(|number| limits.contains(number));
        number.and_then(|number| T::try_from(number).ok()).ok_or_else(|| {
            match (*limits.start(), *limits.end()) {
                (0, NO_END) => "expected a number".to_owned(),
                (least, NO_END) => format!("expected a number, at least {least}"),
                (least, most) => format!("expected a number from {least} to {most}"),
            }
        })
    }
}

/// Parses a number of any size.
pub(super) fn count(text: &str) -> Result<usize, String> {
    number(0..=NO_END)(text)
}

/// Parses a number of things of which there must be one.
pub(super) fn count_of_some(text: &str) -> Result<NonZeroUsize, String> {
    let count: usize = number(1..=NO_END)(text)?;
    NonZeroUsize::new(count).ok_or_else(|| "expected a number, at least 1".to_owned())
}

/// Parses the id of a running process.
pub(super) fn process_id(text: &str) -> Result<i32, String> {
    const MAX: u64 = i32::MAX as u64;
    number(1..=MAX)(text).map_err(|_| "expected a number, the id of a process".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::arguments::definition;

    #[test]
    fn limits_are_named() {
        let digit = number::<u16>(1..=9);
        assert_eq!((digit("1"), digit("9")), (Ok(1), Ok(9)));
        for text in ["0", "10", "-1", "x", "", "1.5", "99999999999999999999"] {
            assert_eq!(digit(text), Err("expected a number from 1 to 9".to_owned()), "{text}");
        }
        // The type has the last word.
        assert!(number::<u8>(0..=1000)("256").is_err());
        assert_eq!(count("abc"), Err("expected a number".to_owned()));
        assert_eq!((count("0"), count_of_some("3")), (Ok(0), Ok(NonZeroUsize::new(3).unwrap())));
        assert_eq!(count_of_some("0"), Err("expected a number, at least 1".to_owned()));
        assert!(process_id("0").is_err() && process_id("2147483648").is_err());
        assert_eq!(process_id("2147483647"), Ok(i32::MAX));
    }

    #[test]
    fn every_option_that_is_a_number_says_so() {
        let mut seen = 0;
        for (action, id, file) in [
            ("print", "top", true),
            ("print", "depth", true),
            ("diff", "top", true),
            ("top", "top", false),
            ("top", "iterations", false),
            ("top", "freq", false),
            ("doctor", "pid", false),
            ("detach", "pid", false),
            ("record", "freq", false),
            ("record", "rotate-keep", false),
            ("record", "preserve", false),
            ("record", "ready-fd", false),
        ] {
            let mut words = vec!["traceprof".to_owned(), action.to_owned()];
            words.extend(file.then(|| "x.trace".to_owned()));
            words.extend([format!("--{id}"), "abc".to_owned()]);
            let error = definition().try_get_matches_from(&words).unwrap_err().to_string();
            let first = error.lines().next().unwrap();
            assert!(first.contains("expected a number"), "{words:?}: {first}");
            seen += 1;
        }
        // Nothing of the standard library's messages is left in a parser.
        let all = ["digit found", "cannot parse integer", "invalid float"];
        let definition = definition();
        for command in definition.get_subcommands() {
            let options = command.get_arguments().filter_map(|option| option.get_long());
            for long in options {
                let words = ["traceprof", command.get_name(), &format!("--{long}=abc")];
                let Err(error) = definition.clone().try_get_matches_from(words) else { continue };
                let text = error.to_string();
                assert!(!all.iter().any(|part| text.contains(part)), "{words:?}: {text}");
                seen += 1;
            }
        }
        assert!(seen > 60, "{seen} options");
    }
}
