//! The segments of a source map: each says where a place of the generated file comes from.

/// Maximum number of segments: 192 MiB. A bundle of 30 MB has 5 million.
const SEGMENTS_MAX: usize = 8 << 20;
/// The largest line, column or number: others are wrong, and views cannot show them.
const NUMBER_MAX: i64 = i32::MAX as i64 - 1;
/// Maximum number of digits of a number: of 32 bits and a sign.
const DIGITS_MAX: usize = 7;
/// The number of fields of the longest segment.
const FIELDS: usize = 5;

/// A segment. Lines and columns are from 0 on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MapSegment {
    /// The place in the generated file.
    pub(super) line: u32,
    pub(super) column: u32,
    /// The number of the original file, or [`Self::NONE`]: the place has no original.
    pub(super) source: u32,
    /// The place in the original file.
    pub(super) original_line: u32,
    pub(super) original_column: u32,
    /// The number of the original name, or [`Self::NONE`].
    pub(super) name: u32,
}

impl MapSegment {
    pub(super) const NONE: u32 = u32::MAX;

    /// Reads a segment of a line, whose fields count from those before.
    fn of(line: u32, text: &str, last: &mut [i64; FIELDS]) -> Result<Self, String> {
        let mut digits = text.bytes();
        let mut fields = 0;
        while digits.len() > 0 {
            let value = last.get_mut(fields).ok_or("a mapping is too long")?;
            *value += number(&mut digits).ok_or("a mapping is not a number")?;
            if !(0..=NUMBER_MAX).contains(value) {
                return Err("a mapping has a number out of range".to_owned());
            }
            fields += 1;
        }
        let [column, source, original_line, original_column, name] = last.map(|it| it as u32);
        let (source, name) = match fields {
            1 => (Self::NONE, Self::NONE),
            4 => (source, Self::NONE),
            FIELDS => (source, name),
            _ => return Err("a mapping has an odd number of fields".to_owned()),
        };
        Ok(Self { line, column, source, original_line, original_column, name })
    }
}

/// Reads a number. `None` if it is none, or has too many bits.
fn number(digits: &mut impl Iterator<Item = u8>) -> Option<i64> {
    let mut bits = 0;
    for at in 0..DIGITS_MAX {
        let digit = match digits.next()? {
            digit @ b'A'..=b'Z' => digit - b'A',
            digit @ b'a'..=b'z' => digit - b'a' + 26,
            digit @ b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits |= i64::from(digit & 31) << (5 * at);
        if digit & 32 == 0 {
            return Some(if bits & 1 == 0 { bits >> 1 } else { -(bits >> 1) });
        }
    }
    None
}

/// Reads all segments, and sorts them by their places. Of several at one place the last one counts.
///
/// # Errors
/// What is wrong with them, for people.
pub(super) fn segments(
    text: &str,
    sources: usize,
    names: usize,
) -> Result<Vec<MapSegment>, String> {
    let mut segments = Vec::new();
    let mut last = [0; FIELDS];
    for (line, text) in (0..).zip(text.split(';')) {
        last[0] = 0;
        for text in text.split(',').filter(|text| !text.is_empty()) {
            let segment = MapSegment::of(line, text, &mut last)?;
            let is_known = |id: u32, known| id == MapSegment::NONE || (id as usize) < known;
            if !is_known(segment.source, sources) || !is_known(segment.name, names) {
                return Err("a mapping has no source, or no name".to_owned());
            }
            if segments.len() == SEGMENTS_MAX {
                return Err(format!("it has more than {SEGMENTS_MAX} mappings"));
            }
            segments.push(segment);
        }
    }
    segments.sort_by_key(|segment| (segment.line, segment.column));
    Ok(segments)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &[[u32; 6]]) {
        let expected = expected.iter().map(|[line, column, source, original @ .., name]| {
            let [original_line, original_column] = *original;
            let (line, column, source, name) = (*line, *column, *source, *name);
            MapSegment { line, column, source, original_line, original_column, name }
        });
        assert_eq!(segments(text, 2, 1), Ok(expected.collect()), "{text}");
    }

    const NONE: u32 = MapSegment::NONE;

    #[test]
    fn segments_count_from_those_before() {
        check("", &[]);
        check(";;,", &[]);
        check("A", &[[0, 0, NONE, 0, 0, NONE]]);
        check("AAAA,CAAAA", &[[0, 0, 0, 0, 0, NONE], [0, 1, 0, 0, 0, 0]]);
        check("gBAEG;ACDC", &[[0, 16, 0, 2, 3, NONE], [1, 0, 1, 1, 4, NONE]]);
        // A column may go back.
        check("G,DAAA", &[[0, 2, 0, 0, 0, NONE], [0, 3, NONE, 0, 0, NONE]]);
        // 2^31 - 2, of 7 digits.
        check("AA8/////DA", &[[0, 0, 0, i32::MAX as u32 - 1, 0, NONE]]);
    }

    #[test]
    fn what_is_wrong_is_refused() {
        let said = |text: &str| segments(text, 2, 1).expect_err(text);
        for (text, expected) in [
            ("AA", "odd number"),
            ("AAA", "odd number"),
            ("AAAAAA", "too long"),
            ("g", "not a number"),
            ("!", "not a number"),
            ("=", "not a number"),
            ("gggggggA", "not a number"),
            ("D", "out of range"),
            ("AADA", "out of range"),
            // A line of 2^31 - 1, and several that together have more than 32 bits.
            ("AA+/////DA", "out of range"),
            ("AA8/////DA,AA8/////DA,AA8/////DA", "out of range"),
            ("AEAA", "no source"),
            ("AAAAC", "no name"),
        ] {
            assert!(said(text).contains(expected), "{text}: {}", said(text));
        }
        let text = "A,".repeat(SEGMENTS_MAX + 1);
        assert!(said(&text).contains("more than 8388608 mappings"));
    }
}
