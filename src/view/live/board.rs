//! All that the live table may be asked to show: each kind of row, of the last interval and of all.

use super::tally::{Kind, Tally};
use crate::view::mode::Mode;
use crate::view::profile::Profile;

/// The last interval, and all since the start.
#[derive(Debug, Clone, Default)]
pub(super) struct Times {
    /// The last interval.
    pub(super) last: Tally,
    /// Since the start.
    pub(super) all: Tally,
}

/// The tallies of one mode, in the order of [`Kind::ALL`].
#[derive(Debug, Clone)]
struct Side {
    mode: Mode,
    kinds: [Times; Kind::ALL.len()],
}

/// Everything that was counted.
#[derive(Debug, Clone)]
pub struct Board {
    sides: Vec<Side>,
}

impl Board {
    /// Nothing yet, of these modes.
    pub fn new(modes: &[Mode]) -> Self {
        let side = |mode: &Mode| Side { mode: *mode, kinds: Default::default() };
        Self { sides: modes.iter().map(side).collect() }
    }

    /// The modes that it has.
    pub fn modes(&self) -> impl Iterator<Item = Mode> {
        self.sides.iter().map(|side| side.mode)
    }

    /// Begins an interval.
    pub fn begin(&mut self) {
        for times in self.sides.iter_mut().flat_map(|side| &mut side.kinds) {
            times.last = Tally::default();
        }
    }

    /// Adds samples to the interval.
    pub fn add(&mut self, profile: &Profile) {
        for side in self.sides.iter_mut().filter(|side| side.mode == profile.mode) {
            for (kind, times) in Kind::ALL.into_iter().zip(&mut side.kinds) {
                let tally = Tally::of(profile, kind);
                times.last.add(&tally);
                times.all.add(&tally);
            }
        }
    }

    /// What was counted by this kind of row.
    pub(super) fn times(&self, mode: Mode, kind: Kind) -> Option<&Times> {
        let side = self.sides.iter().find(|side| side.mode == mode)?;
        let place = Kind::ALL.iter().position(|it| *it == kind)?;
        side.kinds.get(place)
    }
}
