//! The version of an interpreter.

use std::fmt;

/// Maximum length of the text with the version.
const LENGTH_MAX: usize = 16;

/// The version that an interpreter says, such as `3.1.2`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct RubyVersion {
    text: Option<String>,
}

impl RubyVersion {
    /// Reads the constant with the version, which ends with a byte 0.
    pub(super) fn of_constant(constant: &[u8]) -> Self {
        let text = constant.split(|byte| *byte == 0).next().filter(|it| it.len() <= LENGTH_MAX);
        let text = text.and_then(|text| std::str::from_utf8(text).ok());
        let is_version = |text: &&str| {
            let mut parts = text.split('.');
            let is_number = |part: &str| part.bytes().all(|it| it.is_ascii_digit());
            parts.clone().count() == 3 && parts.all(|part| !part.is_empty() && is_number(part))
        };
        Self { text: text.filter(is_version).map(str::to_owned) }
    }

    /// Returns the minor version, such as 3.1. Patch releases share their structures.
    pub(super) fn minor(&self) -> Option<(u32, u32)> {
        let mut parts = self.text.as_ref()?.split('.');
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    }
}

impl fmt::Display for RubyVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.text {
            Some(text) => write!(f, "Ruby {text}"),
            None => f.write_str("Ruby"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_tell_the_version() {
        let version = RubyVersion::of_constant(b"3.1.2\0\x012022");
        assert_eq!((version.to_string().as_str(), version.minor()), ("Ruby 3.1.2", Some((3, 1))));
        for wrong in [&b""[..], b"3.1\0", b"3.1.\0", b"3.a.2\0", b"\xff.1.2\0", &[b'1'; 40]] {
            let version = RubyVersion::of_constant(wrong);
            assert_eq!((version.to_string().as_str(), version.minor()), ("Ruby", None));
        }
        assert_eq!(RubyVersion::of_constant(b"99999999999.1.2\0").minor(), None);
    }
}
