//! Cookies: numbers that change when another object takes the address of the one that was captured.

/// A cookie, as far as the parts that make it are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CookieParts(u64);

impl CookieParts {
    /// The cookie of no parts.
    pub(super) const NONE: Self = Self(0);

    /// Returns the cookie with another part behind the others.
    #[must_use]
    pub(super) fn with(self, part: u64) -> Self {
        const K: u64 = 0x9E37_79B9_7F4A_7C15;
        Self((self.0 ^ part).wrapping_mul(K).rotate_left(29))
    }

    /// Returns what stands for all parts in another cookie.
    pub(super) fn part(self) -> u64 {
        self.0
    }

    /// Returns the cookie.
    pub(super) fn finish(self) -> u32 {
        (self.0 ^ self.0 >> 32) as u32
    }
}
