//! The ids of spans and root spans, as users write them and as samples have them.
//!
//! Invariant: an id is printed in a form that options accept: hexadecimal, with 16 digits, or the
//! 32 digits of a W3C trace id.

use std::fmt;
use std::str::FromStr;

use crate::trace::Sample;

/// The id of a span. Never 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpanId(pub u64);

/// The id of the root of a trace: a span of this process, or a trace id of 128 bits. Never 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RootId(pub u128);

impl SpanId {
    /// Returns the span of a sample.
    pub fn of(sample: &Sample) -> Option<Self> {
        (sample.span != 0).then_some(Self(sample.span))
    }
}

impl RootId {
    /// Returns the root span of a sample.
    pub fn of(sample: &Sample) -> Option<Self> {
        let id = u128::from(sample.root_high) << 64 | u128::from(sample.root_span);
        (id != 0).then_some(Self(id))
    }

    /// Returns whether this is a trace id of 128 bits.
    pub(in crate::view) fn is_trace_id(self) -> bool {
        self.0 >> 64 != 0
    }
}

impl FromStr for SpanId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let id = parse_id(text, 16)?;
        u64::try_from(id).map(Self).map_err(|_| "ids of spans have 64 bits".to_owned())
    }
}

impl FromStr for RootId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse_id(text, 32).map(Self)
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Display for RootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = if self.is_trace_id() { 32 } else { 16 };
        write!(f, "{:0digits$x}", self.0)
    }
}

/// Parses an id of at most `digits_max` hexadecimal digits, or a decimal id after `dec:`.
fn parse_id(text: &str, digits_max: usize) -> Result<u128, String> {
    let (digits, radix, max) = match text.strip_prefix("dec:") {
        Some(decimal) => (decimal, 10, 39),
        None => (text.strip_prefix("0x").unwrap_or(text), 16, digits_max),
    };
    // A sign is not a digit.
    let plain = digits.len() <= max && digits.chars().all(|digit| digit.is_digit(radix));
    match u128::from_str_radix(digits, radix).ok().filter(|_| plain) {
        Some(0) => Err("0 is not an id; --by shows samples without one".to_owned()),
        Some(id) => Ok(id),
        None => Err(format!(
            "expected up to {digits_max} hexadecimal digits, as they are printed, or dec: and a \
             decimal number"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_as_they_are_printed() {
        for (text, id) in [
            ("00f067aa0ba902b7", 0x00f0_67aa_0ba9_02b7),
            ("0xF067AA0BA902B7", 0x00f0_67aa_0ba9_02b7),
            ("1", 1),
            ("10", 16),
            ("dec:10", 10),
            ("dec:18446744073709551615", u64::MAX),
        ] {
            assert_eq!(text.parse(), Ok(SpanId(id)), "{text}");
            assert_eq!(text.parse(), Ok(RootId(id.into())), "{text}");
        }
        let w3c = "4bf92f3577b34da6a3ce929d0e0e4736";
        assert_eq!(w3c.parse::<RootId>().unwrap().to_string(), w3c);
        let short: RootId = "0000000000000000a3ce929d0e0e4736".parse().unwrap();
        assert_eq!(short.to_string(), "a3ce929d0e0e4736");
        assert_eq!(SpanId(0xab).to_string(), "00000000000000ab");
        let wrong =
            ["", "0x", "0", "000", "g", "-1", "+1", "dec:", "dec:a", "dec:-1", "1 ", "0x0x1"];
        for text in wrong {
            assert!(text.parse::<SpanId>().is_err(), "{text}");
            assert!(text.parse::<RootId>().is_err(), "{text}");
        }
        for text in [w3c, "dec:18446744073709551616", "11112222333344445"] {
            assert!(text.parse::<SpanId>().is_err(), "{text}");
            assert!(text.parse::<RootId>().is_ok(), "{text}");
        }
        assert!("dec:340282366920938463463374607431768211456".parse::<RootId>().is_err());
    }
}
