//! Whether output has colours and bars, and how wide it is.

use std::env;
use std::io::{self, IsTerminal};
use std::str::FromStr;

use terminal_size::{Width, terminal_size_of};

use crate::view::TextStyle;

/// When to use colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Color {
    /// On a terminal, unless the environment says otherwise.
    Auto,
    /// On any output.
    Always,
    /// Never.
    Never,
}

impl FromStr for Color {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "always" => Ok(Self::Always),
            "never" => Ok(Self::Never),
            _ => Err("expected auto, always or never".to_owned()),
        }
    }
}

/// Returns the style of a view on the standard output or in a file.
pub(super) fn text_style(color: Color, is_standard: bool) -> TextStyle {
    let stdout = io::stdout();
    let is_terminal = is_standard && stdout.is_terminal();
    let size = || terminal_size_of(&stdout).map(|(Width(columns), _)| usize::from(columns));
    text_style_in(&|name| env::var(name).unwrap_or_default(), color, is_terminal.then_some(&size))
}

/// Returns the style of the standard error.
pub(super) fn error_style(color: Color) -> TextStyle {
    let stderr = io::stderr();
    let size = || terminal_size_of(&stderr).map(|(Width(columns), _)| usize::from(columns));
    let variable = |name: &str| env::var(name).unwrap_or_default();
    text_style_in(&variable, color, stderr.is_terminal().then_some(&size))
}

/// Returns the style in this environment. `terminal` returns the width if the output is a terminal.
fn text_style_in(
    variable: &dyn Fn(&str) -> String,
    color: Color,
    terminal: Option<&dyn Fn() -> Option<usize>>,
) -> TextStyle {
    let is_dumb = variable("TERM") == "dumb";
    let is_wanted = match color {
        Color::Auto => terminal.is_some() && !is_dumb && variable("NO_COLOR").is_empty(),
        Color::Always => true,
        Color::Never => false,
    };
    let ascii = !is_utf8(variable);
    let decorates = color == Color::Always || (terminal.is_some() && !is_dumb);
    let asked = || variable("COLUMNS").parse().ok().filter(|columns| *columns > 0);
    let width = terminal.and_then(|size| asked().or_else(size));
    TextStyle { color: is_wanted, bars: decorates && !ascii, ascii, width }
}

/// Whether the locale uses UTF-8; the first variable that is set counts.
fn is_utf8(variable: &dyn Fn(&str) -> String) -> bool {
    let set = ["LC_ALL", "LC_CTYPE", "LANG"].map(variable);
    let locale = set.into_iter().find(|value| !value.is_empty()).unwrap_or_default();
    let locale = locale.to_ascii_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(set: &[(&str, &str)], color: Color, columns: Option<usize>) -> TextStyle {
        let variable = |name: &str| {
            let found = set.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned()).unwrap_or_default()
        };
        let size = || columns;
        text_style_in(&variable, color, columns.map(|_| &size as &dyn Fn() -> Option<usize>))
    }

    const UTF8: (&str, &str) = ("LANG", "de_DE.UTF-8");

    #[test]
    fn what_is_piped_is_plain_whatever_the_environment_says() {
        let piped = check(&[UTF8, ("COLUMNS", "20")], Color::Auto, None);
        assert_eq!(piped, TextStyle::default());
        assert!(check(&[], Color::Auto, None).ascii);
    }

    #[test]
    fn a_terminal_has_colours_bars_and_a_width() {
        let full = TextStyle { color: true, bars: true, ascii: false, width: Some(90) };
        assert_eq!(check(&[UTF8], Color::Auto, Some(90)), full);
        let asked = check(&[UTF8, ("COLUMNS", "70")], Color::Auto, Some(90));
        assert_eq!(asked, TextStyle { width: Some(70), ..full });
        let odd = check(&[UTF8, ("COLUMNS", "0")], Color::Auto, Some(90));
        assert_eq!(odd, full);
    }

    #[test]
    fn colours_can_be_refused_and_forced() {
        let color = |set: &[(&str, &str)], color| check(set, color, Some(90)).color;
        assert!(!color(&[("NO_COLOR", "1")], Color::Auto));
        assert!(color(&[("NO_COLOR", "")], Color::Auto), "an empty one is none");
        assert!(color(&[("NO_COLOR", "1")], Color::Always));
        assert!(!color(&[], Color::Never));
        let dumb = check(&[UTF8, ("TERM", "dumb")], Color::Auto, Some(90));
        assert!(!dumb.color && !dumb.bars && dumb.width == Some(90));
        let forced = check(&[UTF8], Color::Always, None);
        assert_eq!((forced.color, forced.bars, forced.width), (true, true, None));
    }

    #[test]
    fn the_first_locale_that_is_set_holds() {
        let ascii = |set: &[(&str, &str)]| check(set, Color::Auto, None).ascii;
        assert!(ascii(&[("LC_ALL", "C"), UTF8]));
        assert!(!ascii(&[("LC_CTYPE", "en_US.utf8"), ("LANG", "C")]));
        assert!(!ascii(&[("LC_ALL", ""), UTF8]));
    }
}
