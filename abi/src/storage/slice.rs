//! Slices of raw stack. A sample whose unwinding did not reach the root brings one along, so that
//! the recorder can go on unwinding.
//!
//! # Invariants
//! - A slice counts only if its commit word names its table's instance and its own number, like the
//!   records of the log ([`super::log`]).
//! - More stack than a slice has room for is in several, each of which goes on where the one before
//!   it ends. Those that were stored are a prefix.
//! - The second half of a table is for first slices: a sample without any is lost to the recorder.

use crate::sync::{AtomicU64, Ordering};

/// Number of slices of each table: two megabytes in all.
pub const SLICES: usize = 256;
/// The largest number of slices of a sample. Frames of HotSpot's deoptimization, for example, have
/// more than five thousand bytes each, and its compilers are 300 calls deep.
pub const SLICES_OF_SAMPLE: usize = 8;
/// Number of stack words in a slice: few under loom, which explores every access.
pub const WORDS: usize = if cfg!(loom) { 2 } else { 1000 };
/// Number of general registers, in DWARF order.
const REGISTERS: usize = 16;

/// The head of a table's slices.
#[repr(C)]
#[derive(Debug, Default)]
pub struct SlicesHeader {
    /// Number of reserved slices, which may exceed the limit.
    pub used: AtomicU64,
    /// Number of populated slices.
    pub limit: AtomicU64,
}

/// A slice in shared memory: 8192 bytes.
#[repr(C)]
#[derive(Debug)]
pub struct SliceRecord {
    /// Instance id << 32 | number + 1, stored last.
    commit: AtomicU64,
    /// Index of the sample in the log.
    sample: AtomicU64,
    /// Generation of the mappings that it was unwound with.
    generation: AtomicU64,
    pc: AtomicU64,
    registers: [AtomicU64; REGISTERS],
    /// Address of the first word.
    start: AtomicU64,
    /// Number of words that follow.
    count: AtomicU64,
    reserved: [AtomicU64; 2],
    words: [AtomicU64; WORDS],
}
#[cfg(not(loom))]
const _: () = assert!(size_of::<SliceRecord>() == 8192);

/// The plain values of a slice without its words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Slice {
    /// Index of the sample in the log.
    pub sample: usize,
    /// Generation of the mappings that it was unwound with.
    pub generation: u64,
    /// The program counter.
    pub pc: u64,
    /// The general registers in DWARF order.
    pub registers: [u64; REGISTERS],
    /// Address of the first word.
    pub start: u64,
    /// Number of words.
    pub count: usize,
}

/// The slices of one table.
#[derive(Debug, Clone, Copy)]
pub struct Slices<'a> {
    /// The number of slices.
    pub header: &'a SlicesHeader,
    /// The slices.
    pub records: &'a [SliceRecord],
}

impl<'a> Slices<'a> {
    /// Adds slices with words from `load`, until that returns `None` or all of this `number` are
    /// full; in a table that is half full, one. False if there is no room for the first one. The
    /// caller's hazard names the table with this instance.
    pub fn put(
        &self,
        instance: u32,
        slice: &Slice,
        number: usize,
        mut load: impl FnMut(u64) -> Option<u64>,
    ) -> bool {
        // Relaxed: populated before the table became ACTIVE.
        let limit = self.header.limit.load(Ordering::Relaxed);
        // Relaxed: a hint.
        let is_half_full = self.header.used.load(Ordering::Relaxed) >= limit / 2;
        let number = if is_half_full { 1 } else { number.min(SLICES_OF_SAMPLE) };
        // Relaxed: reservation only; each record has its own commit word.
        let first = self.header.used.fetch_add(number as u64, Ordering::Relaxed);
        let mut start = slice.start;
        let mut is_stored = false;
        for number in (first..limit).take(number) {
            let Some(record) = self.records.get(number as usize) else { break };
            let mut count = 0u64;
            let mut avma = start;
            for word in &record.words {
                let Some(value) = load(avma) else { break };
                // Relaxed: the commit word publishes all fields.
                word.store(value, Ordering::Relaxed);
                (count, avma) = (count.wrapping_add(1), avma.wrapping_add(8));
            }
            let store = |word: &AtomicU64, value: u64| word.store(value, Ordering::Relaxed);
            store(&record.sample, slice.sample as u64);
            store(&record.generation, slice.generation);
            store(&record.pc, slice.pc);
            store(&record.start, start);
            store(&record.count, count);
            for (word, value) in record.registers.iter().zip(slice.registers) {
                store(word, value);
            }
            // Release: pairs with the Acquire in `all`; makes the fields above visible.
            record.commit.store(commit_word(instance, number), Ordering::Release);
            is_stored = true;
            if count < WORDS as u64 {
                break;
            }
            start = avma;
        }
        is_stored
    }

    /// Whether a quarter is used: the recorder should empty them soon.
    pub fn is_filling(&self) -> bool {
        // Relaxed: a hint.
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        load(&self.header.used) >= load(&self.header.limit).div_ceil(4)
    }

    /// Returns the slices of an instance with their words. Call it only while no hazard names the
    /// table.
    pub fn all(self, instance: u32) -> impl Iterator<Item = (Slice, &'a [AtomicU64])> {
        // Relaxed: a count; the load of the commit word acquires each record.
        let used = self.header.used.load(Ordering::Relaxed) as usize;
        let records: &'a [SliceRecord] = self.records;
        (0u64..).zip(records.iter().take(used)).filter_map(move |(number, record)| {
            // Acquire: pairs with the Release in `put`.
            let commit = record.commit.load(Ordering::Acquire);
            (commit == commit_word(instance, number)).then(|| record.read())
        })
    }

    /// Discards all slices. Call it only while no hazard names the table.
    pub fn reset(&self) {
        // Relaxed: published with the ACTIVE word.
        self.header.used.store(0, Ordering::Relaxed);
    }
}

impl Default for SliceRecord {
    fn default() -> Self {
        Self {
            commit: AtomicU64::default(),
            sample: AtomicU64::default(),
            generation: AtomicU64::default(),
            pc: AtomicU64::default(),
            registers: Default::default(),
            start: AtomicU64::default(),
            count: AtomicU64::default(),
            reserved: Default::default(),
            words: core::array::from_fn(|_| AtomicU64::default()),
        }
    }
}

impl SliceRecord {
    fn read(&self) -> (Slice, &[AtomicU64]) {
        // Relaxed: ordered by the Acquire load of the commit word.
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let count = (load(&self.count) as usize).min(WORDS);
        let slice = Slice {
            sample: load(&self.sample) as usize,
            generation: load(&self.generation),
            pc: load(&self.pc),
            registers: self.registers.each_ref().map(load),
            start: load(&self.start),
            count,
        };
        (slice, self.words.get(..count).unwrap_or(&[]))
    }
}

fn commit_word(instance: u32, number: u64) -> u64 {
    #[cfg(loom)]
    if crate::sync::planted::has(crate::sync::planted::Mistake::CommitOfAnyInstance) {
        return number.wrapping_add(1);
    }
    u64::from(instance) << 32 | number.wrapping_add(1)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::vec::Vec;

    use super::*;

    #[test]
    fn slices_of_the_instance_are_read_back_until_there_is_no_room() {
        let header = SlicesHeader::default();
        header.limit.store(2, Ordering::Relaxed);
        let records: Vec<_> = (0..3).map(|_| SliceRecord::default()).collect();
        let slices = Slices { header: &header, records: &records };
        let slice = Slice { sample: 7, generation: 3, pc: 5, start: 0x100, ..Slice::default() };
        assert!(slices.put(4, &slice, 1, |avma| (avma < 0x118).then_some(avma * 2)));
        assert!(slices.put(4, &Slice { start: 0, ..slice }, 1, Some));
        assert!(!slices.put(4, &slice, 1, Some), "no room");
        let all: Vec<_> = slices.all(4).collect();
        let words =
            |at: usize| all[at].1.iter().map(|it| it.load(Ordering::Relaxed)).collect::<Vec<_>>();
        assert_eq!(
            (all[0].0, words(0)),
            (Slice { count: 3, ..slice }, [0x200, 0x210, 0x220].into())
        );
        assert_eq!((all.len(), all[1].0.count, words(1)[WORDS - 1]), (2, WORDS, 8 * 999));
        assert_eq!(slices.all(5).count(), 0, "slices of another instance");
        slices.reset();
        assert_eq!(slices.all(4).count(), 0);
    }

    #[test]
    fn a_long_stack_is_in_several_slices_as_far_as_there_is_room() {
        let header = SlicesHeader::default();
        header.limit.store(16, Ordering::Relaxed);
        let records: Vec<_> = (0..16).map(|_| SliceRecord::default()).collect();
        let slices = Slices { header: &header, records: &records };
        let bytes = WORDS as u64 * 8;
        let stack = |len: u64| move |avma: u64| (avma < 0x100 + len).then_some(avma);
        let found = |instance| {
            let all = slices.all(instance);
            all.map(|(slice, _)| (slice.sample, slice.start, slice.count)).collect::<Vec<_>>()
        };
        let slice = |sample| Slice { sample, start: 0x100, ..Slice::default() };
        assert!(slices.put(4, &slice(1), 3, stack(bytes + 16)));
        assert!(!slices.is_filling());
        assert!(slices.put(4, &slice(2), 9, stack(bytes * 9)));
        assert!(slices.is_filling(), "a quarter");
        assert!(slices.put(4, &slice(3), 3, stack(bytes * 3)));
        let first = vec![(1, 0x100, WORDS), (1, 0x100 + bytes, 2)];
        let second = (0..8).map(|at| (2, 0x100 + at * bytes, WORDS)).collect();
        let third = vec![(3, 0x100, WORDS)];
        assert_eq!(found(4), [first, second, third].concat(), "one, where half is used");
        let more = (4..99).take_while(|sample| slices.put(4, &slice(*sample), 1, stack(8)));
        assert_eq!(more.count(), 4, "until all are used");
        slices.reset();
        assert!(slices.put(5, &slice(3), 2, stack(8)));
        assert_eq!(found(5), [(3, 0x100, 1)]);
    }
}
