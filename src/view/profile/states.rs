//! The time of threads in each run state.

use std::ops::AddAssign;

use crate::trace::RunState;
use crate::view::text::number::{percent, wall_seconds};

/// Times by state, in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StateTimes {
    known: [u64; RunState::ALL.len()],
    /// The time in states that this version does not know.
    other: u64,
}

impl StateTimes {
    /// Adds time in the state with this number.
    pub fn add(&mut self, state: u8, us: u64) {
        let time = self.known.get_mut(usize::from(state)).unwrap_or(&mut self.other);
        *time = time.saturating_add(us);
    }

    /// Returns the time in a state.
    pub fn of(&self, state: RunState) -> u64 {
        self.known.get(state as usize).copied().unwrap_or(0)
    }

    /// Returns the time in all states.
    pub fn total(&self) -> u64 {
        self.known.iter().fold(self.other, |sum, us| sum.saturating_add(*us))
    }

    /// Returns every state with its time.
    pub(in crate::view) fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let known = RunState::ALL.map(|state| (state.name(), self.of(state)));
        let other = (self.other > 0).then_some(("other", self.other));
        known.into_iter().chain(other)
    }

    /// Returns a text with every state and its time, for all threads together.
    pub(in crate::view) fn summary(&self) -> String {
        let all = self.total();
        let one = |(name, us): (&str, u64)| match us {
            0 => format!("{name} 0"),
            _ => format!("{name} {} s ({:.1} %)", wall_seconds(us), percent(us, all)),
        };
        let states: Vec<String> = self.all().map(one).collect();
        format!("{} s of threads: {}", wall_seconds(all), states.join(", "))
    }

    /// Returns a text with the states of one thread in microseconds. They add up to the thread's
    /// time.
    pub(in crate::view) fn of_thread(&self) -> String {
        let some = self.all().filter(|(_, us)| *us > 0);
        let states: Vec<String> = some
            .map(|(name, us)| format!("{name} {}.{:06} s", us / 1_000_000, us % 1_000_000))
            .collect();
        states.join(", ")
    }
}

impl AddAssign for StateTimes {
    fn add_assign(&mut self, other: Self) {
        for (time, added) in self.known.iter_mut().zip(other.known) {
            *time = time.saturating_add(added);
        }
        self.other = self.other.saturating_add(other.other);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_all_states_add_up() {
        let mut times = StateTimes::default();
        for (state, us) in [(0, 1_200_000), (2, 98_700_001), (1, 99_999), (7, 1)] {
            times.add(state, us);
        }
        let mut twice = times;
        twice += times;
        assert_eq!((times.total(), twice.total()), (100_000_001, 200_000_002));
        assert_eq!(
            times.summary(),
            "100.000 s of threads: running 1.200 s (1.2 %), runnable 0.100 s (0.1 %), \
             sleeping 98.700 s (98.7 %), disk 0, stopped 0, other 0.000 s (0.0 %)"
        );
        assert_eq!(
            times.of_thread(),
            "running 1.200000 s, runnable 0.099999 s, sleeping 98.700001 s, other 0.000001 s"
        );
    }
}
