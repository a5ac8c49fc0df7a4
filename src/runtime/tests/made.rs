//! Memory that a test makes by hand.

use std::panic::{RefUnwindSafe, catch_unwind};

use crate::runtime::TargetMemory;
use crate::runtime::fuzz_entry::START;
use crate::runtime::memory::read_made;

/// The memory of a process, which begins at [`START`]. Its own addresses are relative to that.
#[derive(Clone)]
pub(super) struct Image(pub(super) Vec<u8>);

impl TargetMemory for Image {
    fn read(&self, avma: u64, into: &mut [u8]) -> usize {
        read_made((START, &self.0), avma, into)
    }
}

impl Image {
    pub(super) fn put(&mut self, at: u64, bytes: &[u8]) {
        self.0[at as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    pub(super) fn word(&mut self, at: u64, word: u64) {
        self.put(at, &word.to_le_bytes());
    }

    pub(super) fn half(&mut self, at: u64, half: u32) {
        self.put(at, &half.to_le_bytes());
    }

    pub(super) fn pointer(&mut self, at: u64, to: u64) {
        self.word(at, START + to);
    }
}

/// Checks that damaged memory holds the invariants that a function checks. `label` is the seed, too.
pub(super) fn damage(pristine: &Image, label: u32, holds: impl Fn(&[u8]) + RefUnwindSafe) {
    let mut state = u64::from(label);
    for change in 0..400 {
        let mut bytes = pristine.0.clone();
        for _ in 0..change.min(5) {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = ((state >> 33) as usize % bytes.len()) & !7;
            let wild = [0, 1, u64::MAX, START + (state >> 50) / 8 * 8, state];
            let word = wild[(state >> 20) as usize % wild.len()];
            bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        assert!(catch_unwind(|| holds(&bytes)).is_ok(), "{label}, change {change}");
    }
}
