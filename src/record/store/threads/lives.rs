//! Which thread had an id when.
//!
//! Thread ids are reused, and a sample says no more than the id and the time. So lives are kept by
//! id with their start and end, as exactly as these are known: to the nanosecond where the kernel
//! tells of them, to its clock tick (10 ms) where they are read from /proc.
//!
//! # Invariants
//! - A life's number is never used again.
//! - Of the lives with one id only the last may be without an end.

use std::collections::{BTreeMap, HashMap};

use crate::proc;

/// What is kept of a life.
#[derive(Debug, Clone, Default)]
pub(crate) struct Life {
    /// Its id as the recorder sees it.
    pub(crate) tid: i32,
    /// As the target sees it; 0 if that is not known.
    pub(crate) inner: u32,
    /// Its name, empty if it is not known.
    pub(crate) name: String,
    /// When it started, at the earliest.
    pub(crate) start_ns: u64,
    /// By how much the start may be later: a clock tick, or 0.
    pub(crate) start_slack_ns: u64,
    /// The same as /proc tells it, once it was read there.
    pub(crate) start_ticks: Option<u64>,
    /// When it ended, at the latest.
    pub(crate) end_ns: Option<u64>,
    /// The end is known to the nanosecond.
    pub(crate) is_end_exact: bool,
    /// All CPU time that it used, if the kernel told.
    pub(crate) cpu_ns: Option<u64>,
    /// CPU time that it had used when sampling began.
    pub(crate) cpu_before_ns: u64,
    /// It has started others.
    pub(crate) is_parent: bool,
    /// Whether the writer thread knows it.
    pub(crate) is_announced: bool,
}

/// How far a sample's time may lie outside of its thread's life: both clocks are read together, but
/// not at the same instant.
const TOLERANCE_NS: u64 = 50_000;

impl Life {
    fn contains(&self, time_ns: u64) -> bool {
        let end = self.end_ns.unwrap_or(u64::MAX);
        (self.start_ns.saturating_sub(TOLERANCE_NS)..=end.saturating_add(TOLERANCE_NS))
            .contains(&time_ns)
    }

    /// The sample is of this life and not of the one before it, for certain.
    fn begins_before(&self, time_ns: u64) -> bool {
        time_ns >= self.start_ns.saturating_add(self.start_slack_ns)
    }

    /// Whether a thread with these ticks in /proc is this one.
    pub(super) fn is_of(&self, ticks: u64) -> bool {
        let (start_ns, tick_ns) = (proc::start_ns(ticks), proc::tick_ns());
        match self.start_ticks {
            Some(known) => known == ticks,
            // A tick more on each side, for the readings of two clocks, and for the time between
            // the start and the report of it.
            None if self.start_slack_ns == 0 => {
                (start_ns.saturating_sub(tick_ns)..start_ns + 2 * tick_ns).contains(&self.start_ns)
            }
            // Nothing is known of its start; a thread that started after its end is another one.
            None => self.end_ns.is_none_or(|end| start_ns <= end),
        }
    }
}

/// The life that a sample belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// This one.
    Life(u32),
    /// One of two that followed each other within a clock tick.
    Ambiguous,
    /// None that is known.
    Unknown,
}

/// The lives of one process's threads, until they are forgotten.
#[derive(Debug, Default)]
pub(crate) struct Lives {
    lives: BTreeMap<u32, Life>,
    by_tid: HashMap<i32, Vec<u32>>,
    by_inner: HashMap<u32, Vec<u32>>,
    first: u32,
    next: u32,
}

impl Lives {
    /// None yet; the first one gets this number.
    pub(super) fn from(first: u32) -> Self {
        Self { first, next: first, ..Self::default() }
    }

    /// The number of the next one.
    pub(super) fn next(&self) -> u32 {
        self.next
    }

    /// Takes note of a life; its number.
    pub(super) fn begin(&mut self, life: Life) -> u32 {
        let number = self.next;
        // Four thousand million threads: years of a storm.
        self.next = self.next.saturating_add(1);
        if let Some(last) = self.last(life.tid) {
            // Its end was missed: the id can only have been given away after it.
            let until = life.start_ns.saturating_add(life.start_slack_ns);
            self.end(last, until, life.start_slack_ns == 0);
        }
        self.by_tid.entry(life.tid).or_default().push(number);
        if life.inner != 0 {
            self.by_inner.entry(life.inner).or_default().push(number);
        }
        self.lives.insert(number, life);
        number
    }

    /// Notes an end; the first one that is told counts, unless a later one is exact.
    pub(super) fn end(&mut self, number: u32, end_ns: u64, is_exact: bool) {
        if let Some(life) = self.lives.get_mut(&number)
            && (life.end_ns.is_none() || is_exact && !life.is_end_exact)
        {
            life.end_ns = Some(end_ns.max(life.start_ns));
            life.is_end_exact = is_exact;
        }
    }

    /// Forgets a life whose last sample has been read.
    pub(super) fn forget(&mut self, number: u32) -> Option<Life> {
        let life = self.lives.remove(&number)?;
        remove(&mut self.by_tid, life.tid, number);
        remove(&mut self.by_inner, life.inner, number);
        Some(life)
    }

    /// A life by its number.
    pub(crate) fn get(&self, number: u32) -> Option<&Life> {
        self.lives.get(&number)
    }

    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut Life> {
        self.lives.get_mut(&number)
    }

    /// All that are remembered.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Life)> {
        self.lives.iter().map(|(number, life)| (*number, life))
    }

    /// Those that have not ended.
    pub(super) fn alive(&self) -> impl Iterator<Item = (u32, &Life)> {
        self.iter().filter(|(_, life)| life.end_ns.is_none())
    }

    /// How many there ever were.
    pub(super) fn count_ever(&self) -> usize {
        (self.next - self.first) as usize
    }

    /// The latest life with this id, ended or not.
    pub(super) fn latest(&self, tid: i32) -> Option<u32> {
        self.by_tid.get(&tid).and_then(|lives| lives.last()).copied()
    }

    /// The latest life with this id, if it has not ended.
    pub(super) fn last(&self, tid: i32) -> Option<u32> {
        self.latest(tid).filter(|number| self.lives[number].end_ns.is_none())
    }

    /// The latest life with this id as the target sees it, if it has not ended.
    pub(super) fn last_inner(&self, inner: u32) -> Option<u32> {
        self.latest_inner(inner).filter(|number| self.lives[number].end_ns.is_none())
    }

    /// The latest life with this id as the target sees it, ended or not.
    pub(super) fn latest_inner(&self, inner: u32) -> Option<u32> {
        self.by_inner.get(&inner).and_then(|lives| lives.last()).copied()
    }

    /// Whose sample it is, by the id that the target sees.
    pub(super) fn owner_inner(&self, inner: u32, time_ns: u64) -> Owner {
        self.owner(self.by_inner.get(&inner), time_ns)
    }

    /// Whose sample it is, by the id that the recorder sees.
    pub(super) fn owner_tid(&self, tid: i32, time_ns: u64) -> Owner {
        self.owner(self.by_tid.get(&tid), time_ns)
    }

    fn owner(&self, numbers: Option<&Vec<u32>>, time_ns: u64) -> Owner {
        let lives = numbers.into_iter().flatten().rev();
        let mut holders = lives.filter_map(|number| {
            let life = self.lives.get(number)?;
            life.contains(time_ns).then_some((*number, life))
        });
        let Some((last, life)) = holders.next() else { return Owner::Unknown };
        let Some((before, _)) = holders.next() else { return Owner::Life(last) };
        if life.begins_before(time_ns) {
            Owner::Life(last)
        } else if life.start_slack_ns == 0 {
            Owner::Life(before)
        } else {
            Owner::Ambiguous
        }
    }
}

fn remove<K: std::hash::Hash + Eq>(index: &mut HashMap<K, Vec<u32>>, key: K, number: u32) {
    if let Some(numbers) = index.get_mut(&key) {
        numbers.retain(|other| *other != number);
        if numbers.is_empty() {
            index.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn life(tid: i32, start_ms: u64, slack_ms: u64) -> Life {
        Life {
            tid,
            inner: tid as u32,
            start_ns: start_ms * MS,
            start_slack_ns: slack_ms * MS,
            ..Life::default()
        }
    }

    #[test]
    fn samples_go_to_the_life_of_their_time() {
        let mut lives = Lives::default();
        let first = lives.begin(life(7, 100, 0));
        lives.end(first, 200 * MS, true);
        let second = lives.begin(life(7, 201, 0));
        for (ms, owner) in [
            (99, Owner::Unknown),
            (100, Owner::Life(first)),
            (200, Owner::Life(first)),
            (201, Owner::Life(second)),
            (900, Owner::Life(second)),
        ] {
            assert_eq!(lives.owner_tid(7, ms * MS), owner, "{ms}");
            assert_eq!(lives.owner_inner(7, ms * MS), owner, "{ms}");
        }
        assert_eq!(lives.owner_tid(8, 150 * MS), Owner::Unknown);
        assert_eq!((lives.last(7), lives.count_ever()), (Some(second), 2));
        lives.forget(first);
        assert_eq!(lives.owner_tid(7, 150 * MS), Owner::Unknown);
        lives.forget(second);
        assert!(lives.by_tid.is_empty() && lives.by_inner.is_empty());
    }

    #[test]
    fn a_few_microseconds_decide_between_exact_lives() {
        let mut lives = Lives::default();
        let first = lives.begin(life(7, 100, 0));
        lives.end(first, 200 * MS, true);
        let second = lives.begin(Life { start_ns: 200 * MS + 20_000, ..life(7, 0, 0) });
        assert_eq!(lives.owner_tid(7, 200 * MS + 10_000), Owner::Life(first));
        assert_eq!(lives.owner_tid(7, 200 * MS + 20_001), Owner::Life(second));
    }

    #[test]
    fn a_clock_tick_in_which_one_follows_the_other_is_ambiguous() {
        let mut lives = Lives::default();
        let first = lives.begin(life(7, 100, 10));
        // Its end was not seen.
        let second = lives.begin(life(7, 500, 10));
        assert_eq!(lives.get(first).unwrap().end_ns, Some(510 * MS));
        assert_eq!(lives.owner_tid(7, 499 * MS), Owner::Life(first));
        assert_eq!(lives.owner_tid(7, 505 * MS), Owner::Ambiguous);
        assert_eq!(lives.owner_tid(7, 510 * MS), Owner::Life(second));
    }

    #[test]
    fn an_exact_end_replaces_a_guessed_one() {
        let mut lives = Lives::default();
        let number = lives.begin(life(7, 100, 10));
        lives.end(number, 300 * MS, false);
        lives.end(number, 250 * MS, true);
        lives.end(number, 400 * MS, false);
        lives.end(number, 400 * MS, true);
        assert_eq!(lives.get(number).unwrap().end_ns, Some(250 * MS));
    }
}
