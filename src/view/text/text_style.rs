//! The style of printed text: plain, or with the colours and bars of a terminal.
//!
//! Invariant: the default is plain. Output to a pipe or a file never depends on the user's
//! terminal, and no name in it is truncated.

use std::borrow::Cow;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Minimum width that a text is truncated to, however narrow the terminal is.
const ROOM_MIN: usize = 12;
/// Minimum share in percent of a hot line.
const HOT_PERCENT: f64 = 20.0;
/// Minimum share in percent of a warm line.
const WARM_PERCENT: f64 = 5.0;
/// The eighths of a cell, the empty one first.
const EIGHTHS: [char; 9] = [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉', '█'];

/// The features of the output. The default is plain text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TextStyle {
    /// Whether to use colours.
    pub color: bool,
    /// Whether to print a bar next to each percentage.
    pub bars: bool,
    /// Whether to avoid block characters, which some terminals cannot show.
    pub ascii: bool,
    /// The width of the terminal in columns. Long lines are truncated or wrapped to it. `None`
    /// leaves them as they are.
    pub width: Option<usize>,
}

/// The meaning of a coloured text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::view) enum Ink {
    /// A heading.
    Heading,
    /// A large share.
    Hot,
    /// A medium share.
    Warm,
    /// A placeholder.
    Faint,
}

impl Ink {
    /// Returns the ink of a share in percent, if it has one.
    pub(in crate::view) fn of_share(percent: f64) -> Option<Self> {
        match percent {
            HOT_PERCENT.. => Some(Self::Hot),
            WARM_PERCENT.. => Some(Self::Warm),
            _ => None,
        }
    }

    /// Returns the parameters of its control sequence. The colours are readable on dark and light
    /// backgrounds.
    fn code(self) -> &'static str {
        match self {
            Self::Heading => "1",
            Self::Hot => "1;31",
            Self::Warm => "33",
            Self::Faint => "2",
        }
    }
}

impl TextStyle {
    /// Returns `text` in its colour. Measure the text before: control sequences have no width.
    pub(in crate::view) fn paint<'a>(&self, ink: Option<Ink>, text: &'a str) -> Cow<'a, str> {
        match ink.filter(|_| self.color && !text.is_empty()) {
            Some(ink) => Cow::Owned(format!("\u{1b}[{}m{text}\u{1b}[0m", ink.code())),
            None => Cow::Borrowed(text),
        }
    }

    /// Returns `text` next to `used` columns, truncated in the middle if it does not fit: names
    /// mostly differ at their ends.
    pub(in crate::view) fn fit<'a>(&self, text: &'a str, used: usize) -> Cow<'a, str> {
        match self.width {
            Some(width) => self.cut(text, width.saturating_sub(used).max(ROOM_MIN)),
            None => Cow::Borrowed(text),
        }
    }

    /// Returns `text` truncated to `room` columns.
    pub(in crate::view) fn cut<'a>(&self, text: &'a str, room: usize) -> Cow<'a, str> {
        if text.width() <= room {
            return Cow::Borrowed(text);
        }
        let mark = if self.ascii { "..." } else { "…" };
        let kept = room.saturating_sub(mark.width());
        let head = taken(text.chars(), kept / 2);
        let used = head.as_str().width();
        let tail: String = taken(text.chars().rev(), kept - used).chars().rev().collect();
        Cow::Owned(format!("{head}{mark}{tail}"))
    }

    /// Returns a bar of `columns` columns that is full at 100 %.
    pub(in crate::view) fn bar(&self, percent: f64, columns: usize) -> String {
        let most = columns * 8;
        let eighths = (percent.clamp(0.0, 100.0) / 100.0 * most as f64).round() as usize;
        let (full, part) = (eighths / 8, eighths % 8);
        let mut bar: String = std::iter::repeat_n('█', full).collect();
        bar.extend((part > 0).then(|| EIGHTHS[part]));
        let shown = full + usize::from(part > 0);
        bar.extend(std::iter::repeat_n(' ', columns.saturating_sub(shown)));
        bar
    }

    /// Returns the lines of a text that begins after `indent` columns, broken between words if it
    /// is too long for the terminal.
    pub fn wrapped(&self, text: &str, indent: usize) -> Vec<String> {
        let Some(width) = self.width else { return vec![text.to_owned()] };
        let room = width.saturating_sub(indent).max(ROOM_MIN);
        let mut words: Vec<String> = Vec::new();
        for word in text.split(' ') {
            let word = self.cut(word, room);
            match words.last_mut() {
                // A number stays together with its unit.
                Some(number) if is_unit(&word) => number.push_str(&format!(" {word}")),
                _ => words.push(word.into_owned()),
            }
        }
        let mut lines: Vec<String> = Vec::new();
        for word in words {
            match lines.last_mut() {
                Some(line) if line.width() + 1 + word.width() <= room => {
                    line.push_str(&format!(" {word}"));
                }
                _ => lines.push(word),
            }
        }
        lines
    }
}

/// Returns whether a word is the unit of the number before it.
fn is_unit(word: &str) -> bool {
    matches!(word.trim_end_matches([',', ';', ')', ':']), "%" | "s" | "ms" | "Hz")
}

/// Returns `text` padded on the right to `columns` columns.
pub(in crate::view) fn padded(text: &str, columns: usize) -> String {
    let spaces = columns.saturating_sub(text.width());
    format!("{text}{:spaces$}", "")
}

/// Returns the characters that fit into `columns` columns.
fn taken(text: impl Iterator<Item = char>, columns: usize) -> String {
    let mut used = 0;
    let fits = |character: &char| {
        used += character.width().unwrap_or(0);
        used <= columns
    };
    text.take_while(fits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: TextStyle = TextStyle { color: false, bars: false, ascii: false, width: None };

    #[test]
    fn names_are_cut_in_the_middle_to_the_column() {
        let name = "core::iter::traits::iterator::Iterator::fold";
        let check = |style: TextStyle, room, expected: &str| {
            assert_eq!(style.cut(name, room), expected);
            assert!(style.cut(name, room).width() <= room);
        };
        check(PLAIN, 44, name);
        check(PLAIN, 43, "core::iter::traits::i…rator::Iterator::fold");
        check(PLAIN, 12, "core:…::fold");
        check(TextStyle { ascii: true, ..PLAIN }, 12, "core...:fold");
        // Each of these characters takes two columns.
        assert_eq!(PLAIN.cut("関数の名前はとても長い", 9), "関数…長い");
        assert_eq!(PLAIN.fit(name, 70), name, "no terminal, no cut");
        assert_eq!(TextStyle { width: Some(80), ..PLAIN }.fit(name, 79).width(), 12);
    }

    #[test]
    fn bars_have_one_width_and_grow_by_eighths() {
        for (percent, bar) in [
            (0.0, "    "),
            (1.5, "    "),
            (1.6, "▏   "),
            (25.0, "█   "),
            (61.0, "██▌ "),
            (100.0, "████"),
            (250.0, "████"),
            (f64::NAN, "    "),
        ] {
            assert_eq!(PLAIN.bar(percent, 4), bar, "{percent}");
        }
    }

    #[test]
    fn text_is_wrapped_between_words_and_loses_none() {
        let text = "one two three four five six seven";
        assert_eq!(PLAIN.wrapped(text, 10), [text]);
        let narrow = TextStyle { width: Some(24), ..PLAIN };
        let lines = narrow.wrapped(text, 10);
        assert_eq!(lines, ["one two three", "four five six", "seven"]);
        assert_eq!(lines.join(" "), text);
        let numbers = narrow.wrapped("it ran for 12.5 s, or 3 %", 10);
        assert_eq!(numbers, ["it ran for", "12.5 s, or 3 %"]);
        assert_eq!(narrow.wrapped("/a/very/long/path/of/a/program", 10), ["/a/ver…program"]);
    }

    #[test]
    fn colours_are_used_only_on_request() {
        let colored = TextStyle { color: true, ..PLAIN };
        assert_eq!(colored.paint(Ink::of_share(30.0), "x"), "\u{1b}[1;31mx\u{1b}[0m");
        assert_eq!(colored.paint(Ink::of_share(5.0), "x"), "\u{1b}[33mx\u{1b}[0m");
        assert_eq!(colored.paint(Ink::of_share(4.9), "x"), "x");
        assert_eq!(PLAIN.paint(Some(Ink::Hot), "x"), "x");
    }
}
