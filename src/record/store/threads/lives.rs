//! Finds the thread that had an id at a time.
//!
//! Thread ids are reused, and a sample carries only the id and the time. A *life* is one thread
//! from its start to its exit. Lives are stored by id, with the most exact start and end that are
//! known: to the nanosecond if the kernel reports them, to a clock tick (10 ms) if they are read
//! from /proc.
//!
//! # Invariants
//! - The number of a life is never reused.
//! - Among the lives with one id, only the last may have no end.

use std::collections::{BTreeMap, HashMap};

use crate::proc;

/// One thread, from its start to its exit.
#[derive(Debug, Clone, Default)]
pub(crate) struct Life {
    /// The thread id as the recorder sees it.
    pub(crate) tid: i32,
    /// The thread id as the target sees it; 0 if it is unknown.
    pub(crate) inner: u32,
    /// The thread's name; empty if it is unknown.
    pub(crate) name: String,
    /// The earliest possible start, in CLOCK_MONOTONIC nanoseconds.
    pub(crate) start_ns: u64,
    /// How much later the start may be, in nanoseconds: a clock tick, 0 for an exact start, or
    /// `UNKNOWN_NS`.
    pub(crate) start_slack_ns: u64,
    /// The start in clock ticks, once it was read from /proc.
    pub(crate) start_ticks: Option<u64>,
    /// The latest possible end, in CLOCK_MONOTONIC nanoseconds; `None` while the thread lives.
    pub(crate) end_ns: Option<u64>,
    /// Whether the end is known to the nanosecond.
    pub(crate) is_end_exact: bool,
    /// The total CPU time of the thread in nanoseconds, if the kernel reported it at the exit.
    pub(crate) cpu_ns: Option<u64>,
    /// The CPU time that the thread had used when its sampling began, in nanoseconds.
    pub(crate) cpu_before_ns: u64,
    /// Whether the kernel has reported the start during the recording.
    pub(crate) is_start_reported: bool,
    /// Whether it has samples, and whether a handler took one.
    pub(crate) has_sample: bool,
    pub(crate) has_slot: bool,
    /// Whether the thread has started others.
    pub(crate) is_parent: bool,
    /// Whether the writer thread knows the life.
    pub(crate) is_announced: bool,
}

/// How far the time of a sample may be outside of its thread's life, in nanoseconds: the two clocks
/// are read together, but not at the same instant.
const TOLERANCE_NS: u64 = 50_000;

impl Life {
    fn contains(&self, time_ns: u64) -> bool {
        let end = self.end_ns.unwrap_or(u64::MAX);
        (self.start_ns.saturating_sub(TOLERANCE_NS)..=end.saturating_add(TOLERANCE_NS))
            .contains(&time_ns)
    }

    /// Returns whether a sample at this time is certainly not from the previous life.
    fn begins_before(&self, time_ns: u64) -> bool {
        time_ns >= self.start_ns.saturating_add(self.start_slack_ns)
    }

    /// Returns whether this life is the thread that started at these ticks by /proc.
    pub(super) fn is_of(&self, ticks: u64) -> bool {
        let (start_ns, tick_ns) = (proc::start_ns(ticks), proc::tick_ns());
        match self.start_ticks {
            Some(known) => known == ticks,
            // One more tick on each side allows for the readings of two clocks, and for the time
            // between the start and its report.
            None if self.start_slack_ns == 0 => {
                (start_ns.saturating_sub(tick_ns)..start_ns + 2 * tick_ns).contains(&self.start_ns)
            }
            // The start is unknown. A thread that started after this life ended is another one.
            None => self.end_ns.is_none_or(|end| start_ns <= end),
        }
    }
}

/// The life that a sample belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The life with this number.
    Life(u32),
    /// One of two lives that followed each other within a clock tick.
    Ambiguous,
    /// No known life.
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
    /// Makes an empty set, in which the first life gets this number.
    pub(super) fn from(first: u32) -> Self {
        Self { first, next: first, ..Self::default() }
    }

    /// Returns the number of the next life.
    pub(super) fn next(&self) -> u32 {
        self.next
    }

    /// Adds a life, and returns its number.
    pub(super) fn begin(&mut self, life: Life) -> u32 {
        let number = self.next;
        // 32 bits number four billion threads: years of a thread-creation storm.
        self.next = self.next.saturating_add(1);
        if let Some(last) = self.living(life.tid) {
            // The end of the previous life was missed: the kernel reuses an id only after it.
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

    /// Notes the end of a life. The first report counts, unless only a later report is exact.
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

    /// Returns the life with this number.
    pub(crate) fn get(&self, number: u32) -> Option<&Life> {
        self.lives.get(&number)
    }

    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut Life> {
        self.lives.get_mut(&number)
    }

    /// Returns all remembered lives.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Life)> {
        self.lives.iter().map(|(number, life)| (*number, life))
    }

    /// Returns the lives that have not ended.
    pub(super) fn alive(&self) -> impl Iterator<Item = (u32, &Life)> {
        self.iter().filter(|(_, life)| life.end_ns.is_none())
    }

    /// Returns the number of lives so far.
    pub(super) fn count_ever(&self) -> usize {
        (self.next - self.first) as usize
    }

    /// Returns the latest life with this id, whether it has ended or not.
    pub(super) fn latest(&self, tid: i32) -> Option<u32> {
        self.by_tid.get(&tid).and_then(|lives| lives.last()).copied()
    }

    /// Returns the latest life with this id, if it has not ended.
    pub(super) fn living(&self, tid: i32) -> Option<u32> {
        self.latest(tid).filter(|number| self.lives[number].end_ns.is_none())
    }

    /// Returns the latest life with this id as the target sees it, if it has not ended.
    pub(super) fn living_inner(&self, inner: u32) -> Option<u32> {
        self.latest_inner(inner).filter(|number| self.lives[number].end_ns.is_none())
    }

    /// Returns the latest life with this id as the target sees it, whether it has ended or not.
    pub(super) fn latest_inner(&self, inner: u32) -> Option<u32> {
        self.by_inner.get(&inner).and_then(|lives| lives.last()).copied()
    }

    /// Returns the owner of a sample by the thread id that the target sees.
    pub(super) fn owner_inner(&self, inner: u32, time_ns: u64) -> Owner {
        self.owner(self.by_inner.get(&inner), time_ns)
    }

    /// Returns the owner of a sample by the thread id that the recorder sees.
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
        assert_eq!((lives.living(7), lives.count_ever()), (Some(second), 2));
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
    fn samples_in_the_clock_tick_between_two_lives_are_ambiguous() {
        let mut lives = Lives::default();
        let first = lives.begin(life(7, 100, 10));
        // The end of the first life is not reported.
        let second = lives.begin(life(7, 500, 10));
        assert_eq!(lives.get(first).unwrap().end_ns, Some(510 * MS));
        assert_eq!(lives.owner_tid(7, 499 * MS), Owner::Life(first));
        assert_eq!(lives.owner_tid(7, 505 * MS), Owner::Ambiguous);
        assert_eq!(lives.owner_tid(7, 510 * MS), Owner::Life(second));
    }

    #[test]
    fn an_exact_end_replaces_an_estimate() {
        let mut lives = Lives::default();
        let number = lives.begin(life(7, 100, 10));
        lives.end(number, 300 * MS, false);
        lives.end(number, 250 * MS, true);
        lives.end(number, 400 * MS, false);
        lives.end(number, 400 * MS, true);
        assert_eq!(lives.get(number).unwrap().end_ns, Some(250 * MS));
    }
}
