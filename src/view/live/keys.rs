//! Keys, as terminals send them.

/// A key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    /// A character.
    Char(char),
    /// A row up.
    Up,
    /// A row down.
    Down,
    /// A screen up.
    PageUp,
    /// A screen down.
    PageDown,
    /// To the first row.
    First,
    /// Ctrl-C, Ctrl-D: the end.
    End,
    /// Ctrl-Z: the shell is wanted for a while.
    Suspend,
}

/// The known keys in the input; others are skipped.
pub fn keys(bytes: &[u8]) -> Vec<Key> {
    let mut keys = Vec::new();
    let mut rest = bytes;
    while let Some((first, after)) = rest.split_first() {
        let (key, left) = match first {
            0x1b => sequence(after),
            0x03 | 0x04 => (Some(Key::End), after),
            0x1a => (Some(Key::Suspend), after),
            b' '..=b'~' => (Some(Key::Char(char::from(*first))), after),
            _ => (None, after),
        };
        keys.extend(key);
        rest = left;
    }
    keys
}

/// The key of an escape sequence, and the input after it.
fn sequence(bytes: &[u8]) -> (Option<Key>, &[u8]) {
    let [b'[' | b'O', rest @ ..] = bytes else {
        // The escape key itself, or Alt with another one, which is taken without it.
        return (None, bytes);
    };
    // Parameters, then one final byte.
    let end = rest.iter().position(|byte| (0x40..=0x7e).contains(byte));
    let Some((parameters, [last, left @ ..])) = end.map(|end| rest.split_at(end)) else {
        return (None, &[]);
    };
    let key = match (parameters, *last) {
        (_, b'A') => Some(Key::Up),
        (_, b'B') => Some(Key::Down),
        (_, b'H') | (b"1" | b"7", b'~') => Some(Key::First),
        (b"5", b'~') => Some(Key::PageUp),
        (b"6", b'~') => Some(Key::PageDown),
        _ => None,
    };
    (key, left)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_are_told_from_characters() {
        assert_eq!(keys(b"q"), [Key::Char('q')]);
        assert_eq!(keys(b"\x1b[A\x1bOBs"), [Key::Up, Key::Down, Key::Char('s')]);
        assert_eq!(keys(b"\x1b[5~\x1b[6~\x1b[1~\x1b[H"), {
            [Key::PageUp, Key::PageDown, Key::First, Key::First]
        });
        // Function keys, a mouse, a key with a modifier: nothing that a letter in them would do.
        assert_eq!(keys(b"\x1b[15~\x1b[<0;3;4M\x1b[1;5A"), [Key::Up]);
        assert_eq!(keys(b"\x03\x1a"), [Key::End, Key::Suspend]);
    }

    #[test]
    fn what_is_cut_off_or_no_text_is_no_key() {
        assert_eq!(keys(b"\x1b"), []);
        assert_eq!(keys(b"\x1b[5"), []);
        assert_eq!(keys("é\0\n".as_bytes()), []);
    }
}
