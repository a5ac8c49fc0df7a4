//! Bytes as text of base64 (RFC 4648), with padding and without line breaks.

use std::io::{self, Write};

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
/// Bytes that are encoded at once: a multiple of three.
const CHUNK: usize = 3 * 1024;

/// Encodes what is written to it. What is left is written by [`Self::finish`] alone.
#[derive(Debug)]
pub(super) struct Base64<W: Write> {
    out: W,
    pending: Vec<u8>,
}

impl<W: Write> Base64<W> {
    pub(super) fn new(out: W) -> Self {
        Self { out, pending: Vec::with_capacity(2 * CHUNK) }
    }

    /// Writes what is left.
    pub(super) fn finish(mut self) -> io::Result<()> {
        self.encode(self.pending.len())
    }

    /// Writes so many of the bytes that wait.
    fn encode(&mut self, count: usize) -> io::Result<()> {
        let mut text = Vec::with_capacity(count / 3 * 4 + 4);
        for three in self.pending.drain(..count).collect::<Vec<u8>>().chunks(3) {
            let byte = |place: usize| u32::from(three.get(place).copied().unwrap_or(0));
            let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
            for place in 0..4 {
                let digit = bits >> (18 - 6 * place) & 63;
                text.push(if place <= three.len() { DIGITS[digit as usize] } else { b'=' });
            }
        }
        self.out.write_all(&text)
    }
}

impl<W: Write> Write for Base64<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.pending.extend_from_slice(bytes);
        let whole = self.pending.len() / CHUNK * CHUNK;
        if whole > 0 {
            self.encode(whole)?;
        }
        Ok(bytes.len())
    }

    /// Bytes that are less than three wait: there is no text for them yet.
    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(pieces: &[&[u8]]) -> String {
        let mut out = Vec::new();
        let mut base64 = Base64::new(&mut out);
        for piece in pieces {
            base64.write_all(piece).unwrap();
        }
        base64.finish().unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_vectors_of_the_rfc_hold() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(encoded(&[bytes.as_bytes()]), text);
        }
        assert_eq!(encoded(&[&[0xfb, 0xff]]), "+/8=");
    }

    #[test]
    fn pieces_make_no_difference() {
        let bytes: Vec<u8> = (0..10_000u32).map(|number| (number * 31) as u8).collect();
        let whole = encoded(&[&bytes]);
        for size in [1, 2, 7, 3072, 4001] {
            assert_eq!(encoded(&bytes.chunks(size).collect::<Vec<_>>()), whole, "{size}");
        }
        assert_eq!(whole.len(), 10_000usize.div_ceil(3) * 4);
    }
}
