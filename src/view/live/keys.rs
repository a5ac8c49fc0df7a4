//! Keys as terminals send them.

/// A key that the user pressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyPress {
    /// A character.
    Char(char),
    /// One row up.
    Up,
    /// One row down.
    Down,
    /// One screen up.
    PageUp,
    /// One screen down.
    PageDown,
    /// To the first row.
    First,
    /// Ctrl-C or Ctrl-D: quit.
    End,
    /// Ctrl-Z: suspend.
    Suspend,
    /// Enter.
    Enter,
    /// Escape.
    Escape,
    /// Backspace.
    Backspace,
}

/// Returns the known keys in the input and skips others.
pub fn keys(bytes: &[u8]) -> Vec<KeyPress> {
    let mut keys = Vec::new();
    let mut rest = bytes;
    while let Some((first, after)) = rest.split_first() {
        let (key, left) = match first {
            0x1b => sequence(after),
            0x03 | 0x04 => (Some(KeyPress::End), after),
            0x1a => (Some(KeyPress::Suspend), after),
            b'\r' | b'\n' => (Some(KeyPress::Enter), after),
            0x7f | 0x08 => (Some(KeyPress::Backspace), after),
            b' '..=b'~' => (Some(KeyPress::Char(char::from(*first))), after),
            _ => (None, after),
        };
        keys.extend(key);
        rest = left;
    }
    keys
}

/// Parses the key of an escape sequence. Returns it with the remaining input.
fn sequence(bytes: &[u8]) -> (Option<KeyPress>, &[u8]) {
    let [b'[' | b'O', rest @ ..] = bytes else {
        // This is the escape key itself, or Alt with another key, which is then read without Alt.
        return (bytes.is_empty().then_some(KeyPress::Escape), bytes);
    };
    // A sequence has parameters, then one final byte.
    let end = rest.iter().position(|byte| (0x40..=0x7e).contains(byte));
    let Some((parameters, [last, left @ ..])) = end.map(|end| rest.split_at(end)) else {
        return (None, &[]);
    };
    let key = match (parameters, *last) {
        (_, b'A') => Some(KeyPress::Up),
        (_, b'B') => Some(KeyPress::Down),
        (_, b'H') | (b"1" | b"7", b'~') => Some(KeyPress::First),
        (b"5", b'~') => Some(KeyPress::PageUp),
        (b"6", b'~') => Some(KeyPress::PageDown),
        _ => None,
    };
    (key, left)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_are_distinguished_from_characters() {
        assert_eq!(keys(b"q"), [KeyPress::Char('q')]);
        assert_eq!(keys(b"\x1b[A\x1bOBs"), [KeyPress::Up, KeyPress::Down, KeyPress::Char('s')]);
        assert_eq!(keys(b"\x1b[5~\x1b[6~\x1b[1~\x1b[H"), {
            [KeyPress::PageUp, KeyPress::PageDown, KeyPress::First, KeyPress::First]
        });
        // Function keys, a mouse, a key with a modifier: the letters in them have no effect.
        assert_eq!(keys(b"\x1b[15~\x1b[<0;3;4M\x1b[1;5A"), [KeyPress::Up]);
        assert_eq!(keys(b"\x03\x1a"), [KeyPress::End, KeyPress::Suspend]);
    }

    #[test]
    fn truncated_sequences_and_non_text_are_skipped() {
        assert_eq!(keys(b"\x1b"), [KeyPress::Escape]);
        assert_eq!(keys(b"\x1bq\r\x7f"), {
            [KeyPress::Char('q'), KeyPress::Enter, KeyPress::Backspace]
        });
        assert_eq!(keys(b"\x1b[5"), []);
        assert_eq!(keys("é\0\t".as_bytes()), []);
    }
}
