//! The part of a long list that a run of the tests tries.
//!
//! Where a test can try very many things that are alike, each run takes a part of them, which the
//! seed of the tests' random choices decides. Long runs take all.

use std::iter::StepBy;
use std::ops::Range;

/// Returns the seed: `TRACEPROF_TEST_SEED`, which `scripts/check.sh` draws and prints, or else the
/// number of this process.
pub(crate) fn seed() -> usize {
    let given = std::env::var("TRACEPROF_TEST_SEED").ok();
    let seed = given.map(|text| text.parse::<u64>().expect("TRACEPROF_TEST_SEED: a number"));
    seed.map_or_else(|| std::process::id() as usize, |seed| seed as usize)
}

/// Returns whether this is a long run.
pub(crate) fn is_long() -> bool {
    std::env::var_os("TRACEPROF_TEST_LONG").is_some()
}

/// Returns one in `parts` of the numbers, or all of them in a long run.
pub(crate) fn turn(all: Range<usize>, parts: usize) -> StepBy<Range<usize>> {
    match is_long() {
        true => all.step_by(1),
        false => (all.start + seed() % parts..all.end).step_by(parts),
    }
}

/// Returns one of these, or all of them in a long run.
pub(crate) fn one_by_turn<T: Copy, const N: usize>(all: &[T; N]) -> impl Iterator<Item = T> {
    turn(0..N, N).map(|index| all[index])
}
