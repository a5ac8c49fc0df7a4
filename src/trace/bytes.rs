//! Numbers and strings as bytes: the encoding of `DataOutput`, plus LEB128 varints.
//!
//! # Invariants
//! - Every read checks the number of remaining bytes before it reads or allocates.
//! - A varint has only its shortest form; the reader refuses over-long ones.

/// The error for malformed bytes, and its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Malformed {
    /// The offset in the slice.
    pub(super) at: usize,
    /// The reason.
    pub(super) what: &'static str,
}

/// The result of parsing.
pub(super) type ParseResult<T> = Result<T, Malformed>;

/// A reader over a slice.
#[derive(Debug, Clone)]
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Returns the offset of the next byte.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// Moves to an offset in the slice, or to its end.
    pub(super) fn skip_to(&mut self, at: usize) {
        self.at = at.min(self.bytes.len());
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.at == self.bytes.len()
    }

    pub(super) fn fail<T>(&self, what: &'static str) -> ParseResult<T> {
        Err(Malformed { at: self.at, what })
    }

    pub(super) fn take(&mut self, len: usize) -> ParseResult<&'a [u8]> {
        let end = self.at.checked_add(len).filter(|end| *end <= self.bytes.len());
        let Some(end) = end else { return self.fail("an object extends beyond its block") };
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    /// Returns the next byte without reading it; `None` at the end.
    pub(super) fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn array<const N: usize>(&mut self) -> ParseResult<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    #[inline]
    pub(super) fn u8(&mut self) -> ParseResult<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(super) fn u16(&mut self) -> ParseResult<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> ParseResult<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(super) fn u64(&mut self) -> ParseResult<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// Reads a varint of at most 64 bits.
    #[inline]
    pub(super) fn varint(&mut self) -> ParseResult<u64> {
        // Most varints are this short, and a reader spends most of its time here.
        let Some((value, len)) = self.bytes.get(self.at..).and_then(short_varint) else {
            return self.long_varint();
        };
        self.at += len;
        Ok(value)
    }

    /// Reads the number after a `kind` byte. Returns `None` if the next byte is another kind or the
    /// number is long.
    #[inline]
    pub(super) fn short_varint_after(&mut self, kind: u8) -> Option<u32> {
        let (next, rest) = self.bytes.get(self.at..)?.split_first()?;
        if *next != kind {
            return None;
        }
        let (value, len) = short_varint(rest)?;
        self.at += 1 + len;
        Some(value as u32)
    }

    #[inline(never)]
    fn long_varint(&mut self) -> ParseResult<u64> {
        let start = self.at;
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(Malformed { at: start, what: "a varint is larger than 64 bits" });
            }
            value |= bits << shift;
            if byte < 0x80 {
                if byte == 0 && shift > 0 {
                    return Err(Malformed { at: start, what: "a varint is over-long" });
                }
                return Ok(value);
            }
        }
        Err(Malformed { at: start, what: "a varint is larger than 64 bits" })
    }

    /// Reads a varint of at most 32 bits.
    pub(super) fn varint32(&mut self) -> ParseResult<u32> {
        let at = self.at;
        u32::try_from(self.varint()?)
            .map_err(|_| Malformed { at, what: "a number is larger than 32 bits" })
    }

    /// Reads a zigzag varint.
    pub(super) fn signed(&mut self) -> ParseResult<i64> {
        let value = self.varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// Reads the length of a LONG_STRING.
    pub(super) fn long_text_len(&mut self) -> ParseResult<usize> {
        match self.u32()? as usize {
            len @ 0x10000..=super::MAX_TEXT_BYTES => Ok(len),
            _ => self.fail("a LONG_STRING has an invalid length"),
        }
    }

    /// Reads `len` bytes of modified UTF-8.
    pub(super) fn text(&mut self, len: usize) -> ParseResult<String> {
        let at = self.at;
        let bytes = self.take(len)?;
        from_modified_utf8(bytes).ok_or(Malformed { at, what: "a string is not modified UTF-8" })
    }
}

/// Decodes the varint at the start of `bytes`; returns its value and its length. Returns `None` if
/// it has more than three bytes or if fewer than three bytes remain.
#[inline]
fn short_varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let word = |byte: &u8, shift: u32| u64::from(byte & 0x7f) << shift;
    match bytes.first_chunk()? {
        [a @ 0..0x80, _, _] => Some((word(a, 0), 1)),
        [a, b @ 1..0x80, _] => Some((word(a, 0) | word(b, 7), 2)),
        [a, b @ 0x80..=0xff, c @ 1..0x80] => Some((word(a, 0) | word(b, 7) | word(c, 14), 3)),
        _ => None,
    }
}

pub(super) fn put_u16(out: &mut Vec<u8>, value: u16) {
    out.extend_from_slice(&value.to_be_bytes());
}

pub(super) fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_be_bytes());
}

pub(super) fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_be_bytes());
}

pub(super) fn put_u32s<const N: usize>(out: &mut Vec<u8>, values: [u32; N]) {
    values.into_iter().for_each(|value| put_u32(out, value));
}

pub(super) fn put_u64s<const N: usize>(out: &mut Vec<u8>, values: [u64; N]) {
    values.into_iter().for_each(|value| put_u64(out, value));
}

pub(super) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub(super) fn put_signed(out: &mut Vec<u8>, value: i64) {
    put_varint(out, (value << 1 ^ value >> 63) as u64);
}

/// Encodes text in modified UTF-8: U+0000 becomes two bytes, and a character above U+FFFF becomes a
/// surrogate pair of three bytes each.
pub(super) fn to_modified_utf8(text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    for character in text.chars() {
        let mut units = [0; 2];
        match character as u32 {
            0 => out.extend_from_slice(&[0xc0, 0x80]),
            1..=0xffff => {
                let mut utf8 = [0; 4];
                out.extend_from_slice(character.encode_utf8(&mut utf8).as_bytes());
            }
            _ => {
                for unit in character.encode_utf16(&mut units) {
                    let bits = |shift: u16| (*unit >> shift & 0x3f) as u8 | 0x80;
                    out.extend_from_slice(&[(*unit >> 12) as u8 | 0xe0, bits(6), bits(0)]);
                }
            }
        }
    }
    out
}

/// Decodes modified UTF-8. Returns `None` for a zero byte, an over-long form, or a lone surrogate.
pub(super) fn from_modified_utf8(mut bytes: &[u8]) -> Option<String> {
    let mut text = String::with_capacity(bytes.len());
    while let [first, ..] = bytes {
        if (1..0x80).contains(first) {
            let plain = bytes.iter().take_while(|byte| (1..0x80).contains(*byte)).count();
            text.push_str(str::from_utf8(&bytes[..plain]).ok()?);
            bytes = &bytes[plain..];
            continue;
        }
        let unit = take_unit(&mut bytes)?;
        let code = match unit {
            0xd800..0xdc00 => {
                let low = take_unit(&mut bytes).filter(|low| (0xdc00..0xe000).contains(low))?;
                0x10000 + ((unit - 0xd800) << 10 | (low - 0xdc00))
            }
            _ => unit,
        };
        text.push(char::from_u32(code)?);
    }
    Some(text)
}

/// Returns whether [`from_modified_utf8`] accepts the bytes.
pub(super) fn is_modified_utf8(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| (1..0x80).contains(byte)) || from_modified_utf8(bytes).is_some()
}

/// Takes one UTF-16 unit of two or three bytes from the front of `bytes`.
fn take_unit(bytes: &mut &[u8]) -> Option<u32> {
    let tail = |byte: &u8| (byte & 0xc0 == 0x80).then_some(u32::from(byte & 0x3f));
    let (unit, len) = match *bytes {
        [first @ 0xc0..=0xdf, second, ..] => (u32::from(first & 0x1f) << 6 | tail(second)?, 2),
        [first @ 0xe0..=0xef, second, third, ..] => {
            (u32::from(first & 0x0f) << 12 | tail(second)? << 6 | tail(third)?, 3)
        }
        _ => return None,
    };
    let canonical = if len == 2 { unit == 0 || unit >= 0x80 } else { unit >= 0x800 };
    *bytes = &bytes[len..];
    canonical.then_some(unit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn modified_utf8_of_known_characters() {
        assert_eq!(to_modified_utf8("a\0é€"), b"a\xc0\x80\xc3\xa9\xe2\x82\xac");
        assert_eq!(to_modified_utf8("\u{1f600}"), b"\xed\xa0\xbd\xed\xb8\x80");
    }

    #[test]
    fn other_forms_are_refused() {
        for bytes in [
            &b"\0"[..],
            b"\x80",
            b"\xc1\x81",
            b"\xe0\x80\x80",
            b"\xed\xa0\xbd",
            b"\xed\xb8\x80",
            b"\xed\xa0\xbdx",
            b"\xf0\x9f\x98\x80",
            b"\xe2\x82",
        ] {
            assert_eq!(from_modified_utf8(bytes), None, "{bytes:x?}");
        }
        for bytes in [&b"\x80"[..], b"\x80\0", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02"] {
            assert!(Cursor::new(bytes).varint().is_err(), "{bytes:x?}");
        }
    }

    proptest! {
        #[test]
        fn text_survives(text in any::<String>()) {
            prop_assert_eq!(from_modified_utf8(&to_modified_utf8(&text)), Some(text));
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Some(text) = from_modified_utf8(&bytes) {
                prop_assert_eq!(to_modified_utf8(&text), bytes.clone());
            }
            let mut cursor = Cursor::new(&bytes);
            while cursor.varint().is_ok() {}
        }

        #[test]
        fn numbers_survive(value in any::<u64>()) {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            put_signed(&mut out, value as i64);
            let mut cursor = Cursor::new(&out);
            prop_assert_eq!(cursor.varint(), Ok(value));
            prop_assert_eq!(cursor.signed(), Ok(value as i64));
            prop_assert!(cursor.is_at_end());
        }
    }
}
