//! The name of an output as it is given: with places for the process, the time, the host, a number.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::trace::index_path;

/// What a percent sign may be followed by.
const KNOWN: &str = "%p (process id), %t (UTC time), %h (host name), %n (first free number), %% (a \
                     percent sign)";
/// Numbers that are tried; nobody has as many files in a directory.
const NUMBER_MAX: u32 = 999_999;

/// A name with places.
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

/// What goes to the places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Occasion {
    /// The process, if it is known; else the place stays as it is.
    pub pid: Option<i32>,
    /// The time.
    pub time: SystemTime,
}

impl Occasion {
    /// Of this process, now.
    pub fn now(pid: Option<i32>) -> Self {
        Self { pid, time: SystemTime::now() }
    }
}

impl OutputPattern {
    /// The pattern that a user gives. The message of an error lists what there is.
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

    /// The name of exactly this file.
    pub fn literal(path: &Path) -> Self {
        Self(vec![Piece::Plain(path.as_os_str().as_bytes().to_vec())])
    }

    /// The same, followed by the time and this.
    pub fn with_time(mut self, end: &str) -> Self {
        self.0.extend([Piece::Time, Piece::Plain(end.as_bytes().to_vec())]);
        self
    }

    /// The same with all places filled but that for the number, and for a process id that is not
    /// known.
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

    /// It has a place for the process id, which of a program is known once it is started.
    pub fn has_pid(&self) -> bool {
        self.0.contains(&Piece::Pid)
    }

    /// It has a place for a number.
    pub fn has_number(&self) -> bool {
        self.0.contains(&Piece::Number)
    }

    /// The name; of those with a number the first for which there is neither a data nor an index
    /// file.
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

    /// The name with this for its number.
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

    /// The same for one of several files: with a place for a number in front of the extension,
    /// unless it has one somewhere.
    pub fn with_number(mut self) -> Self {
        if self.has_number() {
            return self;
        }
        let number = [Piece::Plain(b"-".to_vec()), Piece::Number];
        let is_whole = self.0.len() == 1;
        if let Some(Piece::Plain(last)) = self.0.last_mut() {
            let dot = last.iter().rposition(|byte| *byte == b'.' || *byte == b'/');
            let extension = match dot {
                // What follows a place is none; a dot that begins a name begins no extension.
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

/// Whether there is such a data file or its index.
pub(crate) fn taken(path: &Path) -> bool {
    path.symlink_metadata().is_ok() || index_path(path).symlink_metadata().is_ok()
}

/// The host's name; what would be another directory is not.
fn host() -> Vec<u8> {
    let name = nix::sys::utsname::uname().map(|names| names.nodename().as_bytes().to_vec());
    let mut name = name.unwrap_or_else(|_| b"host".to_vec());
    name.iter_mut().filter(|byte| **byte == b'/').for_each(|byte| *byte = b'_');
    name
}

/// A time as in 20261122T231336Z.
fn compact_utc(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
    let (days, seconds) = (since / 86_400, since % 86_400);
    // Years that begin in March end with the leap day; 400 of them have 146,097 days.
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
    fn every_place_is_filled() {
        let name = |text: &str| pattern(text).path(at(1_795_389_216));
        assert_eq!(name("svc-%p-%t.trace"), Path::new("svc-4711-20261122T231336Z.trace"));
        assert_eq!(name("100%%.trace"), Path::new("100%.trace"));
        let host = String::from_utf8(host()).unwrap();
        assert_eq!(name("/tmp/%h/x"), Path::new(&format!("/tmp/{host}/x")));
        assert_eq!(name("%p"), Path::new("4711"));
    }

    #[test]
    fn times_are_those_of_the_calendar() {
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
        // Without a number it is for others to say what becomes of what is there.
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
    fn a_process_that_is_not_there_yet_is_named_later() {
        let early = Occasion { pid: None, ..at(951_782_400) };
        let settled = pattern("x-%p-%t.trace").settled(early);
        assert!(settled.has_pid());
        // The time is that at which the name was settled, the process the one that came.
        assert_eq!(settled.path(at(1_735_689_599)), Path::new("x-4711-20000229T000000Z.trace"));
        assert!(!pattern("x-%p").settled(at(0)).has_pid());
    }

    #[test]
    fn what_is_unknown_is_refused_with_what_there_is() {
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
