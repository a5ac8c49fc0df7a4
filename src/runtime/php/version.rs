//! The version and the build of an interpreter.

use std::fmt;

/// The beginning of the text with the version, which the interpreter sends to browsers.
const VERSION: &[u8] = b"X-Powered-By: PHP/";
/// The beginning of the text with which extensions say for which builds they are.
const BUILD: &[u8] = b"API";
/// Maximum length of these texts.
const LENGTH_MAX: usize = 64;

/// What the constants of an interpreter say of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct PhpVersion {
    /// The version, such as `8.2.36`.
    text: Option<String>,
    /// The number of the interface for extensions, which each minor version has of its own.
    pub(super) interface: Option<u32>,
    /// Whether it may run several threads.
    pub(super) is_thread_safe: bool,
    /// Whether it checks itself, with other structures.
    pub(super) is_debug: bool,
}

impl PhpVersion {
    /// Reads the version in the constants of a file.
    pub(super) fn of_constants<'a>(parts: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut version = Self::default();
        for text in parts.flat_map(|part| part.split(|byte| *byte == 0)) {
            if text.len() <= LENGTH_MAX {
                version.learn(text);
            }
        }
        version
    }

    fn learn(&mut self, text: &[u8]) {
        if let Some(version) = text.strip_prefix(VERSION)
            && let Ok(version) = std::str::from_utf8(version)
            && version.bytes().all(|byte| byte.is_ascii_graphic())
        {
            self.text = Some(version.to_owned());
        }
        // Linkers let a text be the end of another one.
        let start = text.windows(BUILD.len()).rposition(|part| part == BUILD);
        let Some(build) = start.and_then(|start| std::str::from_utf8(&text[start..]).ok()) else {
            return;
        };
        let mut parts = build[BUILD.len()..].split(',');
        let interface = parts.next().filter(|number| number.len() == 8);
        let Some(interface) = interface.and_then(|number| number.parse().ok()) else { return };
        let (is_thread_safe, is_debug) = match (parts.next(), parts.next()) {
            (Some("NTS"), debug) => (false, debug == Some("debug")),
            (Some("TS"), debug) => (true, debug == Some("debug")),
            _ => return,
        };
        self.interface = Some(interface);
        (self.is_thread_safe, self.is_debug) = (is_thread_safe, is_debug);
    }
}

impl fmt::Display for PhpVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.text {
            Some(text) => write!(f, "PHP {text}"),
            None => f.write_str("PHP"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(constants: &[u8]) -> PhpVersion {
        PhpVersion::of_constants([constants].into_iter())
    }

    #[test]
    fn constants_tell_the_version_and_the_build() {
        let found = version(b"x\0X-Powered-By: PHP/8.2.36\0API20220829,NTS\0APIx\0API2022,NTS\0");
        assert_eq!(found.to_string(), "PHP 8.2.36");
        assert_eq!(found.interface, Some(20_220_829));
        assert!(!found.is_thread_safe && !found.is_debug);
        let found = version(b"Zend API20240924,TS,debug");
        assert_eq!((found.to_string().as_str(), found.interface), ("PHP", Some(20_240_924)));
        assert!(found.is_thread_safe && found.is_debug);
        assert_eq!(version(b"API20220829\0X-Powered-By: \n"), PhpVersion::default());
    }
}
