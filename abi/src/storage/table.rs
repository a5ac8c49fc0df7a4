//! A trace table: an open-addressed hash table of traces over a bump arena, and a sample log.
//!
//! # Invariants
//! - A slot word is 0 or names a complete entry. The entry's words are stored before the one
//!   compare-and-swap that publishes it, and never change afterwards (except for the weight).
//! - Ids of new traces count up from 0 within an instance. A file that stores them in that order
//!   need not store the ids. Nothing finds a trace by its id.
//! - Traces are equal if all their frames are; the hash only finds candidates. For a preserved
//!   trace the ids must be equal, too.
//! - The reader checks every offset against the arena's length, because the target may have written
//!   it.

use super::log::{Sample, SampleRecord};
use super::{DROPPED_TRACE_ID, Dropped};
use crate::sync::{AtomicU64, Ordering};

/// Number of slots of a table, a power of two.
pub const SLOTS: usize = 65536;
/// Number of words in the arena.
pub const ARENA_WORDS: usize = 4 << 20;
/// Number of records in the sample log.
pub const LOG_RECORDS: usize = 131_072;
/// Maximum number of slots tried before a trace is dropped.
pub const PROBES_MAX: usize = 64;
/// Number of words in front of a trace's frames: id, hash, flags << 32 | frame count, weight.
pub const ENTRY_HEADER: usize = 4;

/// Offset of the slots within a table.
pub const SLOTS_OFFSET: u64 = 0x1000;
/// Offset of the arena within a table.
pub const ARENA_OFFSET: u64 = 0x10_0000;
/// Offset of the log within a table.
pub const LOG_OFFSET: u64 = 0x280_0000;
/// Offset of the slices' header within a table.
pub const SLICES_OFFSET: u64 = 0x380_0000;
/// Distance from the slices' header to the first slice.
pub const SLICES_HEADER: u64 = 0x1000;
#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<TableHeader>() as u64 <= SLOTS_OFFSET);
    assert!(SLOTS_OFFSET + SLOTS as u64 * 8 <= ARENA_OFFSET);
    assert!(ARENA_OFFSET + ARENA_WORDS as u64 * 8 <= LOG_OFFSET);
    assert!(LOG_OFFSET + LOG_RECORDS as u64 * 128 <= SLICES_OFFSET);
    assert!(size_of::<super::slice::SlicesHeader>() as u64 <= SLICES_HEADER);
    assert!(
        SLICES_OFFSET + SLICES_HEADER + super::slice::SLICES as u64 * 8192
            <= crate::layout::TRACE_TABLE_STRIDE
    );
};

/// The header of a table.
#[repr(C)]
#[derive(Debug, Default)]
pub struct TableHeader {
    /// Instance id: the upper half of the trace ids of this table. At least 1 when ACTIVE.
    pub instance: AtomicU64,
    /// Number of reserved words in the arena, which may exceed the limit.
    pub arena_used: AtomicU64,
    /// Number of populated words in the arena.
    pub arena_limit: AtomicU64,
    /// Number of reserved records in the log, which may exceed the limit.
    pub log_used: AtomicU64,
    /// Number of populated records in the log.
    pub log_limit: AtomicU64,
    /// Number of published traces.
    pub traces: AtomicU64,
    /// Number of ids given to new traces: the lower half of the next id.
    pub numbers: AtomicU64,
}

/// The outcome of a `put`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Put {
    /// The trace is new in this table.
    New(u64),
    /// The table had the trace already.
    Hit(u64),
    /// There was no room. The id is [`DROPPED_TRACE_ID`].
    Dropped(Dropped),
}

impl Put {
    /// Returns the trace's id.
    pub fn id(self) -> u64 {
        match self {
            Self::New(id) | Self::Hit(id) => id,
            Self::Dropped(_) => DROPPED_TRACE_ID,
        }
    }
}

/// A trace as the recorder reads it.
#[derive(Debug, Clone, Copy)]
pub struct Trace<'a> {
    /// Its 64-bit id.
    pub id: u64,
    /// The flags that the caller passed to `put`: the end reason of the unwinding.
    pub flags: u32,
    /// Sum of the weights of all puts.
    pub weight: u64,
    /// Frame words, leaf first.
    pub frames: &'a [AtomicU64],
}

/// One table, borrowed from a segment. `slots.len()` is a power of two.
#[derive(Debug, Clone, Copy)]
pub struct TraceTable<'a> {
    /// The counts and limits.
    pub header: &'a TableHeader,
    /// Words of tag << 32 | arena offset + 1, or 0.
    pub slots: &'a [AtomicU64],
    /// Entries.
    pub arena: &'a [AtomicU64],
    /// Samples.
    pub log: &'a [SampleRecord],
}

impl<'a> TraceTable<'a> {
    /// Finds or inserts a trace, and adds `weight` to its sum. Wait-free except for the bounded
    /// probing.
    ///
    /// Equal traces get equal ids as long as the instance lasts. Where several preserved traces are
    /// equal (their ids are of several instances), `put` returns the id of the first one in the
    /// table. Slots fill up in the order of the probes and none is emptied, so the first match
    /// stays the first.
    pub fn put(&self, frames: &[AtomicU64], flags: u32, weight: u32) -> Put {
        self.put_probed(frames, flags, weight).0
    }

    /// Like [`Self::put`], and also returns whether the first probed slot held another trace.
    pub fn put_probed(&self, frames: &[AtomicU64], flags: u32, weight: u32) -> (Put, bool) {
        self.insert(frames, flags, u64::from(weight), None)
    }

    /// Inserts a preserved trace under its earlier id. If the table has a trace with this id
    /// already, adds the weight to it. An equal trace with another id is another trace, because its
    /// samples name that id. Only the recorder calls this.
    pub fn put_preserved(&self, frames: &[u64], flags: u32, id: u64, weight: u64) -> Put {
        self.insert(frames, flags, weight, Some(id)).0
    }

    fn insert<W: Word>(
        &self,
        frames: &[W],
        flags: u32,
        weight: u64,
        preserved: Option<u64>,
    ) -> (Put, bool) {
        let hash = hash(frames, flags);
        let mask = self.slots.len().wrapping_sub(1);
        let mut written = None;
        for probe in 0..PROBES_MAX.min(self.slots.len()) {
            let collided = probe > 0;
            let slot = (hash as usize).wrapping_add(probe) & mask;
            let Some(slot) = self.slots.get(slot) else { break };
            // Acquire: pairs with the Release of the publishing swap below; the complete entry is
            // visible.
            let mut word = slot.load(Ordering::Acquire);
            if word == 0 {
                let (offset, id) = match written {
                    Some(written) => written,
                    None => match self.write(frames, flags, weight, hash) {
                        Some(offset) => {
                            *written.insert((offset, preserved.unwrap_or_else(|| self.new_id())))
                        }
                        None => return (Put::Dropped(Dropped::Arena), collided),
                    },
                };
                if let Some(entry) = self.arena.get(offset) {
                    // Relaxed: published by the swap below.
                    entry.store(id, Ordering::Relaxed);
                }
                let claim = hash >> 32 << 32 | (offset as u64 + 1);
                // Release: pairs with the Acquire above; the entry is visible with its slot.
                // Acquire on failure: pairs with the winner's Release; the winner's entry is read
                // next.
                match slot.compare_exchange(0, claim, Ordering::Release, Ordering::Acquire) {
                    Ok(_) => {
                        // Relaxed: a count.
                        self.header.traces.fetch_add(1, Ordering::Relaxed);
                        return (Put::New(id), collided);
                    }
                    Err(winner) => word = winner,
                }
            }
            if word >> 32 == hash >> 32
                && let Some([id, _, _, sum]) = self.matching(word, frames, flags)
                // Relaxed: the entry was acquired with its slot word.
                && is_asked_for(preserved, id.load(Ordering::Relaxed))
            {
                // Relaxed: the recorder reads the sum after this thread's hazard is released.
                sum.fetch_add(weight, Ordering::Relaxed);
                return (Put::Hit(id.load(Ordering::Relaxed)), collided);
            }
        }
        (Put::Dropped(Dropped::Probes), true)
    }

    fn new_id(&self) -> u64 {
        // Relaxed: the instance was published with the ACTIVE word, which the hazard acquired.
        let instance = self.header.instance.load(Ordering::Relaxed) << 32;
        // Relaxed: the numbers must only differ, and no two additions to one word return the same
        // one. The entry's publication publishes the number. A thread that loses the race for a
        // slot wastes a number.
        instance | self.header.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Writes an entry into the arena and returns its offset. `None` if there is no room.
    fn write<W: Word>(&self, frames: &[W], flags: u32, weight: u64, hash: u64) -> Option<usize> {
        let words = ENTRY_HEADER + frames.len();
        // Relaxed: reservation only; the slot word publishes the entry.
        let offset = self.header.arena_used.fetch_add(words as u64, Ordering::Relaxed) as usize;
        let limit = self.header.arena_limit.load(Ordering::Relaxed) as usize;
        let entry = self.arena.get(..limit)?.get(offset..offset.checked_add(words)?)?;
        let (header, body) = entry.split_first_chunk::<ENTRY_HEADER>()?;
        header[1].store(hash, Ordering::Relaxed);
        header[2].store(u64::from(flags) << 32 | frames.len() as u64, Ordering::Relaxed);
        header[3].store(weight, Ordering::Relaxed);
        for (to, from) in body.iter().zip(frames) {
            to.store(from.word(), Ordering::Relaxed);
        }
        Some(offset)
    }

    /// Returns the header of the entry that a slot word names, if the entry is this trace.
    fn matching<W: Word>(
        &self,
        word: u64,
        frames: &[W],
        flags: u32,
    ) -> Option<&'a [AtomicU64; ENTRY_HEADER]> {
        let offset = (word as u32 as usize).checked_sub(1)?;
        let trace = self.entry(offset)?;
        let same = trace.flags == flags
            && trace.frames.len() == frames.len()
            // Relaxed: the entry was acquired with its slot word.
            && trace.frames.iter().zip(frames).all(|(a, b)| {
                a.load(Ordering::Relaxed) == b.word()
            });
        if !same {
            return None;
        }
        self.arena.get(offset..)?.first_chunk()
    }

    fn entry(&self, offset: usize) -> Option<Trace<'a>> {
        let header = self.arena.get(offset..offset.checked_add(ENTRY_HEADER)?)?;
        // Relaxed: the entry was acquired with its slot word.
        let shape = header[2].load(Ordering::Relaxed);
        let start = offset + ENTRY_HEADER;
        let frames = self.arena.get(start..start.checked_add(shape as u32 as usize)?)?;
        Some(Trace {
            id: header[0].load(Ordering::Relaxed),
            flags: (shape >> 32) as u32,
            weight: header[3].load(Ordering::Relaxed),
            frames,
        })
    }

    /// Returns all published traces. Call it only while no hazard names the table.
    pub fn traces(self) -> impl Iterator<Item = Trace<'a>> {
        self.slots.iter().filter_map(move |slot| {
            // Acquire: pairs with the Release of the publishing swap in `insert`; the entry is
            // visible.
            let word = slot.load(Ordering::Acquire);
            (word as u32 as usize).checked_sub(1).and_then(|offset| self.entry(offset))
        })
    }

    /// Appends a sample and returns its index in the log. `None` when the log is full.
    pub fn append_at(&self, sample: &Sample) -> Option<usize> {
        // Relaxed: reservation only; the record has its own commit word.
        let index = self.header.log_used.fetch_add(1, Ordering::Relaxed) as usize;
        let limit = self.header.log_limit.load(Ordering::Relaxed) as usize;
        let instance = self.header.instance.load(Ordering::Relaxed) as u32;
        let record = self.log.get(index).filter(|_| index < limit)?;
        record.commit(instance, index, sample);
        Some(index)
    }

    /// Returns the samples in the order of their reservation. `None` is a hole.
    pub fn samples(self) -> impl Iterator<Item = Option<Sample>> + use<'a> {
        // Relaxed: counts; the load of the commit word acquires each record.
        let used = self.header.log_used.load(Ordering::Relaxed) as usize;
        let limit = self.header.log_limit.load(Ordering::Relaxed) as usize;
        let instance = self.header.instance.load(Ordering::Relaxed) as u32;
        let log = &self.log[..used.min(limit).min(self.log.len())];
        log.iter().enumerate().map(move |(index, record)| record.read(instance, index))
    }

    /// Whether more than three quarters of the slots, the arena or the log are used.
    pub fn nearly_full(&self) -> bool {
        // Relaxed: a hint.
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let over = |used: u64, limit: u64| used > limit / 4 * 3;
        over(load(&self.header.traces), self.slots.len() as u64)
            || over(load(&self.header.arena_used), load(&self.header.arena_limit))
            || over(load(&self.header.log_used), load(&self.header.log_limit))
    }

    /// Empties the table and sets its next instance id. Call it only while no hazard names the
    /// table.
    pub fn reset(&self, instance: u32) {
        for slot in self.slots {
            // Relaxed: published with the ACTIVE word by `Rotation::publish`.
            if slot.load(Ordering::Relaxed) != 0 {
                slot.store(0, Ordering::Relaxed);
            }
        }
        self.header.arena_used.store(0, Ordering::Relaxed);
        self.header.log_used.store(0, Ordering::Relaxed);
        self.header.traces.store(0, Ordering::Relaxed);
        self.header.numbers.store(0, Ordering::Relaxed);
        self.header.instance.store(u64::from(instance), Ordering::Relaxed);
    }
}

/// A frame word, in shared memory or in the recorder's own memory.
pub trait Word {
    /// Returns the word's value.
    fn word(&self) -> u64;
}

impl Word for AtomicU64 {
    fn word(&self) -> u64 {
        // Relaxed: the words are the caller's own, or belong to an entry that was acquired with its
        // slot.
        self.load(Ordering::Relaxed)
    }
}

impl Word for u64 {
    fn word(&self) -> u64 {
        *self
    }
}

/// Whether an entry with equal frames is the wanted one. `put` accepts any such entry; a preserved
/// trace needs the one with its id.
fn is_asked_for(preserved: Option<u64>, id: u64) -> bool {
    #[cfg(loom)]
    if crate::sync::planted::has(crate::sync::planted::Mistake::PreserveByFrames) {
        return true;
    }
    preserved.is_none_or(|preserved| preserved == id)
}

/// Returns the hash of a trace: multiply and fold, one step for each frame.
pub fn hash<W: Word>(frames: &[W], flags: u32) -> u64 {
    const K: u64 = 0x9E37_79B9_7F4A_7C15;
    let mut state = (u64::from(flags) ^ frames.len() as u64).wrapping_mul(K) ^ K;
    for frame in frames {
        let product = u128::from(state ^ frame.word()) * u128::from(K);
        state = product as u64 ^ (product >> 64) as u64;
    }
    state
}
