//! The samples of one thread and one mode, merged if there are too many.
//!
//! # Invariants
//! - Entries are in time order.
//! - Merging changes no sum: for each stack and context, the weight and the number of samples stay.
//! - The number of entries is at most the wanted number, or twice the number of distinct pairs of
//!   stack and context.

use std::collections::HashSet;

/// The length in microseconds of the shortest cell in which samples are merged.
const CELL_US: u64 = 1_000;

/// One sample, or several of one stack and one context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct MergedSample {
    /// The time since the start of the recording. If there are several samples, the time of the
    /// last.
    pub(super) time_us: u64,
    /// The innermost call of its stack.
    pub(super) call: u32,
    /// The number of the context, 0 for none.
    pub(super) context: u32,
    pub(super) weight: u64,
    pub(super) samples: u64,
}

/// The entries of a thread.
#[derive(Debug, Default)]
pub(super) struct MergedSamples {
    all: Vec<MergedSample>,
    /// The wanted number of entries. `None` keeps all.
    ///
    /// There may be up to twice as many entries as stacks.
    most: Option<usize>,
    /// The number of entries that triggers the next merge.
    now_most: Option<usize>,
    /// Whether weights are microseconds that end at the time of the sample.
    is_wall: bool,
    /// The length in microseconds of the cells in which samples were merged, 0 if none were.
    cell_us: u64,
}

impl MergedSamples {
    pub(super) fn new(most: Option<usize>, is_wall: bool) -> Self {
        Self { most, now_most: most, is_wall, ..Self::default() }
    }

    /// Adds a sample that is not earlier than the previous ones.
    pub(super) fn add(&mut self, mut entry: MergedSample) {
        let last = self.all.last_mut();
        entry.time_us = last.as_ref().map_or(0, |last| last.time_us).max(entry.time_us);
        match last {
            // The sample continues the previous one, so merging loses nothing.
            Some(last)
                if self.most.is_some()
                    && self.is_wall
                    && is_alike(last, &entry)
                    && entry.time_us.saturating_sub(entry.weight) <= last.time_us + 1 =>
            {
                merge(last, &entry);
            }
            _ => self.all.push(entry),
        }
        if self.now_most.is_some_and(|most| self.all.len() > most.saturating_mul(2)) {
            self.thin();
        }
    }

    /// Returns the entries, and the longest time that merging may have spread one entry over.
    pub(super) fn finish(mut self) -> (Vec<MergedSample>, u64) {
        if self.cell_us > 0 {
            merge_cells(&mut self.all, self.cell_us);
        }
        if self.most.is_some_and(|most| self.all.len() > most) {
            self.thin();
        }
        (self.all, self.cell_us)
    }

    /// Merges until the number of entries is small enough.
    fn thin(&mut self) {
        let most = self.most.unwrap_or(usize::MAX);
        // New entries may be merged as much as the older ones, which is often enough.
        self.cell_us = self.cell_us.max(CELL_US);
        merge_cells(&mut self.all, self.cell_us);
        if self.all.len() <= most {
            return;
        }
        // A cell has one entry for each of its stacks, however long it is. If most entries have
        // distinct stacks, longer cells would lose times without saving entries.
        let most = most.max(distinct(&self.all).saturating_mul(2));
        self.now_most = Some(most);
        // One cell for all times has one entry per pair, so this terminates.
        while self.all.len() > most {
            self.cell_us = self.cell_us.saturating_mul(2);
            merge_cells(&mut self.all, self.cell_us);
        }
    }
}

/// Returns the number of distinct pairs of stack and context.
fn distinct(all: &[MergedSample]) -> usize {
    all.iter().map(|entry| (entry.call, entry.context)).collect::<HashSet<_>>().len()
}

fn is_alike(one: &MergedSample, other: &MergedSample) -> bool {
    (one.call, one.context) == (other.call, other.context)
}

fn merge(one: &mut MergedSample, later: &MergedSample) {
    one.time_us = one.time_us.max(later.time_us);
    one.weight = one.weight.saturating_add(later.weight);
    one.samples = one.samples.saturating_add(later.samples);
}

/// Merges the entries of one stack and one context in each time cell.
fn merge_cells(all: &mut Vec<MergedSample>, cell_us: u64) {
    let mut merged: Vec<MergedSample> = Vec::with_capacity(all.len() / 2);
    for cell in all.chunk_by_mut(|one, next| one.time_us / cell_us == next.time_us / cell_us) {
        cell.sort_by_key(|entry| (entry.call, entry.context));
        let begin = merged.len();
        for entry in cell.iter() {
            match merged.get_mut(begin..).and_then(<[MergedSample]>::last_mut) {
                Some(last) if is_alike(last, entry) => merge(last, entry),
                _ => merged.push(*entry),
            }
        }
        if let Some(cell) = merged.get_mut(begin..) {
            cell.sort_by_key(|entry| entry.time_us);
        }
    }
    *all = merged;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(time_us: u64, call: u32, weight: u64) -> MergedSample {
        MergedSample { time_us, call, context: 0, weight, samples: 1 }
    }

    #[test]
    fn few_stay_as_they_are() {
        let mut entries = MergedSamples::new(None, true);
        for at in 0..100 {
            entries.add(entry(at * 10, 1, 10));
        }
        let (all, cell_us) = entries.finish();
        assert_eq!((all.len(), cell_us), (100, 0));
    }

    #[test]
    fn merging_keeps_every_sum_and_the_order() {
        let mut entries = MergedSamples::new(Some(500), false);
        let mut expected = [(0u64, 0u64); 7];
        for at in 0..100_000u64 {
            let call = ((at * 2_654_435_761) >> 7) as u32 % 7;
            entries.add(entry(at * 100, call, at % 5));
            expected[call as usize].0 += at % 5;
            expected[call as usize].1 += 1;
        }
        let (all, cell_us) = entries.finish();
        assert!(all.len() <= 500 && all.len() > 100 && cell_us > 0, "{} {cell_us}", all.len());
        assert!(cell_us < 1_000_000, "no more than necessary: {cell_us}");
        assert!(all.is_sorted_by_key(|entry| entry.time_us));
        let mut sums = [(0u64, 0u64); 7];
        for entry in &all {
            sums[entry.call as usize].0 += entry.weight;
            sums[entry.call as usize].1 += entry.samples;
        }
        assert_eq!(sums, expected);
    }

    #[test]
    fn more_stacks_than_there_should_be_entries_stay() {
        let mut entries = MergedSamples::new(Some(10), false);
        for at in 0..10_000u64 {
            entries.add(entry(at, at as u32 % 100, 1));
        }
        let (all, _) = entries.finish();
        // At most two entries per stack: the last two cells may meet in the middle.
        assert!((100..=200).contains(&all.len()), "{}", all.len());
        assert_eq!(all.iter().map(|entry| entry.samples).sum::<u64>(), 10_000);
    }

    /// A longer cell would merge hardly any entries.
    #[test]
    fn where_most_stacks_are_distinct_times_stay() {
        let mut entries = MergedSamples::new(Some(100), false);
        for at in 0..20_000u32 {
            // Every tenth sample has the same stack. The others have distinct stacks.
            entries.add(entry(u64::from(at) * 500, if at % 10 == 0 { 0 } else { at }, 1));
        }
        let (all, cell_us) = entries.finish();
        assert_eq!(cell_us, CELL_US, "of ten seconds");
        assert!((18_000..=20_000).contains(&all.len()), "{}", all.len());
        assert_eq!(all.iter().map(|entry| entry.samples).sum::<u64>(), 20_000);
    }

    /// Few stacks are merged as much as necessary, however many samples each has.
    #[test]
    fn entries_are_no_more_than_twice_the_stacks() {
        let mut entries = MergedSamples::new(Some(10), false);
        for at in 0..50_000u64 {
            entries.add(entry(at * 700, (at % 1_000) as u32, 1));
        }
        let (all, cell_us) = entries.finish();
        assert!((1_000..=2_000).contains(&all.len()), "{}", all.len());
        assert!(cell_us < 35_000_000, "not all of the time: {cell_us}");
    }

    #[test]
    fn continuous_time_is_merged_without_loss() {
        let mut entries = MergedSamples::new(Some(3), true);
        for (time_us, call, weight) in [(100, 1, 100), (200, 1, 100), (400, 1, 100), (500, 2, 100)]
        {
            entries.add(entry(time_us, call, weight));
        }
        let (all, cell_us) = entries.finish();
        let seen: Vec<_> = all.iter().map(|it| (it.time_us, it.weight, it.samples)).collect();
        assert_eq!((seen, cell_us), (vec![(200, 200, 2), (400, 100, 1), (500, 100, 1)], 0));
    }

    #[test]
    fn times_never_go_backwards() {
        let mut entries = MergedSamples::new(None, false);
        for time_us in [5, 3, 9] {
            entries.add(entry(time_us, 1, 1));
        }
        assert_eq!(entries.finish().0.iter().map(|it| it.time_us).collect::<Vec<_>>(), [5, 5, 9]);
    }
}
