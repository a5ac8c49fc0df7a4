//! The versions of V8 whose objects are known.

use std::fmt;

/// A version of V8. Its objects are the same in all of its patches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct V8Version {
    pub(super) major: u32,
    pub(super) minor: u32,
}

impl V8Version {
    /// That of Node.js 18.
    pub(super) const V10_2: Self = Self { major: 10, minor: 2 };
    /// That of Node.js 20.
    pub(super) const V11_3: Self = Self { major: 11, minor: 3 };
    /// That of Node.js 22.
    pub(super) const V12_4: Self = Self { major: 12, minor: 4 };
    /// That of Node.js 24.
    pub(super) const V13_6: Self = Self { major: 13, minor: 6 };
    /// All versions whose objects are known.
    #[cfg(any(test, fuzzing))]
    pub(super) const SUPPORTED: [Self; 4] = [Self::V10_2, Self::V11_3, Self::V12_4, Self::V13_6];
}

impl fmt::Display for V8Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "V8 {}.{}", self.major, self.minor)
    }
}
