//! All counts of the live table: each kind of row, for the last interval and since the start.
//!
//! # Invariants
//! - Idle threads are counted separately from the others, and both together are all samples. Each
//!   interval decides again which threads are idle.

use std::borrow::Cow;

use super::display_state::DisplayState;
use super::row_weights::{RowKind, RowWeights};
use crate::view::profile::idle::asleep_threads;
use crate::view::profile::thread_profile::Profile;
use crate::view::recording::mode::Mode;
use crate::view::text::number::{counted, percent};

/// Weights of the last interval and since the start.
#[derive(Debug, Clone, Default)]
pub(super) struct LastAndAll {
    /// The last interval.
    pub(super) last: RowWeights,
    /// Since the start.
    pub(super) all: RowWeights,
}

impl LastAndAll {
    fn add(&mut self, tally: &RowWeights) {
        self.last.add(tally);
        self.all.add(tally);
    }

    /// Returns the weight of the time that rows are sorted by.
    fn weight(&self, display: &DisplayState) -> u64 {
        if display.since_start { self.all.all } else { self.last.all }
    }

    fn with(&self, other: &Self) -> Self {
        let mut both = self.clone();
        both.last.add(&other.last);
        both.all.add(&other.all);
        both
    }
}

/// The counts of one mode, in the order of [`RowKind::ALL`].
#[derive(Debug, Clone)]
struct ModeCounts {
    mode: Mode,
    kinds: [LastAndAll; RowKind::ALL.len()],
    /// The counts of idle threads, in wall clock time.
    idle: [LastAndAll; RowKind::ALL.len()],
}

/// All counts.
#[derive(Debug, Clone)]
pub struct LiveCounts {
    sides: Vec<ModeCounts>,
}

/// The visible part of the counts.
#[derive(Debug)]
pub(super) struct ShownCounts<'a> {
    /// The rows.
    pub(super) times: Cow<'a, LastAndAll>,
    /// The hidden idle threads.
    pub(super) idle: Option<IdleShare>,
}

/// The share of the hidden threads that only wait for work.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct IdleShare {
    threads: u64,
    last_percent: f64,
    all_percent: f64,
}

impl IdleShare {
    /// Returns a line about the hidden threads. `how` says how to show them.
    pub(super) fn line(self, how: &str) -> String {
        let Self { threads, last_percent, all_percent } = self;
        let number = counted(threads, "idle thread");
        format!("{number}: {last_percent:.1} % of all, {all_percent:.1} % since start ({how})")
    }
}

impl LiveCounts {
    /// Creates empty counts of these modes.
    pub fn new(modes: &[Mode]) -> Self {
        let (kinds, idle) = Default::default();
        let side = ModeCounts { mode: Mode::Cpu, kinds, idle };
        Self {
            sides: modes.iter().map(|mode| ModeCounts { mode: *mode, ..side.clone() }).collect(),
        }
    }

    /// Returns the modes with counts.
    pub fn modes(&self) -> impl Iterator<Item = Mode> {
        self.sides.iter().map(|side| side.mode)
    }

    /// Starts an interval.
    pub fn begin(&mut self) {
        for side in &mut self.sides {
            for times in side.kinds.iter_mut().chain(&mut side.idle) {
                times.last = RowWeights::default();
            }
        }
    }

    /// Adds samples to the interval.
    pub fn add(&mut self, profile: &Profile) {
        let asleep = match profile.mode {
            Mode::Wall => asleep_threads(profile),
            Mode::Cpu => vec![false; profile.threads.len()],
        };
        let some = |is_asleep: bool| {
            let threads = profile.threads.iter().zip(&asleep);
            threads.filter(move |(_, it)| **it == is_asleep).map(|(thread, _)| thread)
        };
        for side in self.sides.iter_mut().filter(|side| side.mode == profile.mode) {
            let both = side.kinds.iter_mut().zip(&mut side.idle);
            for (kind, (times, idle)) in RowKind::ALL.into_iter().zip(both) {
                times.add(&RowWeights::of(profile, some(false), kind));
                idle.add(&RowWeights::of(profile, some(true), kind));
            }
        }
    }

    /// Returns the visible part.
    ///
    /// Idle threads are shown if no other thread has samples in the time that sorts the rows,
    /// because the process may hang.
    pub(super) fn shown(&self, display: &DisplayState) -> Option<ShownCounts<'_>> {
        let side = self.sides.iter().find(|side| side.mode == display.mode)?;
        let index = |kind| RowKind::ALL.iter().position(|it| *it == kind);
        let at = index(display.kind)?;
        let (times, idle) = (side.kinds.get(at)?, side.idle.get(at)?);
        if idle.all.all == 0 {
            return Some(ShownCounts { times: Cow::Borrowed(times), idle: None });
        }
        if display.idle || times.weight(display) == 0 {
            return Some(ShownCounts { times: Cow::Owned(times.with(idle)), idle: None });
        }
        let share = |part: u64, other: u64| percent(part, part.saturating_add(other));
        let threads = index(RowKind::Thread)?;
        let (awake, asleep) = (side.kinds.get(threads)?, side.idle.get(threads)?);
        // A sleeping thread has few samples, each of which may be longer than an interval.
        let asleep = asleep.all.rows.keys().filter(|label| !awake.last.rows.contains_key(label));
        let idle = IdleShare {
            threads: asleep.count() as u64,
            last_percent: share(idle.last.all, times.last.all),
            all_percent: share(idle.all.all, times.all.all),
        };
        Some(ShownCounts { times: Cow::Borrowed(times), idle: Some(idle) })
    }
}
