//! Collected call traces in flat memory that is reused.
//!
//! # Invariants
//! - A collection is immutable once it is passed on, so any number of threads may read it
//!   concurrently.
//! - In a [sealed](Collection::seal) collection each id is unique, and lookups by id work.

use std::collections::HashMap;
use std::hash::Hash;
use std::ops::Range;

/// The number of traces that a collection always keeps room for.
const ENTRIES_LEAST: usize = 1024;
/// The number of frames that a collection always keeps room for.
const FRAMES_LEAST: usize = ENTRIES_LEAST * 32;

/// A call trace of a collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TraceEntry {
    /// The trace's id.
    pub(crate) id: u64,
    /// The sum of the weights added since the previous collection.
    pub(crate) weight: u64,
    /// The reason why unwinding ended, and the epoch of its tables.
    pub(crate) flags: u32,
    /// Whether the trace is preserved from an earlier collection, and not new.
    pub(crate) preserved: bool,
    start: u32,
    len: u32,
}

impl TraceEntry {
    /// Makes a new trace; [`Collection::push`] adds its frames.
    pub(crate) fn new(id: u64, flags: u32, weight: u64) -> Self {
        Self { id, weight, flags, preserved: false, start: 0, len: 0 }
    }

    /// Returns the trace as a preserved one, without weight, for a later collection.
    pub(crate) fn as_preserved(&self) -> Self {
        Self { preserved: true, weight: 0, ..*self }
    }

    /// Returns the trace with another id.
    pub(crate) fn with_id(&self, id: u64) -> Self {
        Self { id, ..*self }
    }

    /// Returns the number of frames.
    pub(crate) fn depth(&self) -> usize {
        self.len as usize
    }

    /// Returns the range of its frames in [`Collection::frames`].
    fn frame_range(&self) -> Range<usize> {
        self.start as usize..self.start as usize + self.len as usize
    }
}

/// Call traces with unique ids.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Collection {
    /// Frame words of all traces, leaf first.
    frames: Vec<u64>,
    entries: Vec<TraceEntry>,
}

impl Collection {
    /// Returns all traces, sorted by id once sealed.
    pub(crate) fn entries(&self) -> &[TraceEntry] {
        &self.entries
    }

    /// Returns the number of frame words of all traces together.
    pub(crate) fn words(&self) -> usize {
        self.frames.len()
    }

    /// Returns the bytes of memory allocated.
    pub(crate) fn bytes(&self) -> usize {
        self.frames.capacity() * size_of::<u64>()
            + self.entries.capacity() * size_of::<TraceEntry>()
    }

    /// Removes traces that are not new, and frees unused memory.
    pub(crate) fn keep_new(&mut self) {
        self.entries.retain(|entry| !entry.preserved);
        self.entries.shrink_to_fit();
        let mut frames = Vec::with_capacity(self.entries.iter().map(TraceEntry::depth).sum());
        for entry in &mut self.entries {
            let start = frames.len() as u32;
            frames.extend_from_slice(self.frames.get(entry.frame_range()).unwrap_or(&[]));
            entry.start = start;
        }
        self.frames = frames;
    }

    /// Adds a trace, and returns false if frame offsets would exceed 32 bits.
    ///
    /// That happens only if a corrupt table claims a wrong length.
    pub(crate) fn push(&mut self, entry: TraceEntry, frames: impl Iterator<Item = u64>) -> bool {
        let before = self.frames.len();
        self.frames.extend(frames);
        let range = (u32::try_from(before), u32::try_from(self.frames.len()));
        let (Ok(start), Ok(end)) = range else {
            self.frames.truncate(before);
            return false;
        };
        self.entries.push(TraceEntry { start, len: end - start, ..entry });
        true
    }

    /// Adds a trace from another collection; see [`Self::push`] for the result.
    pub(crate) fn copy(&mut self, other: &Self, entry: TraceEntry) -> bool {
        self.push(entry, other.frames_of(&entry).iter().copied())
    }

    /// Sorts the traces by id and removes duplicates.
    ///
    /// Of two traces with the same id the preserved one stays: its frames are the recorder's own
    /// copy.
    pub(crate) fn seal(&mut self) {
        self.entries.sort_unstable_by_key(|entry| (entry.id, !entry.preserved, entry.start));
        self.entries.dedup_by_key(|entry| entry.id);
    }

    /// Returns the trace with this id; the collection must be sealed.
    pub(crate) fn get(&self, id: u64) -> Option<&TraceEntry> {
        let found = self.entries.binary_search_by_key(&id, |entry| entry.id).ok()?;
        self.entries.get(found)
    }

    /// Subtracts from a trace's weight; the collection must be sealed.
    pub(crate) fn lighten(&mut self, id: u64, weight: u64) {
        if let Ok(found) = self.entries.binary_search_by_key(&id, |entry| entry.id)
            && let Some(entry) = self.entries.get_mut(found)
        {
            entry.weight = entry.weight.saturating_sub(weight);
        }
    }

    /// Returns the frame words of a trace in this collection, leaf first.
    pub(crate) fn frames_of(&self, entry: &TraceEntry) -> &[u64] {
        self.frames.get(entry.frame_range()).unwrap_or(&[])
    }

    /// Removes all traces; see [`empty`] for the memory.
    pub(crate) fn clear(&mut self) {
        empty(&mut self.frames, FRAMES_LEAST);
        empty(&mut self.entries, ENTRIES_LEAST);
    }
}

/// Clears a vector, and shrinks its capacity slowly after a burst.
///
/// If less than an eighth of the capacity was used, half of it is freed, down to `least` elements.
/// The memory of a burst is therefore freed after a few turns, and steady use allocates nothing.
pub(crate) fn empty<T>(vector: &mut Vec<T>, least: usize) {
    let (used, room) = (vector.len(), vector.capacity());
    vector.clear();
    if room > least && used < room / 8 {
        vector.shrink_to((room / 2).max(least));
    }
}

/// Clears a map as [`empty`] clears a vector.
pub(crate) fn empty_map<K: Eq + Hash, V>(map: &mut HashMap<K, V>, least: usize) {
    let (used, room) = (map.len(), map.capacity());
    map.clear();
    if room > 2 * least && used < room / 8 {
        map.shrink_to((room / 2).max(least));
    }
}

/// Call traces that are distinguished by frames and flags, with consecutive ids.
#[derive(Debug, Default)]
pub(crate) struct Distinct {
    traces: Collection,
    by_hash: HashMap<u64, u32>,
}

impl Distinct {
    /// Returns the number of the trace with these frames and flags, and adds a new one.
    pub(crate) fn number(&mut self, frames: &[u64], flags: u32) -> u32 {
        let mut hash = hash(frames, flags);
        // Probes linearly past other traces. Each trace has exactly one entry, so the loop ends.
        while let Some(number) = self.by_hash.get(&hash) {
            let entry = &self.traces.entries[*number as usize];
            if entry.flags == flags && self.traces.frames_of(entry) == frames {
                return *number;
            }
            hash = hash.wrapping_add(1);
        }
        let number = self.traces.entries.len() as u32;
        let entry = TraceEntry::new(u64::from(number), flags, 0);
        if self.traces.push(entry, frames.iter().copied()) {
            self.by_hash.insert(hash, number);
        }
        number
    }

    /// Adds to the weight of a trace.
    pub(crate) fn weigh(&mut self, number: u32, weight: u64) {
        if let Some(entry) = self.traces.entries.get_mut(number as usize) {
            entry.weight += weight;
        }
    }

    /// Returns the traces, indexed by their numbers.
    pub(crate) fn traces(&self) -> &Collection {
        &self.traces
    }

    /// Removes all traces.
    pub(crate) fn clear(&mut self) {
        empty_map(&mut self.by_hash, ENTRIES_LEAST);
        self.traces.clear();
    }
}

/// Returns the hash of frames and flags, which is stable over a complete recording.
pub(crate) fn hash(frames: &[u64], flags: u32) -> u64 {
    const K: u64 = 0x9E37_79B9_7F4A_7C15;
    frames.iter().fold(u64::from(flags) ^ frames.len() as u64, |state, frame| {
        let product = u128::from(state ^ frame) * u128::from(K);
        (product as u64 ^ (product >> 64) as u64).wrapping_add(K)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collection(traces: &[(u64, &[u64])]) -> Collection {
        let mut collection = Collection::default();
        for (id, frames) in traces {
            assert!(collection.push(TraceEntry::new(*id, 7, 1), frames.iter().copied()));
        }
        collection.seal();
        collection
    }

    #[test]
    fn traces_are_found_by_their_ids() {
        let collection = collection(&[(9, &[1, 2]), (3, &[]), (5, &[4]), (3, &[8, 8])]);
        let frames = |id| collection.get(id).map(|entry| collection.frames_of(entry));
        assert_eq!([frames(9), frames(3), frames(5)], [Some(&[1, 2][..]), Some(&[]), Some(&[4])]);
        assert_eq!((frames(4), collection.entries().len()), (None, 3));
    }

    #[test]
    fn of_two_traces_with_the_same_id_the_preserved_one_stays() {
        let other = collection(&[(3, &[1])]);
        let mut both = collection(&[(3, &[9, 9])]);
        assert!(both.copy(&other, other.entries()[0].as_preserved()));
        both.seal();
        let entry = both.get(3).unwrap();
        assert!(entry.preserved && both.frames_of(entry) == [1], "{both:?}");
    }

    #[test]
    fn new_traces_stay_with_their_frames_and_other_memory_is_freed() {
        let mut collection = Collection::default();
        for id in 0..1000 {
            let entry = TraceEntry::new(id, 7, 1);
            let entry = if id % 100 == 50 { entry } else { entry.as_preserved() };
            assert!(collection.push(entry, [id, id + 1, id + 2].into_iter()));
        }
        collection.seal();
        let whole = collection.clone();
        collection.keep_new();
        let ids: Vec<u64> = collection.entries().iter().map(|entry| entry.id).collect();
        assert_eq!(ids, (0..10).map(|number| number * 100 + 50).collect::<Vec<_>>());
        for id in ids {
            let frames = |of: &Collection| of.frames_of(of.get(id).unwrap()).to_vec();
            assert_eq!(frames(&collection), frames(&whole));
        }
        assert_eq!(collection.words(), 30);
        assert!(collection.bytes() < whole.bytes() / 50, "{}", collection.bytes());
    }

    #[test]
    fn equal_stacks_have_one_number() {
        let mut distinct = Distinct::default();
        let stacks: [(&[u64], u32); 6] =
            [(&[1, 2], 0), (&[1, 2], 1), (&[2, 1], 0), (&[1, 2], 0), (&[], 0), (&[], 0)];
        let numbers = stacks.map(|(frames, flags)| distinct.number(frames, flags));
        assert_eq!(numbers, [0, 1, 2, 0, 3, 3]);
        // Another trace occupies the slot of this hash.
        let taken = hash(&[77], 0);
        distinct.by_hash.insert(taken, 1);
        assert_eq!((distinct.number(&[77], 0), distinct.number(&[77], 0)), (4, 4));
        distinct.weigh(4, 3);
        assert_eq!(distinct.traces().entries()[4].weight, 3);
        distinct.clear();
        assert_eq!(distinct.number(&[77], 0), 0);
    }

    #[test]
    fn the_memory_of_a_burst_is_freed_and_that_of_steady_use_stays() {
        let mut vector: Vec<u8> = Vec::with_capacity(1 << 20);
        for _ in 0..40 {
            vector.extend([0; 100]);
            empty(&mut vector, 64);
        }
        let room = vector.capacity();
        assert!((100..=800).contains(&room), "{room}");
        vector.extend([0; 100]);
        empty(&mut vector, 64);
        assert_eq!(vector.capacity(), room);
    }
}
