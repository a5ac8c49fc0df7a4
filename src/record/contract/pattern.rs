//! The pattern of an output path, with placeholders for process, time, host and number.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::trace::index_path;

/// The placeholders, as error messages list them.
const KNOWN: &str = "%p (process id), %t (UTC time), %h (host name), %n (first free number), %% (a \
                     percent sign)";
/// The highest number to try; no directory has that many files.
const NUMBER_MAX: u32 = 999_999;

/// A path with placeholders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputPattern(Vec<Piece>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Plain(Vec<u8>),
    Pid,
    Time,
    Host,
    Number,
}

/// The values for the placeholders of a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Occasion {
    /// The process id. While it is unknown, its placeholder stays in the name.
    pub pid: Option<i32>,
    /// The time.
    pub time: SystemTime,
}

impl Occasion {
    /// Returns the values for this process at the current time.
    pub fn now(pid: Option<i32>) -> Self {
        Self { pid, time: SystemTime::now() }
    }
}

impl OutputPattern {
    /// Parses a pattern; the error message lists the placeholders.
    pub fn parse(text: &OsStr) -> Result<Self, String> {
        let mut pieces = Vec::new();
        let mut plain = Vec::new();
        let mut bytes = text.as_bytes().iter();
        while let Some(byte) = bytes.next() {
            if *byte != b'%' {
                plain.push(*byte);
                continue;
            }
            let piece = match bytes.next() {
                Some(b'p') => Piece::Pid,
                Some(b't') => Piece::Time,
                Some(b'h') => Piece::Host,
                Some(b'n') => Piece::Number,
                Some(b'%') => {
                    plain.push(b'%');
                    continue;
                }
                Some(other) => {
                    let other = char::from(*other).escape_default();
                    return Err(format!("unknown `%{other}`: there are {KNOWN}"));
                }
                None => return Err(format!("ends with a lone `%`: there are {KNOWN}")),
            };
            if !plain.is_empty() {
                pieces.push(Piece::Plain(std::mem::take(&mut plain)));
            }
            pieces.push(piece);
        }
        if !plain.is_empty() {
            pieces.push(Piece::Plain(plain));
        }
        match pieces.is_empty() {
            true => Err("expected the name of a file".to_owned()),
            false => Ok(Self(pieces)),
        }
    }

    /// Makes a pattern of exactly this path, without placeholders.
    pub fn literal(path: &Path) -> Self {
        Self(vec![Piece::Plain(path.as_os_str().as_bytes().to_vec())])
    }

    /// Returns the pattern with the time and then `end` appended.
    pub fn with_time(mut self, end: &str) -> Self {
        self.0.extend([Piece::Time, Piece::Plain(end.as_bytes().to_vec())]);
        self
    }

    /// Returns the pattern with its placeholders filled in, except for the number and for an
    /// unknown process id.
    pub fn settled(&self, occasion: Occasion) -> Self {
        let settle = |piece: &Piece| match piece {
            Piece::Number => Piece::Number,
            Piece::Pid if occasion.pid.is_none() => Piece::Pid,
            other => Piece::Plain(Self(vec![other.clone()]).bytes(occasion, "")),
        };
        let mut pieces: Vec<Piece> = Vec::new();
        for piece in self.0.iter().map(settle) {
            match (pieces.last_mut(), piece) {
                (Some(Piece::Plain(before)), Piece::Plain(more)) => before.extend(more),
                (_, piece) => pieces.push(piece),
            }
        }
        Self(pieces)
    }

    /// Returns whether the pattern has a placeholder for the process id.
    ///
    /// The id of a program is known only once the program is started.
    pub fn has_pid(&self) -> bool {
        self.0.contains(&Piece::Pid)
    }

    /// Returns whether the pattern has a placeholder for a number.
    pub fn has_number(&self) -> bool {
        self.0.contains(&Piece::Number)
    }

    /// Returns the path; with a number, the first one with neither a data nor an index file.
    pub fn path(&self, occasion: Occasion) -> PathBuf {
        self.first_free(occasion, taken)
    }

    fn first_free(&self, occasion: Occasion, taken: impl Fn(&Path) -> bool) -> PathBuf {
        let mut number = 1;
        loop {
            let path = self.numbered(occasion, &number.to_string());
            if number >= NUMBER_MAX || !self.has_number() || !taken(&path) {
                return path;
            }
            number += 1;
        }
    }

    /// Returns the path with this text in place of the number.
    pub fn numbered(&self, occasion: Occasion, number: &str) -> PathBuf {
        OsString::from_vec(self.bytes(occasion, number)).into()
    }

    fn bytes(&self, occasion: Occasion, number: &str) -> Vec<u8> {
        let mut name = Vec::new();
        for piece in &self.0 {
            match piece {
                Piece::Plain(bytes) => name.extend_from_slice(bytes),
                Piece::Pid => {
                    let pid = occasion.pid.map_or_else(|| "%p".to_owned(), |pid| pid.to_string());
                    name.extend_from_slice(pid.as_bytes());
                }
                Piece::Time => name.extend_from_slice(compact_utc(occasion.time).as_bytes()),
                Piece::Host => name.extend_from_slice(&host()),
                Piece::Number => name.extend_from_slice(number.as_bytes()),
            }
        }
        name
    }

    /// Returns the pattern for one of several files.
    ///
    /// A pattern without a placeholder for a number gets one in front of the extension.
    pub fn with_number(mut self) -> Self {
        if self.has_number() {
            return self;
        }
        let number = [Piece::Plain(b"-".to_vec()), Piece::Number];
        let is_whole = self.0.len() == 1;
        if let Some(Piece::Plain(last)) = self.0.last_mut() {
            let dot = last.iter().rposition(|byte| *byte == b'.' || *byte == b'/');
            let extension = match dot {
                // After a placeholder, a leading dot begins an extension. At the start of a file
                // name it does not.
                Some(0) if last[0] == b'.' && !is_whole => std::mem::take(last),
                Some(at) if last[at] == b'.' && at > 0 && last[at - 1] != b'/' => {
                    last.split_off(at)
                }
                _ => Vec::new(),
            };
            self.0.extend(number);
            self.0.extend((!extension.is_empty()).then_some(Piece::Plain(extension)));
        } else {
            self.0.extend(number);
        }
        self
    }
}

/// Returns whether the data file or its index exists.
pub(crate) fn taken(path: &Path) -> bool {
    path.symlink_metadata().is_ok() || index_path(path).symlink_metadata().is_ok()
}

/// Returns the host's name, with slashes replaced so that it is no path.
fn host() -> Vec<u8> {
    let name = nix::sys::utsname::uname().map(|names| names.nodename().as_bytes().to_vec());
    let mut name = name.unwrap_or_else(|_| b"host".to_vec());
    name.iter_mut().filter(|byte| **byte == b'/').for_each(|byte| *byte = b'_');
    name
}

/// Formats a time like `20261122T231336Z`.
fn compact_utc(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
    let (days, seconds) = (since / 86_400, since % 86_400);
    // Years are counted from March, so that the leap day is the last day; 400 years have 146,097
    // days.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (year, month) = match month {
        0..10 => (era * 400 + year, month + 3),
        _ => (era * 400 + year + 1, month - 9),
    };
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> OutputPattern {
        OutputPattern::parse(text.as_ref()).unwrap()
    }

    fn at(seconds: u64) -> Occasion {
        Occasion { pid: Some(4711), time: UNIX_EPOCH + Duration::from_secs(seconds) }
    }

    #[test]
    fn every_placeholder_is_filled_in() {
        let name = |text: &str| pattern(text).path(at(1_795_389_216));
        assert_eq!(name("svc-%p-%t.trace"), Path::new("svc-4711-20261122T231336Z.trace"));
        assert_eq!(name("100%%.trace"), Path::new("100%.trace"));
        let host = String::from_utf8(host()).unwrap();
        assert_eq!(name("/tmp/%h/x"), Path::new(&format!("/tmp/{host}/x")));
        assert_eq!(name("%p"), Path::new("4711"));
    }

    #[test]
    fn times_follow_the_calendar() {
        for (seconds, expected) in [
            (0, "19700101T000000Z"),
            (951_782_399, "20000228T235959Z"),
            (951_782_400, "20000229T000000Z"),
            (951_868_800, "20000301T000000Z"),
            (4_107_542_399, "21000228T235959Z"),
            (4_107_542_400, "21000301T000000Z"),
            (1_735_689_599, "20241231T235959Z"),
        ] {
            assert_eq!(compact_utc(UNIX_EPOCH + Duration::from_secs(seconds)), expected);
        }
    }

    #[test]
    fn the_first_free_number_is_taken() {
        let used = ["a-1.trace", "a-2.trace"];
        let taken = |path: &Path| used.iter().any(|name| Path::new(name) == path);
        assert_eq!(pattern("a-%n.trace").first_free(at(0), taken), Path::new("a-3.trace"));
        // Without a number, the caller decides about existing files.
        assert_eq!(pattern("a-1.trace").first_free(at(0), taken), Path::new("a-1.trace"));
    }

    #[test]
    fn a_number_whose_index_is_left_over_is_not_free() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(index_path(&dir.path().join("a-1.trace")), "x").unwrap();
        let name = dir.path().join("a-%n.trace");
        let path = OutputPattern::parse(name.as_os_str()).unwrap().path(at(0));
        assert_eq!(path, dir.path().join("a-2.trace"));
    }

    #[test]
    fn an_unknown_process_id_is_filled_in_later() {
        let early = Occasion { pid: None, ..at(951_782_400) };
        let settled = pattern("x-%p-%t.trace").settled(early);
        assert!(settled.has_pid());
        // The time is from when the name was settled, and the process id from later.
        assert_eq!(settled.path(at(1_735_689_599)), Path::new("x-4711-20000229T000000Z.trace"));
        assert!(!pattern("x-%p").settled(at(0)).has_pid());
    }

    #[test]
    fn an_unknown_placeholder_is_refused_and_the_error_lists_the_known_ones() {
        for text in ["%x", "a%", "%P.trace", "50%.trace"] {
            let error = OutputPattern::parse(text.as_ref()).unwrap_err();
            assert!(error.contains("%h (host name)"), "{error}");
        }
        assert!(OutputPattern::parse("".as_ref()).is_err());
    }

    #[test]
    fn numbers_go_in_front_of_the_extension() {
        let number =
            |text: &str| pattern(text).with_number().numbered(at(0), "0001").into_os_string();
        for (text, expected) in [
            ("out.trace", "out-0001.trace"),
            ("a.b/out", "a.b/out-0001"),
            ("dir/.hidden", "dir/.hidden-0001"),
            (".hidden", ".hidden-0001"),
            ("x-%p", "x-4711-0001"),
            ("x-%p.trace", "x-4711-0001.trace"),
            ("x-%p.tar.gz", "x-4711.tar-0001.gz"),
            ("%n/x.trace", "0001/x.trace"),
        ] {
            assert_eq!(number(text), expected, "{text}");
        }
    }
}
