//! Finds the heaviest call traces of a recording in bounded memory.
//!
//! A stack has another id in each collection, since each table begins empty. So weights are added
//! up by the frames, whatever the epoch of the mappings. There are more counters than requested
//! traces. A stack without a counter takes over the lightest counter (the "space saving"
//! algorithm). It inherits the weight of that counter, and records it as the possible excess of its
//! own weight. With N counters, a stack with more than the Nth part of all weight always has one.

use std::cmp::Reverse;
use std::collections::HashMap;

use traceprof_abi::unwind::trace_end;

use crate::record::batch::Batch;
use crate::record::batch::traces::hash;
use crate::record::store::liveness::{Heavy, LivenessChecker, PreserveSet};

/// The number of counters for each requested trace.
const SPARE: usize = 8;
/// The least number of counters.
const LEAST: usize = 256;

/// Preserves the `wanted` heaviest call traces.
pub(crate) struct Heaviest {
    wanted: usize,
    counters: Vec<StackCounter>,
    /// Positions in `counters` by the hash of the stack.
    positions: HashMap<u64, usize>,
    /// The weights of the counters, reused to find the least weight among the heaviest.
    weights: Vec<u64>,
}

#[derive(Debug, Clone, Copy)]
struct StackCounter {
    hash: u64,
    /// The id to keep: the trace's id in the collection in which it became one of the heaviest.
    id: u64,
    weight: u64,
    /// The part of the weight that may belong to another stack.
    excess: u64,
    is_kept: bool,
}

impl Heaviest {
    /// Makes a checker that preserves `wanted` traces.
    pub(crate) fn new(wanted: usize) -> Self {
        let room = (wanted * SPARE).max(LEAST);
        Self {
            wanted,
            counters: Vec::with_capacity(room),
            // A key is added before the one that it replaces is removed.
            positions: HashMap::with_capacity(2 * room),
            weights: Vec::with_capacity(room),
        }
    }

    fn add(&mut self, hash: u64, id: u64, weight: u64) {
        if let Some(position) = self.positions.get(&hash) {
            let counter = &mut self.counters[*position];
            counter.weight += weight;
            if !counter.is_kept {
                counter.id = id;
            }
            return;
        }
        let counter = StackCounter { hash, id, weight, excess: 0, is_kept: false };
        if self.counters.len() < self.counters.capacity() {
            self.positions.insert(hash, self.counters.len());
            self.counters.push(counter);
            return;
        }
        let lightest = self.counters.iter_mut().enumerate().min_by_key(|(_, it)| it.weight);
        if let Some((position, lightest)) = lightest {
            self.positions.remove(&lightest.hash);
            self.positions.insert(hash, position);
            let excess = lightest.weight;
            *lightest = StackCounter { weight: excess + weight, excess, ..counter };
        }
    }

    /// Keeps as many of the heaviest as requested.
    fn choose(&mut self) {
        self.weights.clear();
        self.weights.extend(self.counters.iter().map(|counter| counter.weight));
        self.weights.sort_unstable_by(|a, b| b.cmp(a));
        let least = match self.wanted.checked_sub(1) {
            Some(last) => self.weights.get(last).copied().unwrap_or(0),
            None => u64::MAX,
        };
        let above = self.weights.iter().filter(|weight| **weight > least).count();
        // Among counters with the least weight, those that are kept already come first.
        let mut left = self.wanted.saturating_sub(above);
        for only_kept in [true, false] {
            for counter in &mut self.counters {
                if counter.weight > least {
                    counter.is_kept = true;
                } else if counter.weight < least {
                    counter.is_kept = false;
                } else if counter.is_kept == only_kept {
                    // The second pass leaves alone the counters that the first one has kept.
                    counter.is_kept = left > 0;
                    left = left.saturating_sub(1);
                }
            }
        }
    }
}

impl LivenessChecker for Heaviest {
    fn mark(&mut self, collected: &Batch, live: &mut PreserveSet) {
        for entry in collected.traces.entries().iter().filter(|entry| entry.weight > 0) {
            let hash = hash(collected.traces.frames_of(entry), u32::from(trace_end(entry.flags)));
            self.add(hash, entry.id, entry.weight);
        }
        self.choose();
        for counter in self.counters.iter().filter(|counter| counter.is_kept) {
            live.insert(counter.id);
        }
    }

    fn heaviest(&self) -> Vec<Heavy> {
        let kept = self.counters.iter().filter(|counter| counter.is_kept);
        let heavy = |it: &StackCounter| Heavy { id: it.id, weight: it.weight, excess: it.excess };
        let mut kept: Vec<Heavy> = kept.map(heavy).collect();
        kept.sort_by_key(|heavy| (Reverse(heavy.weight), heavy.id));
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::batch::traces::TraceEntry;

    /// Marks the traces of one collection, given by id, frame and weight.
    fn mark(heaviest: &mut Heaviest, traces: &[(u64, u64, u64)]) -> PreserveSet {
        let mut batch = Batch::default();
        for (id, frame, weight) in traces {
            batch.traces.push(TraceEntry::new(*id, 0, *weight), [*frame].into_iter());
        }
        batch.sort();
        let mut live = PreserveSet::with_room(100);
        heaviest.mark(&batch, &mut live);
        live
    }

    fn kept(live: &PreserveSet, ids: impl IntoIterator<Item = u64>) -> Vec<u64> {
        ids.into_iter().filter(|id| live.contains(*id)).collect()
    }

    #[test]
    fn the_heaviest_keep_their_first_ids() {
        let mut heaviest = Heaviest::new(2);
        let live = mark(&mut heaviest, &[(11, 1, 5), (12, 2, 9), (13, 3, 7)]);
        assert_eq!(kept(&live, 11..14), [12, 13]);
        // The same stacks are in the next table, together with the preserved traces.
        let live =
            mark(&mut heaviest, &[(12, 2, 0), (13, 3, 0), (21, 1, 1), (22, 2, 1), (23, 3, 1)]);
        assert_eq!(kept(&live, 11..24), [12, 13]);
        // The first stack catches up: its old id is lost, and its id in this table is kept.
        let live = mark(&mut heaviest, &[(12, 2, 0), (13, 3, 0), (31, 1, 4), (32, 2, 1)]);
        assert_eq!(kept(&live, 11..34), [12, 31]);
        let live = mark(&mut heaviest, &[(12, 2, 0), (31, 1, 0), (41, 1, 2)]);
        assert_eq!(kept(&live, 11..44), [12, 31]);
        let heavy = |id, weight| Heavy { id, weight, excess: 0 };
        assert_eq!(heaviest.heaviest(), [heavy(31, 12), heavy(12, 11)]);
    }

    #[test]
    fn never_more_are_kept_than_requested() {
        for wanted in 0..6 {
            let mut heaviest = Heaviest::new(wanted);
            for round in 0..3u64 {
                let traces: Vec<_> =
                    (0..10).map(|frame| (100 * round + frame + 2, frame, 1)).collect();
                let live = mark(&mut heaviest, &traces);
                let first = kept(&live, 2..12);
                assert_eq!(first.len(), wanted, "of equal weights, the first ones stay: {first:?}");
            }
            assert_eq!(heaviest.heaviest().len(), wanted);
        }
    }

    #[test]
    fn heavy_stacks_are_found_among_many_light_ones() {
        let mut heaviest = Heaviest::new(3);
        let mut light = 10_000;
        for round in 0..100u64 {
            let mut traces: Vec<_> =
                (1..=3).map(|frame| (round * 1000 + frame + 2, frame, 20)).collect();
            traces.extend((0..100).map(|number| {
                light += 1;
                (round * 1000 + number + 10, light, 1)
            }));
            mark(&mut heaviest, &traces);
        }
        let found = heaviest.heaviest();
        let hashes: Vec<u64> = (1..=3u64).map(|frame| hash(&[frame], 0)).collect();
        let is_one = |it: &Heavy| {
            let counter = heaviest.counters.iter().find(|counter| counter.id == it.id).unwrap();
            hashes.contains(&counter.hash)
        };
        assert!(found.len() == 3 && found.iter().all(is_one), "{found:?}");
        for heavy in found {
            let least = heavy.weight - heavy.excess;
            assert!(least <= 2000 && heavy.weight >= 2000, "{heavy:?}");
        }
        assert_eq!(heaviest.positions.len(), heaviest.counters.len());
    }
}
