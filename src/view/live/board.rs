//! All that the live table may be asked to show: each kind of row, of the last interval and of all.
//!
//! # Invariants
//! - What threads that only wait for work come to is apart from the others, and both together are all
//!   samples. Which they are is found out anew for each interval.

use std::borrow::Cow;

use super::look::Look;
use super::tally::{Kind, Tally};
use crate::view::idle::asleep_threads;
use crate::view::mode::Mode;
use crate::view::profile::Profile;
use crate::view::rows::{counted, percent};

/// The last interval, and all since the start.
#[derive(Debug, Clone, Default)]
pub(super) struct Times {
    /// The last interval.
    pub(super) last: Tally,
    /// Since the start.
    pub(super) all: Tally,
}

impl Times {
    fn add(&mut self, tally: &Tally) {
        self.last.add(tally);
        self.all.add(tally);
    }

    /// The weight of the time that rows are sorted by.
    fn weight(&self, look: &Look) -> u64 {
        if look.since_start { self.all.all } else { self.last.all }
    }

    fn with(&self, other: &Self) -> Self {
        let mut both = self.clone();
        both.last.add(&other.last);
        both.all.add(&other.all);
        both
    }
}

/// The tallies of one mode, in the order of [`Kind::ALL`].
#[derive(Debug, Clone)]
struct Side {
    mode: Mode,
    kinds: [Times; Kind::ALL.len()],
    /// Of wall clock time: those of idle threads.
    idle: [Times; Kind::ALL.len()],
}

/// Everything that was counted.
#[derive(Debug, Clone)]
pub struct Board {
    sides: Vec<Side>,
}

/// What is shown of the board.
#[derive(Debug)]
pub(super) struct Shown<'a> {
    /// The rows.
    pub(super) times: Cow<'a, Times>,
    /// What is left out of them.
    pub(super) idle: Option<Idle>,
}

/// Threads that only wait for work, and are left out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Idle {
    threads: u64,
    last_percent: f64,
    all_percent: f64,
}

impl Idle {
    /// A line about them; `how` says how they are shown.
    pub(super) fn line(self, how: &str) -> String {
        let Self { threads, last_percent, all_percent } = self;
        let number = counted(threads, "idle thread");
        format!("{number}: {last_percent:.1} % of all, {all_percent:.1} % since start ({how})")
    }
}

impl Board {
    /// Nothing yet, of these modes.
    pub fn new(modes: &[Mode]) -> Self {
        let (kinds, idle) = Default::default();
        let side = Side { mode: Mode::Cpu, kinds, idle };
        Self { sides: modes.iter().map(|mode| Side { mode: *mode, ..side.clone() }).collect() }
    }

    /// The modes that it has.
    pub fn modes(&self) -> impl Iterator<Item = Mode> {
        self.sides.iter().map(|side| side.mode)
    }

    /// Begins an interval.
    pub fn begin(&mut self) {
        for side in &mut self.sides {
            for times in side.kinds.iter_mut().chain(&mut side.idle) {
                times.last = Tally::default();
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
            for (kind, (times, idle)) in Kind::ALL.into_iter().zip(both) {
                times.add(&Tally::of(profile, some(false), kind));
                idle.add(&Tally::of(profile, some(true), kind));
            }
        }
    }

    /// What of it is looked at. Idle threads are shown if nothing else was seen in the time that rows are
    /// sorted by: then somebody looks at a process that hangs.
    pub(super) fn shown(&self, look: &Look) -> Option<Shown<'_>> {
        let side = self.sides.iter().find(|side| side.mode == look.mode)?;
        let place = |kind| Kind::ALL.iter().position(|it| *it == kind);
        let at = place(look.kind)?;
        let (times, idle) = (side.kinds.get(at)?, side.idle.get(at)?);
        if idle.all.all == 0 {
            return Some(Shown { times: Cow::Borrowed(times), idle: None });
        }
        if look.idle || times.weight(look) == 0 {
            return Some(Shown { times: Cow::Owned(times.with(idle)), idle: None });
        }
        let share = |part: u64, other: u64| percent(part, part.saturating_add(other));
        let threads = place(Kind::Thread)?;
        let (awake, asleep) = (side.kinds.get(threads)?, side.idle.get(threads)?);
        // What sleeps has few samples, which may be of longer than an interval.
        let asleep = asleep.all.rows.keys().filter(|label| !awake.last.rows.contains_key(label));
        let idle = Idle {
            threads: asleep.count() as u64,
            last_percent: share(idle.last.all, times.last.all),
            all_percent: share(idle.all.all, times.all.all),
        };
        Some(Shown { times: Cow::Borrowed(times), idle: Some(idle) })
    }
}
