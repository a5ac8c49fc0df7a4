//! A generated file of JavaScript.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::SystemTime;

use super::GeneratedPlace;

/// Maximum size of a file in bytes.
const FILE_MAX: u64 = 64 << 20;
/// Maximum number of lines.
const LINES_MAX: usize = 8 << 20;
/// Maximum number of code units from a mapping to a place that has it.
const BETWEEN_MAX: usize = 4096;
/// How the comment begins that names the map.
const COMMENTS: [&str; 2] = ["//# sourceMappingURL=", "//@ sourceMappingURL="];
/// Maximum number of words in front of a function that belong to it.
const WORDS_MAX: usize = 4;
/// How the names of functions begin that read and write properties.
const ACCESSORS: [&str; 2] = ["get ", "set "];
/// Words in front of functions that are not names.
const KEYWORDS: [&str; 6] = ["function", "async", "get", "set", "static", "constructor"];
/// Characters that end lines.
const LINE_FEED: u16 = 0x0a;
const CARRIAGE_RETURN: u16 = 0x0d;
const SEPARATORS: [u16; 2] = [0x2028, 0x2029];

/// The part in front of the parameters of a function that belongs to it. Columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FunctionHead {
    pub(super) start: u32,
    /// Where the name is, if it is there.
    pub(super) name: Option<u32>,
}

/// A generated file.
#[derive(Debug)]
pub(super) struct GeneratedFile {
    /// The text in code units.
    units: Vec<u16>,
    /// Where its lines start.
    lines: Vec<usize>,
    pub(super) map_url: String,
    pub(super) changed: Option<SystemTime>,
}

/// Reads a regular file, of at most some bytes, as text, and when it was changed last. What is not
/// such a file is not opened: that may wait, or do something.
pub(super) fn read_text(path: &Path) -> io::Result<(String, Option<SystemTime>)> {
    let found = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path)?;
    let about = found.metadata()?;
    if !about.is_file() {
        return Err(io::Error::other("not a file"));
    }
    let too_long = || io::Error::other(format!("longer than {} MiB", FILE_MAX >> 20));
    if about.len() > FILE_MAX {
        return Err(too_long());
    }
    let file = File::open(format!("/proc/self/fd/{}", found.as_raw_fd()))?;
    let mut bytes = Vec::new();
    file.take(FILE_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_MAX {
        return Err(too_long());
    }
    let text = String::from_utf8(bytes).map_err(|_| io::Error::other("not UTF-8"))?;
    Ok((text, about.modified().ok()))
}

impl GeneratedFile {
    pub(super) fn read(path: &Path) -> Result<Self, String> {
        let (text, changed) = read_text(path).map_err(|error| error.to_string())?;
        Self::of(&text, changed)
    }

    /// Takes a text.
    pub(super) fn of(text: &str, changed: Option<SystemTime>) -> Result<Self, String> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let url = |line: &str| {
            let url = COMMENTS.iter().find_map(|comment| line.rsplit_once(comment))?.1.trim_end();
            let is_url = !url.is_empty() && !url.contains([' ', '\t', '"', '\'', '`']);
            is_url.then(|| url.to_owned())
        };
        let map_url = text.lines().rev().find_map(url).ok_or("names no source map")?;
        let units: Vec<u16> = text.encode_utf16().collect();
        let mut lines = vec![0];
        for (at, unit) in units.iter().enumerate() {
            let is_end = *unit == CARRIAGE_RETURN && units.get(at + 1) != Some(&LINE_FEED);
            if is_end || *unit == LINE_FEED || SEPARATORS.contains(unit) {
                lines.push(at + 1);
            }
            if lines.len() > LINES_MAX {
                return Err(format!("it has more than {LINES_MAX} lines"));
            }
        }
        Ok(Self { units, lines, map_url, changed })
    }

    /// Returns what is in front of a place in its line. `None` if there is no such place.
    pub(super) fn before(&self, place: GeneratedPlace) -> Option<&[u16]> {
        let line = usize::try_from(place.line.checked_sub(1)?).ok()?;
        let start = *self.lines.get(line)?;
        let next = self.lines.get(line + 1).map(|next| next.saturating_sub(1));
        let end = next.unwrap_or(self.units.len());
        let at = start.checked_add(usize::try_from(place.column.checked_sub(1)?).ok()?)?;
        self.units.get(start..at).filter(|_| at <= end)
    }

    /// Returns the part of a function in front of its parameters, which begin at a place. `None`
    /// if there is no such place.
    pub(super) fn head(&self, place: GeneratedPlace, name: &str) -> Option<FunctionHead> {
        let before = self.before(place)?;
        let own = name.rsplit('.').next().unwrap_or(name);
        let own = ACCESSORS.iter().find_map(|it| own.strip_prefix(it)).unwrap_or(own);
        let own: Vec<u16> = own.encode_utf16().collect();
        let column = |len: usize| u32::try_from(len).map_or(u32::MAX, |it| it.saturating_add(1));
        let (mut rest, mut start, mut found) = (before, before.len(), None);
        for _ in 0..WORDS_MAX {
            rest = without_end(rest, |unit| is_space(unit) || unit == u16::from(b'*'));
            let outside = without_end(rest, is_word);
            let word = rest.get(outside.len()..)?;
            if word.is_empty() && found.is_none() {
                // Of a variable or a property.
                let Some(assigned) = without_sign(rest) else { break };
                rest = assigned;
                continue;
            }
            let is_name = found.is_none() && word == own.as_slice();
            if !is_name && !is_keyword(word) {
                break;
            }
            (rest, start) = (outside, outside.len());
            found = found.or(is_name.then(|| column(start)));
        }
        // What begins the line may have the mapping of its indent.
        if without_end(rest, is_space).is_empty() {
            start = 0;
        }
        Some(FunctionHead { start: column(start), name: found })
    }

    /// Returns whether a block may have ended between a column and a place behind it in its line. A
    /// brace in a text counts, too.
    pub(super) fn ends_block(&self, column: u32, place: GeneratedPlace) -> bool {
        let Some(before) = self.before(place) else { return true };
        let start = usize::try_from(column.saturating_sub(1)).unwrap_or(usize::MAX);
        let between = before.get(start..).filter(|it| it.len() <= BETWEEN_MAX);
        between.is_none_or(|it| it.contains(&u16::from(b'}')))
    }
}

fn without_end(units: &[u16], is_it: impl Fn(u16) -> bool) -> &[u16] {
    let len = units.iter().rposition(|unit| !is_it(*unit)).map_or(0, |last| last + 1);
    &units[..len]
}

/// Returns what is in front of a sign that assigns a function to a name.
fn without_sign(units: &[u16]) -> Option<&[u16]> {
    let (last, rest) = units.split_last()?;
    [b'=', b':'].iter().any(|sign| u16::from(*sign) == *last).then_some(rest)
}

fn is_space(unit: u16) -> bool {
    [b' ', b'\t'].iter().any(|space| u16::from(*space) == unit)
}

/// Whether a code unit is a part of a name. All that are not of ASCII count.
fn is_word(unit: u16) -> bool {
    match u8::try_from(unit) {
        Ok(byte) if byte < 0x80 => byte.is_ascii_alphanumeric() || b"_$#".contains(&byte),
        _ => true,
    }
}

fn is_keyword(word: &[u16]) -> bool {
    KEYWORDS.iter().any(|it| it.encode_utf16().eq(word.iter().copied()))
}
