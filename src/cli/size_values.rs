//! Types of option values that are sizes of files, or a size or a time.

use std::str::FromStr;
use std::time::Duration;

use crate::quantity::{bytes, time, unit_s, unit_shift};
use crate::trace::RotateAfter;

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);

/// The largest size of a trace and its index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SizeLimit(pub u64);

impl FromStr for SizeLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match bytes(text)? {
            bytes if bytes >= 1 << 20 => Ok(Self(bytes)),
            _ => Err("the smallest limit is 1M".to_owned()),
        }
    }
}

/// The time that a ring holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingTime(pub Duration);

impl FromStr for RingTime {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match time(text)? {
            time if (SECOND..=DAY).contains(&time) => Ok(Self(time)),
            _ => Err("expected a time from 1s to 24h".to_owned()),
        }
    }
}

/// When the next part of a recording starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RotateAt(pub RotateAfter);

impl FromStr for RotateAt {
    type Err = String;

    /// `m` is a minute and `M` a mebibyte.
    fn from_str(text: &str) -> Result<Self, String> {
        let is_letter = |character: char| character.is_ascii_alphabetic();
        let unit = text.trim_start_matches(|character| !is_letter(character));
        let unit = &unit[..unit.find(|character| !is_letter(character)).unwrap_or(unit.len())];
        match unit {
            "" => Err(format!("needs a unit: {text}M for a size, {text}m for a time")),
            _ if unit_s(unit).is_some() => match time(text)? {
                age if age >= SECOND => Ok(Self(RotateAfter::Age(age))),
                _ => Err("the shortest part is 1s".to_owned()),
            },
            // A single `m` is a minute.
            _ if unit_shift(unit).is_some() => match bytes(text)? {
                bytes if bytes >= 64 << 10 => Ok(Self(RotateAfter::Bytes(bytes))),
                _ => Err("the smallest part is 64K".to_owned()),
            },
            _ => Err(format!(
                "unknown unit `{unit}`: use K, M, G or T for a size, s, m or h for a time"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_has_room_for_a_trace() {
        assert_eq!("2G".parse(), Ok(SizeLimit(2 << 30)));
        assert_eq!("1048576".parse(), Ok(SizeLimit(1 << 20)));
        for text in ["", "1K", "0", "1048575", "2X"] {
            assert!(text.parse::<SizeLimit>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_ring_has_a_second_to_a_day() {
        assert_eq!("5m".parse(), Ok(RingTime(Duration::from_secs(300))));
        assert!(["0.5", "25h", "x"].iter().all(|text| text.parse::<RingTime>().is_err()));
    }

    #[test]
    fn a_part_is_so_large_or_so_old() {
        let check = |text: &str, turn| assert_eq!(text.parse(), Ok(RotateAt(turn)), "{text}");
        check("100M", RotateAfter::Bytes(100 << 20));
        check("64k", RotateAfter::Bytes(64 << 10));
        check("1GiB", RotateAfter::Bytes(1 << 30));
        check("100mb", RotateAfter::Bytes(100 << 20));
        check("100mib", RotateAfter::Bytes(100 << 20));
        check("80kb", RotateAfter::Bytes(80 << 10));
        check("10m", RotateAfter::Age(Duration::from_secs(600)));
        check("1h30m", RotateAfter::Age(Duration::from_secs(5400)));
        check("90s", RotateAfter::Age(Duration::from_secs(90)));
        for text in ["", "100", "1K", "500ms", "10d", "M", "signal"] {
            assert!(text.parse::<RotateAt>().is_err(), "{text}");
        }
        for text in ["10d", "100mbit", "signal", "1H"] {
            let message = text.parse::<RotateAt>().unwrap_err();
            assert!(
                message.contains("for a size") && message.contains("for a time"),
                "{text}: {message}"
            );
        }
    }
}
