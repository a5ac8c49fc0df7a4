//! Collected call traces in flat memory that is used again and again.
//!
//! # Invariants
//! - A collection that was handed on is read only: any number of threads may process it at once.
//! - Once [`Collection::seal`]ed, each id is there once, and is found by it.

use std::collections::HashMap;
use std::hash::Hash;
use std::ops::Range;

/// Traces that a collection keeps room for, however few there are.
const ENTRIES_LEAST: usize = 1024;
/// The same of frames.
const FRAMES_LEAST: usize = ENTRIES_LEAST * 32;

/// A call trace of a collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TraceEntry {
    /// Its 64-bit id.
    pub(crate) id: u64,
    /// Sum of the weights put since the collection before.
    pub(crate) weight: u64,
    /// End reason of the unwinding.
    pub(crate) flags: u32,
    /// It is not new: a collection before had it, and it was kept.
    pub(crate) preserved: bool,
    start: u32,
    len: u32,
}

impl TraceEntry {
    /// A new trace; its frames are those it is pushed with.
    pub(crate) fn new(id: u64, flags: u32, weight: u64) -> Self {
        Self { id, weight, flags, preserved: false, start: 0, len: 0 }
    }

    /// The same trace in a later collection.
    pub(crate) fn as_preserved(&self) -> Self {
        Self { preserved: true, weight: 0, ..*self }
    }

    /// The same trace under another id.
    pub(crate) fn with_id(&self, id: u64) -> Self {
        Self { id, ..*self }
    }

    /// How many frames it has.
    pub(crate) fn depth(&self) -> usize {
        self.len as usize
    }

    fn place(&self) -> Range<usize> {
        self.start as usize..self.start as usize + self.len as usize
    }
}

/// Call traces, each id once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Collection {
    /// Frame words of all traces, leaf first.
    frames: Vec<u64>,
    entries: Vec<TraceEntry>,
}

impl Collection {
    /// All traces, by id once sealed.
    pub(crate) fn entries(&self) -> &[TraceEntry] {
        &self.entries
    }

    /// Frame words of all traces together.
    pub(crate) fn words(&self) -> usize {
        self.frames.len()
    }

    /// Bytes of memory that it has.
    pub(crate) fn bytes(&self) -> usize {
        self.frames.capacity() * size_of::<u64>()
            + self.entries.capacity() * size_of::<TraceEntry>()
    }

    /// Forgets traces that are not new, and gives back the memory that is not needed.
    pub(crate) fn keep_new(&mut self) {
        self.entries.retain(|entry| !entry.preserved);
        self.entries.shrink_to_fit();
        let mut frames = Vec::with_capacity(self.entries.iter().map(TraceEntry::depth).sum());
        for entry in &mut self.entries {
            let start = frames.len() as u32;
            frames.extend_from_slice(self.frames.get(entry.place()).unwrap_or(&[]));
            entry.start = start;
        }
        self.frames = frames;
    }

    /// Adds a trace. False if there is no room, which means a table that lies about its length.
    pub(crate) fn push(&mut self, entry: TraceEntry, frames: impl Iterator<Item = u64>) -> bool {
        let before = self.frames.len();
        self.frames.extend(frames);
        let place = (u32::try_from(before), u32::try_from(self.frames.len()));
        let (Ok(start), Ok(end)) = place else {
            self.frames.truncate(before);
            return false;
        };
        self.entries.push(TraceEntry { start, len: end - start, ..entry });
        true
    }

    /// Adds a trace of another collection.
    pub(crate) fn copy(&mut self, other: &Self, entry: TraceEntry) -> bool {
        self.push(entry, other.frames_of(&entry).iter().copied())
    }

    /// Puts the traces in order. Of two with one id the preserved one counts: its frames are the
    /// recorder's own copy.
    pub(crate) fn seal(&mut self) {
        self.entries.sort_unstable_by_key(|entry| (entry.id, !entry.preserved, entry.start));
        self.entries.dedup_by_key(|entry| entry.id);
    }

    /// The trace with this id. Only of a sealed collection.
    pub(crate) fn get(&self, id: u64) -> Option<&TraceEntry> {
        let found = self.entries.binary_search_by_key(&id, |entry| entry.id).ok()?;
        self.entries.get(found)
    }

    /// Takes so much from a trace's weight. Only of a sealed collection.
    pub(crate) fn lighten(&mut self, id: u64, weight: u64) {
        if let Ok(found) = self.entries.binary_search_by_key(&id, |entry| entry.id)
            && let Some(entry) = self.entries.get_mut(found)
        {
            entry.weight = entry.weight.saturating_sub(weight);
        }
    }

    /// The frame words of one of its traces, leaf first.
    pub(crate) fn frames_of(&self, entry: &TraceEntry) -> &[u64] {
        self.frames.get(entry.place()).unwrap_or(&[])
    }

    /// Empties it. The memory stays, but for what only a burst had needed.
    pub(crate) fn clear(&mut self) {
        empty(&mut self.frames, FRAMES_LEAST);
        empty(&mut self.entries, ENTRIES_LEAST);
    }
}

/// Clears a vector. One of which less than an eighth was used gives half of its memory back, down
/// to room for `least`: a burst is forgotten after a few turns, steady use allocates nothing.
pub(crate) fn empty<T>(vector: &mut Vec<T>, least: usize) {
    let (used, room) = (vector.len(), vector.capacity());
    vector.clear();
    if room > least && used < room / 8 {
        vector.shrink_to((room / 2).max(least));
    }
}

/// The same of a map.
pub(crate) fn empty_map<K: Eq + Hash, V>(map: &mut HashMap<K, V>, least: usize) {
    let (used, room) = (map.len(), map.capacity());
    map.clear();
    if room > 2 * least && used < room / 8 {
        map.shrink_to((room / 2).max(least));
    }
}

/// Call traces that are told apart by their frames; their ids are the order in which they came.
#[derive(Debug, Default)]
pub(crate) struct Distinct {
    traces: Collection,
    by_hash: HashMap<u64, u32>,
}

impl Distinct {
    /// The number of the trace with these frames and flags, which is added if it is new.
    pub(crate) fn number(&mut self, frames: &[u64], flags: u32) -> u32 {
        let mut hash = hash(frames, flags);
        // As long as other traces stand where this one would: each has one place, so this ends.
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

    /// Adds to a trace's weight.
    pub(crate) fn weigh(&mut self, number: u32, weight: u64) {
        if let Some(entry) = self.traces.entries.get_mut(number as usize) {
            entry.weight += weight;
        }
    }

    /// The traces by their numbers.
    pub(crate) fn traces(&self) -> &Collection {
        &self.traces
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        empty_map(&mut self.by_hash, ENTRIES_LEAST);
        self.traces.clear();
    }
}

/// Hash of a stack, the same for the same frames and flags over a whole recording.
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
    fn of_two_with_one_id_the_preserved_one_counts() {
        let other = collection(&[(3, &[1])]);
        let mut both = collection(&[(3, &[9, 9])]);
        assert!(both.copy(&other, other.entries()[0].as_preserved()));
        both.seal();
        let entry = both.get(3).unwrap();
        assert!(entry.preserved && both.frames_of(entry) == [1], "{both:?}");
    }

    #[test]
    fn what_is_new_is_kept_with_its_frames_and_without_the_memory_of_the_rest() {
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
        // Another trace stands where the hash points to.
        let taken = hash(&[77], 0);
        distinct.by_hash.insert(taken, 1);
        assert_eq!((distinct.number(&[77], 0), distinct.number(&[77], 0)), (4, 4));
        distinct.weigh(4, 3);
        assert_eq!(distinct.traces().entries()[4].weight, 3);
        distinct.clear();
        assert_eq!(distinct.number(&[77], 0), 0);
    }

    #[test]
    fn a_burst_is_forgotten_and_steady_use_is_not() {
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
