//! Parser of times and sizes, the same for every option.
//!
//! # Invariants
//! - A number is decimal, without sign or exponent. Its unit follows without a space.
//! - Each option sets its own limits.

use std::time::Duration;

/// The message for a time that cannot be parsed.
pub const TIME_EXPECTED: &str = "expected a time such as 5, 5s, 500ms, 5m or 1h30m";
const SIZE_EXPECTED: &str = "expected a size such as 65536, 64K, 500M or 2G";
/// The longest accepted time in seconds: longer than any recording, and small enough to add times
/// safely.
const TIME_MAX_S: f64 = 100.0 * 366.0 * 86_400.0;
/// The largest accepted size in bytes: larger than any file.
const SIZE_MAX: f64 = (1u64 << 50) as f64;

/// Parses a time: numbers with units (ns, us, ms, s, m, min, h), larger units first. A bare number
/// means seconds.
///
/// # Errors
/// Returns a message for the user.
pub fn time(text: &str) -> Result<Duration, String> {
    let (mut rest, mut sum_s, mut before_s) = (text, 0.0, f64::INFINITY);
    while !rest.is_empty() || before_s == f64::INFINITY {
        let (digits, tail) = rest.split_at(rest.find(is_letter).unwrap_or(rest.len()));
        let (unit, tail) = tail.split_at(tail.find(|c| !is_letter(c)).unwrap_or(tail.len()));
        let unit_s = match (unit, unit_s(unit)) {
            (_, Some(unit_s)) => unit_s,
            // A number without a unit must be the only one.
            ("", None) if before_s == f64::INFINITY => 1.0,
            ("", None) => return Err(TIME_EXPECTED.to_owned()),
            _ => return Err(format!("unknown unit `{unit}`: use ns, us, ms, s, m or h")),
        };
        if unit_s >= before_s {
            return Err("give the larger units first, each once".to_owned());
        }
        sum_s += number(digits).ok_or(TIME_EXPECTED)? * unit_s;
        (rest, before_s) = (tail, unit_s);
    }
    if sum_s > TIME_MAX_S {
        return Err("the time is too long: give at most 100 years".to_owned());
    }
    Ok(Duration::from_secs_f64(sum_s))
}

/// Parses a size in bytes: a number, with an optional unit (K, M, G, T, each 1024 times the
/// previous one; also KiB or KB, in either case).
///
/// # Errors
/// Returns a message for the user.
pub fn bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(is_letter);
    let unit = text[digits.len()..].to_ascii_lowercase();
    let shift = match unit.as_str() {
        "" => 0,
        unit => {
            unit_shift(unit).ok_or_else(|| format!("unknown unit `{unit}`: use K, M, G or T"))?
        }
    };
    let bytes = number(digits).ok_or(SIZE_EXPECTED)? * (1u64 << shift) as f64;
    if bytes < SIZE_MAX { Ok(bytes as u64) } else { Err(SIZE_EXPECTED.to_owned()) }
}

/// Returns the seconds of a unit of time.
pub fn unit_s(unit: &str) -> Option<f64> {
    match unit {
        "ns" => Some(1e-9),
        "us" => Some(1e-6),
        "ms" => Some(1e-3),
        "s" => Some(1.0),
        "m" | "min" => Some(60.0),
        "h" => Some(3600.0),
        _ => None,
    }
}

/// Returns the power of two of a unit of size, in either case.
pub fn unit_shift(unit: &str) -> Option<u32> {
    match unit.to_ascii_lowercase().as_str() {
        "b" => Some(0),
        "k" | "kib" | "kb" => Some(10),
        "m" | "mib" | "mb" => Some(20),
        "g" | "gib" | "gb" => Some(30),
        "t" | "tib" | "tb" => Some(40),
        _ => None,
    }
}

/// Parses a decimal number without sign, exponent, `inf` or `nan`.
pub fn number(text: &str) -> Option<f64> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    text.parse::<f64>().ok().filter(|number| is_plain && number.is_finite())
}

fn is_letter(character: char) -> bool {
    character.is_ascii_alphabetic()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units_and_a_bare_number_is_seconds() {
        let check = |text: &str, ns| assert_eq!(time(text), Ok(Duration::from_nanos(ns)), "{text}");
        check("5", 5_000_000_000);
        check("0", 0);
        check("5s", 5_000_000_000);
        check("0.25", 250_000_000);
        check("500ms", 500_000_000);
        check("20us", 20_000);
        check("100ns", 100);
        check("5m", 300_000_000_000);
        check("5min", 300_000_000_000);
        check("2h", 7_200_000_000_000);
        check("1h30m", 5_400_000_000_000);
        check("1m0.5s", 60_500_000_000);
        check("1h1m1s1ms", 3_661_001_000_000);
    }

    #[test]
    fn malformed_times_are_refused_with_an_example() {
        for text in ["", "s", "-1", "5 s", "ä", "1h30", ".", "5µs"] {
            assert_eq!(time(text), Err(TIME_EXPECTED.to_owned()), "{text}");
        }
        for (text, words) in [
            ("5d", "unknown unit `d`: use ns, us, ms, s, m or h"),
            ("1hm", "unknown unit `hm`"),
            ("1m1h", "larger units first"),
            ("1s1s", "each once"),
            ("9e99h", "unknown unit `e`"),
            ("1e9", "unknown unit `e`"),
            ("inf", "unknown unit `inf`"),
            ("99999999999999h", "the time is too long"),
        ] {
            assert!(time(text).unwrap_err().contains(words), "{text}: {:?}", time(text));
        }
    }

    #[test]
    fn sizes_have_units_of_1024() {
        let check = |text: &str, expected| assert_eq!(bytes(text), Ok(expected), "{text}");
        check("65536", 65_536);
        check("64K", 64 << 10);
        check("2G", 2 << 30);
        check("1.5m", 3 << 19);
        check("100MiB", 100 << 20);
        check("7b", 7);
        for text in ["", "M", "-1G", "1e9", "9999999T", "inf", "+2048", "5 M"] {
            assert!(bytes(text).is_err(), "{text}");
        }
        assert_eq!(bytes("2X"), Err("unknown unit `x`: use K, M, G or T".to_owned()));
    }
}
