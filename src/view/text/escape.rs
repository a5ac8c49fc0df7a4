//! Makes untrusted text safe to display: the target decides the names in a trace.

use std::borrow::Cow;

/// Escapes characters that could move a cursor, break a line or reorder text. Nothing else changes:
/// backslashes stay as they are, because C++ and Rust names never contain any.
pub fn escaped(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 8);
    for character in text.chars() {
        if is_unsafe(character) {
            safe.extend(character.escape_default());
        } else {
            safe.push(character);
        }
    }
    Cow::Owned(safe)
}

/// Escapes these characters in JSON text. JSON itself requires it only for the first 32 characters.
pub fn json_escaped(json: &str) -> Cow<'_, str> {
    if !json.chars().any(is_unsafe) {
        return Cow::Borrowed(json);
    }
    let mut safe = String::with_capacity(json.len() + 16);
    for character in json.chars() {
        if is_unsafe(character) {
            // All these characters have 16 bits, and occur only in strings.
            safe.push_str(&format!("\\u{:04x}", u32::from(character)));
        } else {
            safe.push(character);
        }
    }
    Cow::Owned(safe)
}

/// Quotes a word for a shell, if necessary.
pub fn shell_quoted(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./=:,+@%^".contains(&byte);
    if !word.is_empty() && word.bytes().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

fn is_unsafe(character: char) -> bool {
    character.is_control()
        // These are line and paragraph separators, and marks that change the reading direction.
        || matches!(
            character,
            '\u{2028}' | '\u{2029}' | '\u{200e}' | '\u{200f}' | '\u{061c}'
                | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &str) {
        assert_eq!(escaped(text), expected);
    }

    #[test]
    fn ordinary_names_are_untouched() {
        check("std::vec<int, a::b>::push_back(int&&)", "std::vec<int, a::b>::push_back(int&&)");
        check("größe", "größe");
        assert!(matches!(escaped("main"), Cow::Borrowed(_)));
    }

    #[test]
    fn what_moves_the_cursor_is_escaped() {
        check("a\nb\tc\r", "a\\nb\\tc\\r");
        check("\u{1b}[31mred", "\\u{1b}[31mred");
        check("\u{9b}2J", "\\u{9b}2J");
        check("x\u{202e}y\u{2028}", "x\\u{202e}y\\u{2028}");
    }

    #[test]
    fn json_keeps_its_meaning() {
        let name = "a\u{1b}\u{7f}\u{9b}\u{85}\u{202e}\u{2028}\\\"\u{1f600}";
        let json = serde_json::to_string(name).unwrap();
        let escaped = json_escaped(&json);
        assert_eq!(escaped, "\"a\\u001b\\u007f\\u009b\\u0085\\u202e\\u2028\\\\\\\"\u{1f600}\"");
        assert_eq!(serde_json::from_str::<String>(&escaped).unwrap(), name);
        assert!(matches!(json_escaped("{\"a\":1}"), Cow::Borrowed(_)));
    }

    #[test]
    fn words_are_quoted_where_a_shell_would_split_or_change_them() {
        let check = |word: &str, expected: &str| assert_eq!(shell_quoted(word), expected);
        check("/usr/bin/x-1", "/usr/bin/x-1");
        check("", "''");
        check("a file", "'a file'");
        check("it's", r"'it'\''s'");
        check("$HOME", "'$HOME'");
    }
}
