//! Parses the attribute sets of thread context records, and numbers them.
//!
//! # Invariants
//! - A number stands for the same bytes while it is valid.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The largest number of remembered sets. Beyond it, all sets are dropped and the numbers continue.
const SETS_MAX: usize = 1 << 16;

/// Returns the entries of a set (key number and value), up to the first incomplete entry.
pub(super) fn entries(mut bytes: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let ([key, len], rest) = bytes.split_first_chunk()?;
        let (value, rest) = rest.split_at_checked(usize::from(*len))?;
        bytes = rest;
        Some((*key, value))
    })
}

/// Sets of attributes by their numbers, which start at 1.
#[derive(Debug, Default)]
pub(super) struct AttributeSets(Mutex<NumberedSets>);

#[derive(Debug, Default)]
struct NumberedSets {
    numbers: HashMap<Arc<[u8]>, u32>,
    sets: HashMap<u32, Arc<[u8]>>,
    last: u32,
}

impl AttributeSets {
    /// Returns the number of a set; 0 if the set is empty, or if numbers have run out.
    pub(super) fn number(&self, bytes: &[u8]) -> u32 {
        if bytes.is_empty() {
            return 0;
        }
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(number) = inner.numbers.get(bytes) {
            return *number;
        }
        let Some(number) = inner.last.checked_add(1) else { return 0 };
        if inner.sets.len() >= SETS_MAX {
            (inner.numbers, inner.sets) = Default::default();
        }
        let bytes: Arc<[u8]> = bytes.into();
        inner.last = number;
        inner.sets.insert(number, Arc::clone(&bytes));
        inner.numbers.insert(bytes, number);
        number
    }

    /// Returns the set with this number, if it is remembered.
    pub(super) fn get(&self, number: u32) -> Option<Arc<[u8]>> {
        let inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        inner.sets.get(&number).cloned()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::record::batch::contexts::unpack;

    #[test]
    fn an_incomplete_entry_ends_the_set() {
        let read = |bytes: &'static [u8]| entries(bytes).collect::<Vec<_>>();
        assert_eq!(read(b"\x00\x02/a\x01\x00\x00\x01b"), [(0, &b"/a"[..]), (1, b""), (0, b"b")]);
        assert_eq!(read(b"\x00\x02/a\x01"), [(0, &b"/a"[..])]);
        assert_eq!(read(b"\x00\x02/a\x01\x05four"), [(0, &b"/a"[..])]);
        assert_eq!(read(b""), []);
    }

    #[test]
    fn words_of_handlers_become_bytes_again() {
        let word = u64::from_le_bytes(*b"abcdefgh");
        let unpacked = |words: &[u64]| unpack(words.iter().copied());
        assert_eq!(unpacked(&[3, word]).as_deref(), Some(&b"abc"[..]));
        assert_eq!(unpacked(&[9, word, 0x69]).as_deref(), Some(&b"abcdefghi"[..]));
        assert_eq!(unpacked(&[9, word]), None, "cut off");
        assert_eq!(unpacked(&[u64::MAX, word]), None);
        assert_eq!(unpacked(&[]), None);
    }

    #[test]
    fn numbers_last_and_are_not_reused() {
        let sets = AttributeSets::default();
        let numbers = [&b"a"[..], b"b", b"a", b""].map(|bytes| sets.number(bytes));
        assert_eq!(numbers, [1, 2, 1, 0]);
        assert_eq!(sets.get(2).as_deref(), Some(&b"b"[..]));
        for number in 0..SETS_MAX as u32 {
            sets.number(&number.to_le_bytes());
        }
        assert_eq!((sets.get(1), sets.get(0)), (None, None), "forgotten");
        let again = sets.number(b"a");
        assert!(again > SETS_MAX as u32, "{again}");
        assert_eq!(sets.get(again).as_deref(), Some(&b"a"[..]));
    }

    proptest! {
        #[test]
        fn entries_are_adjacent(bytes: Vec<u8>) {
            let len: usize = entries(&bytes).map(|(_, value)| value.len() + 2).sum();
            prop_assert!(len <= bytes.len());
            prop_assert!(bytes.len() - len < 2 + 255);
        }
    }
}
