//! The part of an input that is in memory: a window around the read position.
//!
//! # Invariants
//! - The buffer is at most twice as large as the input really is.

use std::io::{self, Read};

/// The least number of bytes in one read.
const STEP: usize = 1 << 16;
/// The memory that is kept when little of it is used.
const KEPT: usize = 1 << 20;

/// An input, and the bytes of it that were read but not consumed.
#[derive(Debug)]
pub(super) struct InputWindow<R> {
    input: R,
    buffer: Vec<u8>,
    /// The number of consumed bytes of `buffer`.
    passed: usize,
    /// The offset in the input of the first byte that is not consumed.
    at: u64,
}

impl<R: Read> InputWindow<R> {
    /// Creates a window onto `input`, whose next byte has the offset `at`.
    pub(super) fn new(input: R, at: u64) -> Self {
        Self { input, buffer: Vec::new(), passed: 0, at }
    }

    /// Returns the offset of the next byte.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// Returns the next `bytes` bytes, or fewer at the end of the input.
    pub(super) fn peek(&mut self, bytes: usize) -> io::Result<&[u8]> {
        loop {
            let available = self.buffer.len() - self.passed;
            if available >= bytes || !self.read(bytes - available)? {
                let end = self.buffer.len().min(self.passed + bytes);
                return Ok(&self.buffer[self.passed..end]);
            }
        }
    }

    /// Consumes bytes, whether they were read or not; returns how many there were.
    pub(super) fn pass(&mut self, bytes: u64) -> io::Result<u64> {
        let available = (self.buffer.len() - self.passed) as u64;
        let in_memory = available.min(bytes);
        self.passed += in_memory as usize;
        let mut passed = in_memory;
        if in_memory < bytes {
            self.buffer.clear();
            self.passed = 0;
            passed += io::copy(&mut self.input.by_ref().take(bytes - in_memory), &mut io::sink())?;
        }
        self.at += passed;
        Ok(passed)
    }

    /// Consumes everything up to the next occurrence of `pattern`; returns false if there is none,
    /// at the end of the input.
    pub(super) fn pass_to(&mut self, pattern: &[u8]) -> io::Result<bool> {
        let Some(first) = pattern.first() else { return Ok(true) };
        loop {
            let seen = self.peek(STEP)?;
            let len = seen.len();
            let mut from = 0;
            // The last candidates, whose pattern may continue beyond the buffer, wait.
            while let Some(place) = seen[from..].iter().position(|byte| byte == first) {
                from += place;
                if seen.len() - from < pattern.len() {
                    break;
                }
                if seen[from..].starts_with(pattern) {
                    self.pass(from as u64)?;
                    return Ok(true);
                }
                from += 1;
            }
            let left = len - from.min(len);
            let waits = left < pattern.len() && left > 0 && seen[len - left] == *first;
            self.pass(if waits { from } else { len } as u64)?;
            if len < STEP && (!waits || self.peek(pattern.len())?.len() < pattern.len()) {
                let rest = self.peek(pattern.len())?.len() as u64;
                self.pass(rest)?;
                return Ok(false);
            }
        }
    }

    /// Reads at least one byte; returns false at the end of the input.
    fn read(&mut self, missing: usize) -> io::Result<bool> {
        if self.passed > 0 {
            self.buffer.drain(..self.passed);
            self.passed = 0;
            if self.buffer.capacity() > KEPT && self.buffer.len() < KEPT / 4 && missing < KEPT / 4 {
                self.buffer.shrink_to(KEPT);
            }
        }
        let most = self.buffer.len().max(STEP);
        let before = self.buffer.len();
        self.input
            .by_ref()
            .take(missing.max(STEP).min(most) as u64)
            .read_to_end(&mut self.buffer)?;
        Ok(self.buffer.len() > before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A reader that returns a few bytes at a time.
    struct Trickle<'a>(&'a [u8]);

    impl Read for Trickle<'_> {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            let taken = out.len().min(3);
            self.0.read(&mut out[..taken])
        }
    }

    #[test]
    fn a_pattern_is_found_wherever_it_is() {
        for at in [0, 1, 5, STEP - 9, STEP - 3, STEP - 1, STEP, STEP + 7, 3 * STEP - 4] {
            let mut bytes = vec![b'a'; 3 * STEP + 40];
            bytes[at..at + 8].copy_from_slice(b"aaaaaaab");
            for pattern in [&b"aaaaaaab"[..], b"b"] {
                let mut window = InputWindow::new(Trickle(&bytes), 10);
                assert!(window.pass_to(pattern).unwrap());
                assert_eq!(window.at(), 10 + (at + 8 - pattern.len()) as u64);
                assert_eq!(window.peek(pattern.len()).unwrap(), pattern);
                window.pass(1).unwrap();
                assert!(!window.pass_to(pattern).unwrap());
                assert_eq!(window.at(), 10 + bytes.len() as u64);
            }
        }
    }

    proptest! {
        #[test]
        fn peeking_and_passing_gives_the_input(
            bytes in prop::collection::vec(any::<u8>(), 0..400),
            steps in prop::collection::vec((0usize..50, 0u64..40), 0..40),
        ) {
            let mut window = InputWindow::new(Trickle(&bytes), 0);
            for (peeked, passed) in steps {
                let at = window.at() as usize;
                let expected = &bytes[at..bytes.len().min(at + peeked)];
                prop_assert_eq!(window.peek(peeked).unwrap(), expected);
                let left = (bytes.len() - at) as u64;
                prop_assert_eq!(window.pass(passed).unwrap(), passed.min(left));
            }
        }
    }
}
