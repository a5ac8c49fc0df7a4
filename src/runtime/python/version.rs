//! The version of an interpreter.

use std::fmt;

/// The first and the last supported minor version.
const SUPPORTED: (u8, u8) = (8, 14);
/// Maximum number of different versions in a file's strings that are looked at.
const STRINGS_MAX: usize = 8;

/// A version of Python 3.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PythonVersion {
    pub(super) minor: u8,
    /// Unknown if the file does not tell.
    micro: Option<u8>,
    /// The stage of a release, and the number in it.
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Alpha(u8),
    Beta(u8),
    Candidate(u8),
    Final,
}

impl PythonVersion {
    /// Decodes the number that the C API calls `PY_VERSION_HEX`. `None` if it is not of Python 3.
    pub(super) fn of_number(number: u32) -> Option<Self> {
        let [last, micro, minor, 3] = number.to_le_bytes() else { return None };
        let stage = match last >> 4 {
            0xa => Stage::Alpha(last & 0xf),
            0xb => Stage::Beta(last & 0xf),
            0xc => Stage::Candidate(last & 0xf),
            _ => Stage::Final,
        };
        Some(Self { minor, micro: Some(micro), stage })
    }

    /// Returns the version with this minor number. The strings of the file may tell the rest.
    pub(super) fn of_strings<'a>(minor: u8, parts: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut found = Vec::new();
        for micro in parts.flat_map(|part| micros(minor, part)) {
            if !found.contains(&micro) && found.len() < STRINGS_MAX {
                found.push(micro);
            }
        }
        let micro = if let [micro] = found[..] { Some(micro) } else { None };
        Self { minor, micro, stage: Stage::Final }
    }

    /// Whether the structures of this version are known.
    pub(super) fn is_supported(&self) -> bool {
        let is_release = matches!(self.stage, Stage::Candidate(_) | Stage::Final);
        (SUPPORTED.0..=SUPPORTED.1).contains(&self.minor) && is_release
    }
}

/// Returns the last numbers of the strings that end with `3.MINOR.MICRO`, or with a plus sign
/// behind. Linkers let the version be the end of another string, such as a path.
fn micros(minor: u8, part: &[u8]) -> impl Iterator<Item = u8> {
    let middle = format!("3.{minor}.");
    part.split(|byte| *byte == 0).filter_map(move |text| {
        let text = text.strip_suffix(b"+").unwrap_or(text);
        let digits = text.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
        let (rest, micro) = text.split_at(text.len() - digits);
        let before = rest.strip_suffix(middle.as_bytes())?;
        let is_whole = before.last().is_none_or(|byte| !matches!(byte, b'0'..=b'9' | b'.'));
        std::str::from_utf8(micro).ok().filter(|it| is_whole && it.len() <= 2)?.parse().ok()
    })
}

impl fmt::Display for PythonVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Python 3.{}", self.minor)?;
        if let Some(micro) = self.micro {
            write!(f, ".{micro}")?;
        }
        match self.stage {
            Stage::Alpha(number) => write!(f, "a{number}"),
            Stage::Beta(number) => write!(f, "b{number}"),
            Stage::Candidate(number) => write!(f, "rc{number}"),
            Stage::Final => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_decoded() {
        let check = |number, text: &str, supported| {
            let version = PythonVersion::of_number(number).unwrap();
            assert_eq!((version.to_string(), version.is_supported()), (text.to_owned(), supported));
        };
        check(0x030b_02f0, "Python 3.11.2", true);
        check(0x030e_00c2, "Python 3.14.0rc2", true);
        check(0x030d_00b1, "Python 3.13.0b1", false);
        check(0x030f_00f0, "Python 3.15.0", false);
        check(0x0307_10f0, "Python 3.7.16", false);
        assert_eq!(PythonVersion::of_number(0x0207_12f0), None);
    }

    #[test]
    fn strings_tell_the_rest_of_a_version() {
        let check = |part: &[u8], text: &str| {
            let version = PythonVersion::of_strings(9, [part].into_iter());
            assert_eq!(version.to_string(), text);
        };
        check(b"x\x003.9.18\x003.40.1\0%d.%d\0", "Python 3.9.18");
        check(b"3.9.18x\0lib/3.9.7/lib\0of 3.9.18\x0013.9.4\0", "Python 3.9.18");
        check(b"3.9.2+", "Python 3.9.2");
        check(b"3.9.1x\x003.9.\x003.9.1234\0", "Python 3.9");
        check(b"3.9.1\x003.9.2\0", "Python 3.9");
    }
}
