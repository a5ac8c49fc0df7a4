//! Text from outside, made safe to print: of bounded length and without control characters.

pub mod file_url;

use std::fmt::{self, Write};

/// Maximum length of a text in bytes, including the truncation mark.
pub const LENGTH_MAX: usize = 4096;
/// Maximum length of a text in a message, in characters.
const QUOTE_MAX: usize = 120;
const CUT: &str = "...";

/// Returns the text as it can be printed.
pub fn printable(raw: &str) -> String {
    let mut out = BoundedText::default();
    // A write fails when the limit is reached. The text so far stays.
    let _ = out.write_str(raw);
    out.finish()
}

/// Returns the beginning of a text as a message can quote it.
pub fn quotable(raw: &str) -> String {
    let end = raw.char_indices().nth(QUOTE_MAX).map(|(end, _)| end);
    let cut = |end| format!("{}{CUT}", printable(&raw[..end]));
    end.map_or_else(|| printable(raw), cut)
}

/// A text that refuses to grow beyond [`LENGTH_MAX`].
#[derive(Debug, Default)]
pub struct BoundedText {
    text: String,
    is_full: bool,
}

impl Write for BoundedText {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let room = LENGTH_MAX - CUT.len() - self.text.len();
        if part.len() <= room {
            self.text.push_str(part);
            return Ok(());
        }
        let whole_characters = (0..=room).rev().find(|&end| part.is_char_boundary(end));
        self.text.push_str(&part[..whole_characters.unwrap_or(0)]);
        self.is_full = true;
        Err(fmt::Error)
    }
}

impl BoundedText {
    /// Whether text was refused.
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// Returns the text as it can be printed, with a mark if some of it was refused.
    pub fn finish(self) -> String {
        // Names are written to terminals and line-based formats unchanged.
        let mut text = self.text.replace(char::is_control, "?");
        if self.is_full {
            text.push_str(CUT);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_text_is_cut_at_a_character() {
        let text = printable(&"ß".repeat(5000));
        assert!(text.len() <= LENGTH_MAX && text.len() > LENGTH_MAX - 8, "{}", text.len());
        assert!(text.ends_with("ß..."));
        assert_eq!(printable("größe"), "größe");
    }

    #[test]
    fn quotes_are_short() {
        assert_eq!(quotable("größe\n"), "größe?");
        assert_eq!(quotable(&"ß".repeat(120)), "ß".repeat(120));
        assert_eq!(quotable(&"ß".repeat(1 << 20)), "ß".repeat(120) + "...");
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(printable("a\x1b[31mb\nc"), "a?[31mb?c");
    }
}
