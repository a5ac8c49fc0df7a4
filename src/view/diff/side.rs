//! One side of a comparison: the stacks of what is selected of a trace, by blocks of its time.
//!
//! Invariant: memory is that of the distinct stacks, for each block, and of the names, not of the
//! samples.

use std::collections::{BTreeSet, HashMap};

use super::estimate::{BLOCKS, Series, Whole};
use crate::trace::{LazyTrace, LocationId, Objects, Sample, Window};
use crate::view::calls::{CallTree, Count, Grower, Step};
use crate::view::context::is_told;
use crate::view::error::ViewError;
use crate::view::mode::{Mode, Unit};
use crate::view::profile::{Profile, mark_of};
use crate::view::recording::Recording;
use crate::view::selection::Selected;
use crate::view::strip::bounds;

/// What is compared.
#[derive(Debug)]
pub struct Side {
    /// What it is called.
    pub(super) name: String,
    /// The names, and what the recorder said; no threads.
    pub(super) profile: Profile,
    /// Threads with a sample.
    pub(super) threads: usize,
    /// How much time of the recording is looked at.
    pub(super) length_ns: u64,
    /// All of it.
    pub(super) whole: Whole,
    /// The stacks of all threads.
    pub(super) tree: CallTree<LocationId>,
    /// By call: what ends in it, if anything does.
    pub(super) own: HashMap<usize, Series>,
}

impl Side {
    /// Reads what is selected of a trace.
    ///
    /// # Errors
    /// Those of reading; [`ViewError::NoContext`] if contexts are asked for and there are none.
    pub fn load(trace: &LazyTrace, selected: &Selected, name: &str) -> Result<Self, ViewError> {
        let recording = Recording::of(trace);
        let (from_ns, to_ns) = bounds(&recording, selected);
        let filter = &selected.filter;
        let mut growing = Grower::default();
        let mut own: HashMap<usize, Series> = HashMap::new();
        let (mut whole, mut threads) = (Whole::default(), BTreeSet::new());
        let (mut profile, mut told) = (Profile::default(), false);
        for window in &selected.windows {
            let mut add = |thread, sample: &Sample, stack: &[LocationId]| {
                told |= is_told(sample);
                if !filter.keeps(sample, stack) {
                    return;
                }
                let block = block_of(sample.time_ns, (from_ns, to_ns));
                whole.add(block, sample.weight);
                threads.insert(thread);
                let frames = stack.iter().map(|location| Step::Frame(*location));
                let steps = mark_of(sample, stack).into_iter().chain(frames);
                let wait = profile.waits.id(sample).map(Step::Wait);
                let call = growing.add(steps.chain(wait), Count::default());
                own.entry(call).or_default().add(block, sample.weight);
            };
            // As a profile is read: of all there is, each frame is decoded once.
            if *window == Window::default() {
                trace.for_each_sample_as_written(window, &mut add)?;
            } else {
                trace.for_each_sample(window, &mut add)?;
            }
        }
        profile.waits.resolve(trace)?;
        selected.check_told(&recording, told)?;
        let tree = growing.finish();
        let Objects { modules, methods, locations } = trace.load_objects()?;
        let recording = recording.showing(selected);
        let profile =
            Profile { recording, mode: filter.mode, modules, methods, locations, ..profile };
        let (name, length_ns) = (name.to_owned(), to_ns.saturating_sub(from_ns));
        Ok(Self { name, profile, threads: threads.len(), length_ns, whole, tree, own })
    }

    /// How many samples are in it.
    pub fn samples(&self) -> u64 {
        self.whole.samples
    }

    /// What it measures.
    pub fn mode(&self) -> Mode {
        self.profile.mode
    }

    /// A weight of 1 in seconds, if that is known.
    pub(super) fn weight_s(&self) -> Option<f64> {
        match Unit::new(self.profile.mode, &self.profile.recording) {
            Unit::Periods(period_ns) => Some(period_ns? / 1e9),
            Unit::Microseconds => Some(1e-6),
        }
    }

    /// How much of all weight is in a block's time, in seconds a second.
    pub(super) fn per_second(&self) -> Option<f64> {
        let block_s = self.length_ns as f64 / 1e9 / BLOCKS as f64;
        (block_s > 0.0).then_some(self.weight_s()? / block_s)
    }
}

fn block_of(time_ns: u64, (from_ns, to_ns): (u64, u64)) -> usize {
    let length_ns = to_ns.saturating_sub(from_ns).max(1);
    let at = u128::from(time_ns.saturating_sub(from_ns)) * BLOCKS as u128 / u128::from(length_ns);
    usize::try_from(at).map_or(BLOCKS - 1, |block| block.min(BLOCKS - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_equal_parts_and_hold_every_time() {
        let check = |time_ns, bounds, block| assert_eq!(block_of(time_ns, bounds), block);
        check(1000, (1000, 3000), 0);
        check(1099, (1000, 3000), 0);
        check(1100, (1000, 3000), 1);
        check(2999, (1000, 3000), BLOCKS - 1);
        // The end itself, and what a damaged trace says.
        check(3000, (1000, 3000), BLOCKS - 1);
        check(0, (1000, 3000), 0);
        check(u64::MAX, (1000, 3000), BLOCKS - 1);
        check(5, (9, 3), 0);
        check(u64::MAX, (0, u64::MAX), BLOCKS - 1);
    }
}
